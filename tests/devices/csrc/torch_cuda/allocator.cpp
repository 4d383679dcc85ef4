// Memory of tensors. A freed piece is reused once the stream that it was allocated on, and those that
// recorded its use, have passed the moment at which it was freed; no other stream is checked. So a forgotten
// record of a use shows as wrong numbers.
#include <c10/core/CachingDeviceAllocator.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <set>

#include "torch_cuda.h"

namespace torch_cuda {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;

size_t rounded(size_t n) { return (n + 511) / 512 * 512; }

std::string size_text(size_t n) {
  char text[64];
  if (n < (size_t(1) << 20)) {
    std::snprintf(text, sizeof text, "%.2f KiB", double(n) / (1 << 10));
  } else if (n < (size_t(1) << 30)) {
    std::snprintf(text, sizeof text, "%.2f MiB", double(n) / (1 << 20));
  } else {
    std::snprintf(text, sizeof text, "%.2f GiB", double(n) / (1 << 30));
  }
  return text;
}

struct Piece {
  int device;
  size_t size;
  std::set<CUstream> streams;
};

// A freed piece and how far streams must come before it is reused.
struct Freed {
  void* address;
  std::map<CUstream, uint64_t> until;

  bool is_over() const {
    for (const auto& [stream, position] : until)
      if (rlt_stand_in_passed(stream) < position) return false;
    return true;
  }
};

struct Memory final : c10::DeviceAllocator {
  std::mutex lock;
  std::map<void*, Piece> pieces;
  std::vector<Freed> freed;
  DeviceStats stats[RLT_MOST_DEVICES];

  static void release(void* address);
  static void nothing(void*) {}

  c10::DataPtr allocate(size_t n) override {
    const int idx = current_device();
    const c10::Device device(c10::kCUDA, c10::DeviceIndex(idx));
    if (n == 0) return {nullptr, nullptr, &nothing, device};
    const CUstream stream = current_handle(idx);
    TORCH_CHECK(!rlt_stand_in_is_capturing(stream), "CUDA error: operation not permitted when stream is capturing: ",
                size_text(n), " of device memory were asked for");
    check_devices();
    void* address = take(idx, n, stream);
    std::lock_guard<std::mutex> guard(lock);
    pieces[address] = {idx, rounded(n), {stream}};
    auto& s = stats[idx];
    for (auto* of : {&s.allocated_bytes, &s.active_bytes, &s.reserved_bytes}) (*of)[0].increase(rounded(n));
    s.requested_bytes[0].increase(n);
    s.allocation[0].increase(1);
    return {address, address, &release, device};
  }

  void* take(int device, size_t n, CUstream stream) {
    void* address = nullptr;
    sweep();
    if (rlt_stand_in_allocate(device, n, &address) == CUDA_SUCCESS) return address;
    // What streams still use may be free afterwards.
    ++stats[device].num_alloc_retries;
    check(rlt_stand_in_drain(stream), "waiting for memory");
    emptyCache({0, 0});
    if (rlt_stand_in_allocate(device, n, &address) == CUDA_SUCCESS) return address;
    ++stats[device].num_ooms;
    const auto [free_bytes, total] = getMemoryInfo(c10::DeviceIndex(device));
    const size_t allocated = size_t(stats[device].allocated_bytes[0].current);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", size_text(n), ". GPU ", device,
                     " has a total capacity of ", size_text(total), " of which ", size_text(free_bytes),
                     " is free. Of the allocated memory ", size_text(allocated), " is allocated by PyTorch.");
  }

  void give_back(void* address) {
    std::lock_guard<std::mutex> guard(lock);
    const auto found = pieces.find(address);
    if (found == pieces.end()) return;
    auto& s = stats[found->second.device];
    for (auto* of : {&s.allocated_bytes, &s.active_bytes, &s.reserved_bytes}) (*of)[0].decrease(found->second.size);
    s.allocation[0].decrease(1);
    Freed piece{address, {}};
    for (CUstream stream : found->second.streams) piece.until[stream] = rlt_stand_in_position(stream);
    pieces.erase(found);
    if (piece.is_over()) {
      rlt_stand_in_release(address);
    } else {
      freed.push_back(std::move(piece));
    }
  }

  void sweep() {
    std::lock_guard<std::mutex> guard(lock);
    for (size_t i = 0; i < freed.size();) {
      if (freed[i].is_over()) {
        rlt_stand_in_release(freed[i].address);
        freed[i] = std::move(freed.back());
        freed.pop_back();
      } else {
        ++i;
      }
    }
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override {
    check(cuMemcpyDtoD(CUdeviceptr(to), CUdeviceptr(from), n), "copying on a device");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    std::set<CUstream> awaited;
    {
      std::lock_guard<std::mutex> guard(lock);
      for (const Freed& piece : freed)
        for (const auto& [stream, _] : piece.until) awaited.insert(stream);
    }
    for (CUstream stream : awaited) check(rlt_stand_in_drain(stream), "emptying the cache");
    sweep();
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    std::lock_guard<std::mutex> guard(lock);
    const auto found = pieces.find(data.get_context());
    if (found != pieces.end()) found->second.streams.insert(handle_of(stream));
  }
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> guard(lock);
    return stats[device];
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> guard(lock);
    for (auto* of : all(stats[device])) (*of)[0].reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> guard(lock);
    for (auto* of : all(stats[device])) (*of)[0].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const int before = current_device();
    use_device(device);
    size_t free_bytes = 0, total = 0;
    check(cuMemGetInfo(&free_bytes, &total), "asking for a device's memory");
    use_device(before);
    return {free_bytes, total};
  }

  static std::array<c10::CachingAllocator::StatArray*, 5> all(DeviceStats& s) {
    return {&s.allocated_bytes, &s.active_bytes, &s.reserved_bytes, &s.requested_bytes, &s.allocation};
  }
};

// Never freed: tensors may be freed at the very end.
Memory& memory() {
  static Memory* made = new Memory;
  return *made;
}

void Memory::release(void* address) { memory().give_back(address); }

struct Registered {
  Registered() { c10::SetAllocator(c10::kCUDA, &memory()); }
} registered;

}  // namespace

c10::DeviceAllocator& device_allocator() { return memory(); }

}  // namespace torch_cuda
