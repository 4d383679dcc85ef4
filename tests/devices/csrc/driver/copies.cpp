// Copies. Those that touch memory which the device cannot read by itself behave as the driver's: the host's bytes are
// taken at once, and a copy to them is waited for.
#include <cstring>

#include "core.h"

using namespace stand_in;

namespace {

struct Place {
  const void* address;
  Device* device;
  bool is_pinned;

  explicit Place(const void* at)
      : address(at), device(device_of(at)), is_pinned(device == nullptr && stand_in::is_pinned(at)) {}
  bool is_valid(size_t n) const { return device == nullptr || is_within(*device, address, n); }
};

RltCounter direction(const Place& to, const Place& from) {
  if (to.device == nullptr) return RLT_DEVICE_TO_HOST;
  return from.device == nullptr ? RLT_HOST_TO_DEVICE : RLT_DEVICE_TO_DEVICE;
}

CUresult copy(CUstream handle, const void* into, const void* from_where, size_t n) {
  if (CUresult refused = ready()) return refused;
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (n == 0) return CUDA_SUCCESS;
  const Place to(into), from(from_where);
  if (!to.is_valid(n) || !from.is_valid(n)) return CUDA_ERROR_INVALID_VALUE;
  if (to.device == nullptr && from.device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Copy counted{direction(to, from), n};
  const bool is_pageable = (to.device == nullptr && !to.is_pinned) || (from.device == nullptr && !from.is_pinned);
  if (rlt_stand_in_is_capturing(handle)) {
    if (is_pageable) return refuse_while_capturing();
    std::lock_guard<std::mutex> guard(core().lock);
    stream->capture->graph->copies.push_back(counted);
  } else {
    count_copies({counted});
  }
  void* target = alias_of(to.address);
  const void* source = alias_of(from.address);
  if (from.device == nullptr && !from.is_pinned) {
    const auto* bytes = static_cast<const char*>(source);
    auto taken = std::make_shared<std::vector<char>>(bytes, bytes + n);
    return enqueue(*stream, [=] { return std::memcpy(target, taken->data(), n), true; });
  }
  const CUresult result = enqueue(*stream, [=] { return std::memmove(target, source, n), true; });
  if (result != CUDA_SUCCESS || to.device != nullptr || to.is_pinned) return result;
  rlt_stand_in_count(RLT_WAIT, 0);
  return drain(*stream);
}

// A copy that is over when the call returns.
CUresult copy_now(const void* to, const void* from, size_t n) {
  if (CUresult refused = refuse_while_capturing()) return refused;
  if (current_device == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const bool was_waited_for = device_of(to) == nullptr && !is_pinned(to);
  if (CUresult failed = copy(nullptr, to, from, n)) return failed;
  if (!was_waited_for) rlt_stand_in_count(RLT_WAIT, 0);
  return drain(*current_device->default_stream);
}

void* at(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

CUresult fill(CUstream handle, CUdeviceptr into, const void* value, size_t width, size_t n) {
  if (CUresult refused = ready()) return refused;
  Stream* stream = stream_of(handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!Place(at(into)).is_valid(width * n)) return CUDA_ERROR_INVALID_VALUE;
  if (!rlt_stand_in_is_capturing(handle)) rlt_stand_in_count(RLT_LAUNCH, 0);
  auto* target = static_cast<char*>(alias_of(at(into)));
  const std::string bytes(static_cast<const char*>(value), width);
  return enqueue(*stream, [=] {
    for (size_t i = 0; i < n; ++i) std::memcpy(target + i * width, bytes.data(), width);
    return true;
  });
}

}  // namespace

extern "C" {
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t n, CUstream stream) {
  return copy(stream, at(to), from, n);
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t n, CUstream stream) {
  return copy(stream, to, at(from), n);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream) {
  return copy(stream, at(to), at(from), n);
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t n, CUstream stream) {
  return copy(stream, at(to), at(from), n);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, size_t n, CUstream stream) {
  return copy(stream, at(to), at(from), n);
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t n) { return copy_now(at(to), from, n); }
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t n) { return copy_now(to, at(from), n); }
CUresult cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t n) { return copy(nullptr, at(to), at(from), n); }

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t n, CUstream stream) {
  return fill(stream, to, &value, 1, n);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t n, CUstream stream) {
  return fill(stream, to, &value, 2, n);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t n, CUstream stream) {
  return fill(stream, to, &value, 4, n);
}
}
