// Devices, streams and events behind the interface by which libtorch uses them.
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "torch_cuda.h"

namespace torch_cuda {
namespace {

constexpr size_t POOL = 32;
constexpr int64_t DEFAULT = 0;

// Streams of a device by their number less one; the first so many are the pool's, those after them were asked for.
struct Streams {
  std::mutex lock;
  std::vector<CUstream> handles;
  std::atomic<size_t> next{0};
};

Streams& streams_of(int device) {
  static std::array<Streams, RLT_MOST_DEVICES> streams;
  return streams[size_t(device)];
}

CUstream new_handle(int device, int priority) {
  const int before = current_device();
  use_device(device);
  CUstream handle = nullptr;
  check(cuStreamCreateWithPriority(&handle, CU_STREAM_NON_BLOCKING, priority), "making a stream");
  use_device(before);
  return handle;
}

c10::Stream stream_at(int device, int64_t number) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, c10::DeviceIndex(device)), number);
}

c10::Stream new_stream(int device, int priority) {
  Streams& streams = streams_of(device);
  std::lock_guard<std::mutex> guard(streams.lock);
  while (streams.handles.size() < POOL) streams.handles.push_back(nullptr);
  streams.handles.push_back(new_handle(device, priority));
  return stream_at(device, int64_t(streams.handles.size()));
}

c10::Stream pool_stream(int device, int priority) {
  Streams& streams = streams_of(device);
  const size_t at = streams.next++ % POOL;
  std::lock_guard<std::mutex> guard(streams.lock);
  while (streams.handles.size() < POOL) streams.handles.push_back(nullptr);
  if (streams.handles[at] == nullptr) streams.handles[at] = new_handle(device, priority);
  return stream_at(device, int64_t(at) + 1);
}

int64_t& current_number(int device) {
  static thread_local std::array<int64_t, RLT_MOST_DEVICES> numbers{};
  return numbers[size_t(device)];
}

int index_of(c10::Device device) { return device.index() < 0 ? current_device() : device.index(); }

CUevent event_of(void* event) { return static_cast<CUevent>(event); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device getDevice() const override { return {c10::kCUDA, c10::DeviceIndex(current_device())}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    use_device(index_of(device));
    return before;
  }
  void setDevice(c10::Device device) const override { use_device(index_of(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { use_device(index_of(device)); }
  c10::DeviceIndex deviceCount() const noexcept override { return c10::DeviceIndex(num_devices()); }

  c10::Stream getStream(c10::Device device) const override { return current_stream(index_of(device)); }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_at(index_of(device), DEFAULT); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool is_high) const override {
    return pool_stream(index_of(device), is_high ? -1 : 0);
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return new_stream(index_of(device), priority);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = current_stream(stream.device_index());
    current_number(stream.device_index()) = stream.id();
    return before;
  }
  // The default stream's handle is null, as in CUDA: it means the stream of whichever device is current.
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return stream.id() == DEFAULT ? nullptr : handle_of(stream);
  }
  bool queryStream(const c10::Stream& stream) const override { return is_done(cuStreamQuery(handle_of(stream))); }
  void synchronizeStream(const c10::Stream& stream) const override {
    check(cuStreamSynchronize(handle_of(stream)), "waiting for a stream");
  }
  void synchronizeDevice(c10::DeviceIndex device) const override {
    const int before = current_device();
    use_device(device);
    check(cuCtxSynchronize(), "waiting for a device");
    use_device(before);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator().recordStream(data, stream);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    CUevent made = event_of(*event);
    if (made == nullptr) check(cuEventCreate(&made, CU_EVENT_DISABLE_TIMING), "making an event");
    *event = made;
    check(cuEventRecord(made, handle_of(stream)), "recording an event");
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) check(cuStreamWaitEvent(handle_of(stream), event_of(event), 0), "following an event");
  }
  bool queryEvent(void* event) const override { return event == nullptr || is_done(cuEventQuery(event_of(event))); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) check(cuEventSynchronize(event_of(event)), "waiting for an event");
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    if (event != nullptr) cuEventDestroy(event_of(event));
  }
  double elapsedTime(void* from, void* to, c10::DeviceIndex) const override {
    float milliseconds = 0;
    check(cuEventElapsedTime(&milliseconds, event_of(from), event_of(to)), "timing events");
    return milliseconds;
  }

 private:
  static bool is_done(CUresult result) {
    if (result != CUDA_ERROR_NOT_READY) check(result, "asking whether work is done");
    return result == CUDA_SUCCESS;
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard);

}  // namespace

void check(CUresult result, const char* act) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  cuGetErrorString(result, &text);
  TORCH_CHECK(false, "CUDA error: ", text != nullptr ? text : "unknown", " (", act, ")");
}

void check_devices() { check(rlt_stand_in_failure(), "found by the operator after it"); }

int num_devices() {
  int version = 0, count = 0;
  cuDriverGetVersion(&version);
  if (version < 13000) {
    TORCH_WARN_ONCE("The NVIDIA driver on your system is too old (found version ", version, ").");
    return 0;
  }
  return cuDeviceGetCount(&count) == CUDA_SUCCESS ? count : 0;
}

int current_device() {
  CUdevice device = 0;
  return cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : 0;
}

void use_device(int idx) {
  CUcontext context = nullptr;
  if (cuDevicePrimaryCtxRetain(&context, idx) == CUDA_SUCCESS) cuCtxSetCurrent(context);
}

CUstream handle_of(const c10::Stream& stream) {
  if (stream.id() == DEFAULT) return rlt_stand_in_default_stream(stream.device_index());
  Streams& streams = streams_of(stream.device_index());
  std::lock_guard<std::mutex> guard(streams.lock);
  return streams.handles.at(size_t(stream.id() - 1));
}

c10::Stream current_stream(int device) { return stream_at(device, current_number(device)); }

}  // namespace torch_cuda
