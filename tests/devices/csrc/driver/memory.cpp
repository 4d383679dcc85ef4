// Memory of the devices. A device's memory is one nameless file, mapped twice: at the addresses that programs know,
// which fault when the host touches them, and where device work finds it. So no operator has to open and close
// anything.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core.h"

namespace stand_in {
namespace {

// What libtorch's allocator rounds to.
constexpr size_t ALIGNMENT = 512;
// New memory holds bytes that are no number in any floating type, as far as this; none of it may be read before it is
// written.
constexpr size_t POISONED = 1 << 20;
// Freed memory of this size is given back to the machine.
constexpr size_t LARGE = 1 << 20;

size_t rounded(size_t n, size_t to) { return (n + to - 1) / to * to; }

void reserve(Device& device) {
  // Twice the memory, so that gaps do not refuse what the count allows: a GPU's pages need not lie side by side.
  device.region = rounded(std::max(device.memory, size_t(1) << 20) * 2, size_t(1) << 21);
  device.file = memfd_create("stand-in device", MFD_CLOEXEC);
  const int flags = MAP_SHARED | MAP_NORESERVE;
  if (device.file < 0 || ftruncate(device.file, off_t(device.region)) != 0) abort();
  void* base = mmap(nullptr, device.region, PROT_NONE, flags, device.file, 0);
  void* alias = mmap(nullptr, device.region, PROT_READ | PROT_WRITE, flags, device.file, 0);
  if (base == MAP_FAILED || alias == MAP_FAILED) {
    perror("memory of a stand-in device");
    abort();
  }
  device.base = static_cast<char*>(base), device.alias = static_cast<char*>(alias);
  device.gaps[device.base] = device.region;
}

// With the lock held.
void count_peak(Device& device) {
  device.peak = std::max(device.peak, device.used - std::min(device.used, device.kept));
  device.peak_reserved = std::max(device.peak_reserved, device.used);
}

int num_open = 0;
std::mutex opening;

void protect(int mode) {
  for (auto& device : core().devices)
    if (device->base != nullptr) mprotect(device->base, device->region, mode);
}

}  // namespace

CUresult allocate(Device& device, size_t num_bytes, void** out) {
  std::lock_guard<std::mutex> guard(core().lock);
  if (device.base == nullptr) reserve(device);
  const size_t size = rounded(num_bytes, ALIGNMENT);
  if (size == 0) return CUDA_ERROR_INVALID_VALUE;
  if (size > device.memory - std::min(device.memory, device.used + core().settings.taken))
    return CUDA_ERROR_OUT_OF_MEMORY;
  auto gap = device.gaps.begin();
  while (gap != device.gaps.end() && gap->second < size) ++gap;
  if (gap == device.gaps.end()) return CUDA_ERROR_OUT_OF_MEMORY;
  char* address = gap->first;
  const size_t left = gap->second - size;
  device.gaps.erase(gap);
  if (left > 0) device.gaps[address + size] = left;
  device.taken[address] = size;
  device.used += size;
  count_peak(device);
  std::memset(device.alias + (address - device.base), 0xff, std::min(size, POISONED));
  *out = address;
  return CUDA_SUCCESS;
}

bool release(void* address) {
  Device* device = device_of(address);
  if (device == nullptr) return false;
  std::lock_guard<std::mutex> guard(core().lock);
  const auto found = device->taken.find(static_cast<char*>(address));
  if (found == device->taken.end()) return false;
  char* from = found->first;
  size_t size = found->second;
  device->taken.erase(found);
  device->used -= size;
  if (size >= LARGE)
    fallocate(device->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from - device->base, off_t(size));
  // Joined with its neighbours.
  auto after = device->gaps.find(from + size);
  if (after != device->gaps.end()) {
    size += after->second;
    device->gaps.erase(after);
  }
  auto before = device->gaps.lower_bound(from);
  if (before != device->gaps.begin() && (--before)->first + before->second == from) {
    before->second += size;
  } else {
    device->gaps[from] = size;
  }
  return true;
}

Device* device_of(const void* address) {
  const char* at = static_cast<const char*>(address);
  for (auto& device : core().devices)
    if (device->base != nullptr && at >= device->base && at < device->base + device->region) return device.get();
  return nullptr;
}

bool is_within(const Device& device, const void* address, size_t num_bytes) {
  std::lock_guard<std::mutex> guard(core().lock);
  char* at = static_cast<char*>(const_cast<void*>(address));
  auto block = device.taken.upper_bound(at);
  if (block == device.taken.begin()) return false;
  --block;
  return at + num_bytes <= block->first + block->second;
}

void* alias_of(const void* address) {
  const Device* device = device_of(address);
  if (device == nullptr) return const_cast<void*>(address);
  return device->alias + (static_cast<const char*>(address) - device->base);
}

bool is_pinned(const void* address) {
  std::lock_guard<std::mutex> guard(core().lock);
  char* at = static_cast<char*>(const_cast<void*>(address));
  auto block = core().pinned.upper_bound(at);
  if (block == core().pinned.begin()) return false;
  --block;
  return at < block->first + block->second;
}

Opened::Opened() {
  std::lock_guard<std::mutex> guard(opening);
  if (num_open++ == 0) protect(PROT_READ | PROT_WRITE);
}
Opened::~Opened() {
  std::lock_guard<std::mutex> guard(opening);
  if (--num_open == 0) protect(PROT_NONE);
}

}  // namespace stand_in

