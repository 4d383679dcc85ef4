// Copies between a device and pinned host memory on a separate stream, concurrent with computation. The
// device-independent interfaces are used, because this library is not linked with CUDA.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>

#include "c_api.h"

using at::Tensor;
using c10::impl::VirtualGuardImpl;

namespace rlt {
namespace {

// Returns the copy stream of a device. One stream executes all copies in order, so a prefetch sees the
// offload before it.
c10::Stream copy_stream(c10::Device device) {
  static std::mutex lock;
  static std::map<c10::DeviceIndex, c10::Stream> streams;
  const std::lock_guard<std::mutex> guard(lock);
  const auto found = streams.find(device.index());
  if (found != streams.end()) return found->second;
  const c10::Stream stream = VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  return streams.emplace(device.index(), stream).first->second;
}

// Makes later work on `behind` wait for all work enqueued on `ahead` so far.
void follow(const c10::Stream& behind, const c10::Stream& ahead) {
  c10::Event reached(ahead.device_type());
  reached.record(ahead);
  reached.block(behind);
}

void copy_beside(const Tensor& to, const Tensor& from) {
  const Tensor& on_device = to.is_cpu() ? from : to;
  const c10::Device device = on_device.device();
  const c10::Stream beside = copy_stream(device);
  follow(beside, VirtualGuardImpl(device.type()).getStream(device));
  {
    const c10::StreamGuard guard(beside);
    to.copy_(from, /*non_blocking=*/true);
  }
  // Keeps libtorch's allocator from reusing the memory before the copy is complete.
  on_device.record_stream(beside);
}

c10::Device cuda(int64_t index) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)}; }

}  // namespace
}  // namespace rlt

extern "C" {
// Allocates a pinned host tensor with the shape and dtype of `tensor`.
char* rlt_pinned_like(Tensor* tensor, Tensor** out) {
  return rlt::guarded([&] {
    const auto options = tensor->options().device(at::kCPU).pinned_memory(true);
    *out = rlt::owned(at::empty(tensor->sizes(), options));
  });
}

char* rlt_copy_beside(Tensor* to, Tensor* from) {
  return rlt::guarded([&] {
    at::NoGradGuard no_grad;
    rlt::copy_beside(to->detach(), from->detach());
  });
}

// Makes later computation wait for all copies started so far.
char* rlt_follow_copies(int64_t cuda_index) {
  return rlt::guarded([&] {
    const c10::Device device = rlt::cuda(cuda_index);
    rlt::follow(VirtualGuardImpl(device.type()).getStream(device), rlt::copy_stream(device));
  });
}

// Blocks until all copies started so far are complete.
char* rlt_finish_copies(int64_t cuda_index) {
  return rlt::guarded([&] {
    const c10::Device device = rlt::cuda(cuda_index);
    VirtualGuardImpl(device.type()).synchronizeStream(rlt::copy_stream(device));
  });
}
}
