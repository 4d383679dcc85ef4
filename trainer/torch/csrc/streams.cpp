// libtorch's streams of a device, by id and by driver handle. The device-independent interfaces are used,
// because this library is not linked with CUDA.
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "c_api.h"

using c10::impl::VirtualGuardImpl;

namespace rlt {
namespace {

c10::Device cuda_device(int64_t index) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)}; }

void report(const c10::Stream& stream, int64_t* id, void** handle) {
  *id = stream.id();
  *handle = stream.native_handle();
}

}  // namespace
}  // namespace rlt

extern "C" {
char* rlt_current_stream(int64_t device, int64_t* id, void** handle) {
  return rlt::guarded([&] {
    const c10::Device on = rlt::cuda_device(device);
    rlt::report(VirtualGuardImpl(on.type()).getStream(on), id, handle);
  });
}

char* rlt_pool_stream(int64_t device, int64_t* id, void** handle) {
  return rlt::guarded([&] {
    const c10::Device on = rlt::cuda_device(device);
    rlt::report(VirtualGuardImpl(on.type()).getStreamFromGlobalPool(on), id, handle);
  });
}

// Makes the stream with the given id libtorch's current stream on this thread; `before` receives the id of
// the previous one.
char* rlt_exchange_stream(int64_t device, int64_t id, int64_t* before) {
  return rlt::guarded([&] {
    const c10::Device on = rlt::cuda_device(device);
    *before = VirtualGuardImpl(on.type()).exchangeStream(c10::Stream(c10::Stream::UNSAFE, on, id)).id();
  });
}
}
