// Recording by libtorch's profiler (Kineto): operators of this thread and of the backward passes that it
// starts, and, on GPUs, the kernels and copies of the process that CUPTI reports.
#include <set>

#include <torch/csrc/autograd/profiler_kineto.h>

#include "c_api.h"

extern "C" {
char* rlt_start_profiler(bool records_device) {
  return rlt::guarded([&] {
    using torch::profiler::impl::ActivityType;
    std::set<ActivityType> activities{ActivityType::CPU};
    if (records_device) activities.insert(ActivityType::CUDA);
    const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
    torch::autograd::profiler::prepareProfiler(config, activities);
    torch::autograd::profiler::enableProfiler(config, activities);
  });
}

// Ends the recording, and writes it to a file if `path` is not null.
char* rlt_end_profiler(const char* path) {
  return rlt::guarded([&] {
    const auto recorded = torch::autograd::profiler::disableProfiler();
    if (path != nullptr) recorded->save(path);
  });
}
}
