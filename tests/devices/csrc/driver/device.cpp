// The devices themselves: how many there are and what they say about themselves, contexts, and errors.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core.h"

namespace stand_in {
namespace {

int64_t number(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

Settings settings_from_environment() {
  Settings s;
  s.num_devices = int(std::min<int64_t>(number("RLT_STAND_IN_DEVICES", s.num_devices), RLT_MOST_DEVICES));
  s.memory = size_t(number("RLT_STAND_IN_MEMORY", int64_t(s.memory)));
  s.taken = size_t(number("RLT_STAND_IN_TAKEN", 0));
  s.driver_version = int(number("RLT_STAND_IN_DRIVER", s.driver_version));
  s.compute_capability = int(number("RLT_STAND_IN_ARCH", s.compute_capability));
  s.multiprocessors = int(number("RLT_STAND_IN_MULTIPROCESSORS", s.multiprocessors));
  s.capture_failure = CUresult(number("RLT_STAND_IN_CAPTURE_FAILURE", s.capture_failure));
  // `<launches>:<CUresult>`
  if (const char* failure = std::getenv("RLT_STAND_IN_FAILURE")) {
    char* rest = nullptr;
    s.failing_launch = std::strtoll(failure, &rest, 10);
    if (*rest == ':') s.failure = CUresult(std::atoi(rest + 1));
  }
  return s;
}

}  // namespace

thread_local Device* current_device = nullptr;
thread_local bool is_in_host_function = false;

Core::Core() : settings(settings_from_environment()) {
  for (int idx = 0; idx < settings.num_devices; ++idx) {
    auto device = std::make_unique<Device>();
    device->idx = idx, device->memory = settings.memory;
    device->default_stream = std::make_unique<Stream>();
    device->default_stream->device = device.get();
    devices.push_back(std::move(device));
  }
}

Core& core() {
  static Core* made = new Core;
  return *made;
}

CUresult ready() {
  if (is_in_host_function) return CUDA_ERROR_NOT_PERMITTED;
  return core().failure;
}

void fail(CUresult failure, const std::string& cause) {
  CUresult none = CUDA_SUCCESS;
  if (core().failure.compare_exchange_strong(none, failure))
    std::fprintf(stderr, "stand-in device: error %d: %s\n", int(failure), cause.c_str());
}

}  // namespace stand_in

using namespace stand_in;

namespace {

// What lies below the current device on a thread's stack of contexts.
thread_local std::vector<Device*> covered_devices;

// Device numbers are handles; contexts are the devices' own.
Device* device_at(CUdevice idx) {
  auto& devices = core().devices;
  return idx < 0 || size_t(idx) >= devices.size() ? nullptr : devices[size_t(idx)].get();
}

int attribute_of(CUdevice_attribute attribute) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return core().settings.compute_capability / 10;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return core().settings.compute_capability % 10;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return core().settings.multiprocessors;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return 2048;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return 48 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return 227 << 10;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return 228 << 10;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING: return 1;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE:
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1000000;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return 64;
    default: return 0;
  }
}

struct Failure {
  CUresult result;
  const char *name, *text;
};
constexpr Failure FAILURES[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {CUDA_ERROR_FILE_NOT_FOUND, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"},
    {CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {CUDA_ERROR_ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {CUDA_ERROR_LAUNCH_TIMEOUT, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {CUDA_ERROR_HARDWARE_STACK_ERROR, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {CUDA_ERROR_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {CUDA_ERROR_STREAM_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE",
     "operation would result in a merge of separate capture sequences"},
    {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",
     "capture was not ended in the same stream as it began"},
    {CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",
     "capturing stream has unjoined work"},
    {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",
     "dependency created on uncaptured work in another stream"},
    {CUDA_ERROR_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT",
     "operation not permitted on an event last recorded in a capturing stream"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

CUresult describe(CUresult result, const char** out, const char* Failure::*part) {
  for (const Failure& failure : FAILURES)
    if (failure.result == result) return *out = failure.*part, CUDA_SUCCESS;
  *out = nullptr;
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

extern "C" {
CUresult rlt_stand_in_failure() { return core().failure; }

CUresult cuInit(unsigned) { return core().devices.empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* out) { return *out = core().settings.driver_version, CUDA_SUCCESS; }
CUresult cuGetErrorString(CUresult result, const char** out) { return describe(result, out, &Failure::text); }
CUresult cuGetErrorName(CUresult result, const char** out) { return describe(result, out, &Failure::name); }

CUresult cuDeviceGetCount(int* out) { return *out = int(core().devices.size()), CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice* out, int idx) {
  if (device_at(idx) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return *out = idx, CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* out, int size, CUdevice idx) {
  if (device_at(idx) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(out, size_t(size), "Stand-in device of CPU memory");
  return CUDA_SUCCESS;
}
CUresult cuDeviceTotalMem(size_t* out, CUdevice idx) {
  const Device* device = device_at(idx);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return *out = device->memory, CUDA_SUCCESS;
}
CUresult cuDeviceGetUuid(CUuuid* out, CUdevice idx) {
  if (device_at(idx) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::memcpy(out->bytes, "rlt-stand-in-", 13);
  std::memset(out->bytes + 13, 0, 2);
  out->bytes[15] = char(idx);
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char* out, int size, CUdevice idx) {
  if (device_at(idx) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(out, size_t(size), "0000:%02x:00.0", unsigned(idx + 1));
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* out, CUdevice_attribute attribute, CUdevice idx) {
  if (device_at(idx) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *out = attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID ? idx + 1 : attribute_of(attribute);
  return CUDA_SUCCESS;
}
CUresult cuDeviceCanAccessPeer(int* out, CUdevice one, CUdevice other) {
  if (device_at(one) == nullptr || device_at(other) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return *out = one != other, CUDA_SUCCESS;
}
CUresult cuDeviceGetP2PAttribute(int* out, CUdevice_P2PAttribute attribute, CUdevice one, CUdevice other) {
  if (device_at(one) == nullptr || device_at(other) == nullptr || one == other) return CUDA_ERROR_INVALID_DEVICE;
  *out = attribute == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* out, CUdevice idx) {
  if (CUresult refused = ready()) return refused;
  Device* device = device_at(idx);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return *out = reinterpret_cast<CUcontext>(device), CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice idx) {
  return device_at(idx) == nullptr ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxGetState(CUdevice idx, unsigned* flags, int* is_active) {
  if (device_at(idx) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return *flags = 0, *is_active = 1, CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
  if (CUresult refused = ready()) return refused;
  return current_device = reinterpret_cast<Device*>(context), CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* out) { return *out = reinterpret_cast<CUcontext>(current_device), CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice* out) {
  if (current_device == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return *out = current_device->idx, CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent(CUcontext context) {
  if (CUresult refused = ready()) return refused;
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  covered_devices.push_back(current_device);
  return current_device = reinterpret_cast<Device*>(context), CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* out) {
  if (current_device == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (out != nullptr) *out = reinterpret_cast<CUcontext>(current_device);
  current_device = covered_devices.empty() ? nullptr : covered_devices.back();
  if (!covered_devices.empty()) covered_devices.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, CUDA_SUCCESS; }
}
