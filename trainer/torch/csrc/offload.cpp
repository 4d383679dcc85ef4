// Copies between a device and pinned memory of its host, on a stream beside the one that computes. All of it goes through
// the interfaces that devices share, as this library is not linked with CUDA's.
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

// One stream for each device, on which copies follow each other: what is fetched has been put away before.
c10::Stream copy_stream(c10::Device device) {
  static std::mutex lock;
  static std::map<c10::DeviceIndex, c10::Stream> streams;
  const std::lock_guard<std::mutex> guard(lock);
  const auto found = streams.find(device.index());
  if (found != streams.end()) return found->second;
  const c10::Stream stream = VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  return streams.emplace(device.index(), stream).first->second;
}

// What comes later on one stream waits for what another one has to do by now.
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
  // The allocator must not reuse its memory before the copy is over.
  on_device.record_stream(beside);
}

c10::Device cuda(int64_t index) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)}; }

}  // namespace
}  // namespace rlt

extern "C" {
// Memory of the host that a GPU reads and writes by itself, for as many numbers as the tensor has.
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

// What is computed from now on sees all copies that were begun.
char* rlt_follow_copies(int64_t cuda_index) {
  return rlt::guarded([&] {
    const c10::Device device = rlt::cuda(cuda_index);
    rlt::follow(VirtualGuardImpl(device.type()).getStream(device), rlt::copy_stream(device));
  });
}

// Returns when all copies that were begun are over.
char* rlt_finish_copies(int64_t cuda_index) {
  return rlt::guarded([&] {
    const c10::Device device = rlt::cuda(cuda_index);
    VirtualGuardImpl(device.type()).synchronizeStream(rlt::copy_stream(device));
  });
}
}