using namespace stand_in;

extern "C" {
void* rlt_stand_in_alias(const void* address) { return alias_of(address); }
int rlt_stand_in_device_of(const void* address) {
  const Device* device = device_of(address);
  return device == nullptr ? -1 : device->idx;
}
bool rlt_stand_in_is_pinned(const void* address) { return is_pinned(address); }
CUresult rlt_stand_in_allocate(int device, size_t num_bytes, void** out) {
  return allocate(*core().devices[size_t(device)], num_bytes, out);
}
void rlt_stand_in_release(void* address) { release(address); }
void rlt_stand_in_kept(int device, int64_t num_bytes) {
  std::lock_guard<std::mutex> guard(core().lock);
  Device& of = *core().devices[size_t(device)];
  of.kept = size_t(int64_t(of.kept) + num_bytes);
  count_peak(of);
}

CUresult cuMemAlloc(CUdeviceptr* out, size_t num_bytes) {
  if (CUresult refused = ready()) return refused;
  if (CUresult refused = refuse_while_capturing()) return refused;
  if (current_device == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  void* address = nullptr;
  const CUresult result = allocate(*current_device, num_bytes, &address);
  *out = reinterpret_cast<CUdeviceptr>(address);
  return result;
}

// Waits for the device, as the driver does.
CUresult cuMemFree(CUdeviceptr address) {
  if (CUresult refused = ready()) return refused;
  if (address == 0) return CUDA_SUCCESS;
  if (CUresult refused = refuse_while_capturing()) return refused;
  Device* device = device_of(reinterpret_cast<void*>(address));
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  rlt_stand_in_count(RLT_WAIT, 0);
  if (CUresult failed = drain_device(*device)) return failed;
  return release(reinterpret_cast<void*>(address)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetInfo(size_t* free_bytes, size_t* total) {
  if (CUresult refused = ready()) return refused;
  if (current_device == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  std::lock_guard<std::mutex> guard(core().lock);
  *total = current_device->memory;
  *free_bytes = *total - std::min(*total, current_device->used + core().settings.taken);
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** out, size_t num_bytes, unsigned) {
  if (CUresult refused = ready()) return refused;
  if (CUresult refused = refuse_while_capturing()) return refused;
  if (num_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  void* address = std::aligned_alloc(4096, rounded(num_bytes, 4096));
  if (address == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  std::lock_guard<std::mutex> guard(core().lock);
  core().pinned[static_cast<char*>(address)] = rounded(num_bytes, 4096);
  *out = address;
  return CUDA_SUCCESS;
}
CUresult cuMemAllocHost(void** out, size_t num_bytes) { return cuMemHostAlloc(out, num_bytes, 0); }

CUresult cuMemFreeHost(void* address) {
  if (CUresult refused = ready()) return refused;
  for (auto& device : core().devices)
    if (CUresult failed = drain_device(*device)) return failed;
  {
    std::lock_guard<std::mutex> guard(core().lock);
    if (core().pinned.erase(static_cast<char*>(address)) == 0) return CUDA_ERROR_INVALID_VALUE;
  }
  std::free(address);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr* out, void* address, unsigned) {
  if (CUresult refused = ready()) return refused;
  if (!is_pinned(address)) return CUDA_ERROR_INVALID_VALUE;
  *out = reinterpret_cast<CUdeviceptr>(address);
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* out, CUpointer_attribute attribute, CUdeviceptr address) {
  if (CUresult refused = ready()) return refused;
  const void* at = reinterpret_cast<const void*>(address);
  const Device* device = device_of(at);
  if (device == nullptr && !is_pinned(at)) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(out) = device != nullptr ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(out) = device != nullptr ? device->idx : 0;
      return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}
}
