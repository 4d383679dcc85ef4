// Allocator of tensors that caches blocks as libtorch's does. A freed block serves only requests of the stream that it
// was allocated on until the cache is emptied, so reserved bytes exceed allocated ones. A block that other streams have
// recorded becomes free once they have passed; a missing record shows as wrong values. Unlike libtorch's, segments have
// the size of the request, and every larger block is split.
#include <c10/core/CachingDeviceAllocator.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "torch_cuda.h"

namespace torch_cuda {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;

// Largest size of a small request. Small and large requests have segments of their own.
constexpr size_t SMALL = 1 << 20;

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

enum class State { Used, Awaited, Free };

// A piece of a segment. Blocks of a segment lie one after the other without gaps.
struct Block {
  int device;
  CUstream stream;
  char* segment;
  bool is_small;
  size_t size;
  State state = State::Used;
  // Other streams that use it.
  std::set<CUstream> users;
  // Position that each stream must pass before the memory may be written.
  std::map<CUstream, uint64_t> until;

  bool is_over() const {
    for (const auto& [stream, position] : until)
      if (rlt_stand_in_passed(stream) < position) return false;
    return true;
  }
};
using Blocks = std::map<char*, Block>;
// Device, stream, and whether blocks are small.
using Pool = std::tuple<int, CUstream, bool>;

struct Memory final : c10::DeviceAllocator {
  std::mutex lock;
  Blocks blocks;
  // Free blocks by size, and freed blocks that other streams may still use.
  std::map<Pool, std::set<std::pair<size_t, char*>>> kept;
  std::set<char*> awaited;
  DeviceStats stats[RLT_MOST_DEVICES];

  static void release(void* address);
  static void nothing(void*) {}

  c10::DataPtr allocate(size_t n) override {
    const int idx = current_device();
    const c10::Device device(c10::kCUDA, c10::DeviceIndex(idx));
    if (n == 0) return {nullptr, nullptr, &nothing, device};
    const CUstream stream = current_handle(idx);
    forbid_in_capture(size_text(n) + " of device memory were asked for");
    check_devices();
    char* address = take(idx, rounded(n), stream);
    std::lock_guard<std::mutex> guard(lock);
    stats[idx].requested_bytes[0].increase(n);
    return {address, address, &release, device};
  }

  char* take(int device, size_t n, CUstream stream) {
    sweep();
    if (char* address = from_cache(device, n, stream)) return address;
    if (char* address = from_device(device, n, stream)) return address;
    ++stats[device].num_alloc_retries;
    emptyCache({0, 0});
    if (char* address = from_device(device, n, stream)) return address;
    ++stats[device].num_ooms;
    const auto [free_bytes, total] = getMemoryInfo(c10::DeviceIndex(device));
    const size_t allocated = size_t(stats[device].allocated_bytes[0].current);
    TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", size_text(n), ". GPU ", device,
                     " has a total capacity of ", size_text(total), " of which ", size_text(free_bytes),
                     " is free. Of the allocated memory ", size_text(allocated), " is allocated by PyTorch.");
  }

  // The smallest kept block of the stream that is large enough.
  char* from_cache(int device, size_t n, CUstream stream) {
    std::unique_lock<std::mutex> guard(lock);
    const auto& pool = kept[{device, stream, n <= SMALL}];
    const auto best = pool.lower_bound({n, nullptr});
    if (best == pool.end()) return nullptr;
    char* address = best->second;
    const auto found = blocks.find(address);
    forget(found);
    split(found, n);
    Block& block = found->second;
    block.state = State::Used;
    const bool is_over = block.is_over();
    block.until.clear();
    allocated(block, 1);
    rlt_stand_in_kept(device, -int64_t(n));
    guard.unlock();
    // Poisoned like new memory, in stream order.
    if (!is_over) check(rlt_stand_in_drain(stream), "reusing memory");
    std::memset(rlt_stand_in_alias(address), 0xff, std::min(n, SMALL));
    return address;
  }

  static Pool pool_of(const Block& block) { return {block.device, block.stream, block.is_small}; }
  void keep(Blocks::iterator found) { kept[pool_of(found->second)].insert({found->second.size, found->first}); }
  void forget(Blocks::iterator found) { kept[pool_of(found->second)].erase({found->second.size, found->first}); }

  // Splits a free block; the bytes after the first `n` stay free.
  void split(Blocks::iterator found, size_t n) {
    Block rest = found->second;
    if (rest.size == n) return;
    rest.size -= n, found->second.size = n;
    keep(blocks.emplace(found->first + n, std::move(rest)).first);
  }

  char* from_device(int device, size_t n, CUstream stream) {
    void* made = nullptr;
    if (rlt_stand_in_allocate(device, n, &made) != CUDA_SUCCESS) return nullptr;
    char* address = static_cast<char*>(made);
    std::lock_guard<std::mutex> guard(lock);
    const Block block{device, stream, address, n <= SMALL, n};
    stats[device].reserved_bytes[0].increase(n);
    allocated(block, 1);
    blocks.emplace(address, block);
    return address;
  }

  // With the lock held.
  void allocated(const Block& block, int by) {
    auto& s = stats[block.device];
    for (auto* of : {&s.allocated_bytes, &s.active_bytes})
      by > 0 ? (*of)[0].increase(block.size) : (*of)[0].decrease(block.size);
    by > 0 ? s.allocation[0].increase(1) : s.allocation[0].decrease(1);
  }

  void give_back(void* address) {
    std::lock_guard<std::mutex> guard(lock);
    const auto found = blocks.find(static_cast<char*>(address));
    if (found == blocks.end()) return;
    Block& block = found->second;
    allocated(block, -1);
    rlt_stand_in_kept(block.device, int64_t(block.size));
    const bool is_awaited = !block.users.empty();
    block.users.insert(block.stream);
    for (CUstream stream : block.users) block.until[stream] = rlt_stand_in_position(stream);
    block.users.clear();
    block.state = State::Awaited;
    if (is_awaited) {
      awaited.insert(found->first);
    } else {
      become_free(found);
    }
  }

  // Merges a block with adjacent free blocks of its segment. With the lock held.
  void become_free(Blocks::iterator found) {
    found->second.state = State::Free;
    if (const auto next = std::next(found); next != blocks.end() && is_joined(found, next)) absorb(found, next);
    if (found != blocks.begin()) {
      const auto before = std::prev(found);
      if (is_joined(before, found)) {
        forget(before);
        absorb(before, found);
        found = before;
      }
    }
    keep(found);
  }
  static bool is_joined(Blocks::iterator one, Blocks::iterator next) {
    return one->second.state == State::Free && next->second.state == State::Free &&
           one->second.segment == next->second.segment;
  }
  void absorb(Blocks::iterator one, Blocks::iterator next) {
    forget(next);
    one->second.size += next->second.size;
    for (const auto& [stream, position] : next->second.until) {
      uint64_t& until = one->second.until[stream];
      until = std::max(until, position);
    }
    blocks.erase(next);
  }

  // Blocks whose other users are done become free.
  void sweep() {
    std::lock_guard<std::mutex> guard(lock);
    for (auto at = awaited.begin(); at != awaited.end();) {
      const auto found = blocks.find(*at);
      if (!found->second.is_over()) {
        ++at;
        continue;
      }
      at = awaited.erase(at);
      become_free(found);
    }
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override {
    check(cuMemcpyDtoD(CUdeviceptr(to), CUdeviceptr(from), n), "copying on a device");
  }
  bool initialized() override { return true; }

  // Segments without a used block go back to their device, once streams are done with them.
  void emptyCache(c10::MempoolId_t) override {
    forbid_in_capture("the cache is emptied");
    std::set<CUstream> streams;
    {
      std::lock_guard<std::mutex> guard(lock);
      for (const auto& [_, block] : blocks)
        if (block.state != State::Used)
          for (const auto& [stream, position] : block.until)
            if (rlt_stand_in_passed(stream) < position) streams.insert(stream);
    }
    for (CUstream stream : streams) check(rlt_stand_in_drain(stream), "emptying the cache");
    sweep();
    std::lock_guard<std::mutex> guard(lock);
    for (auto block = blocks.begin(); block != blocks.end();) {
      const auto next = std::next(block);
      const bool is_whole = block->first == block->second.segment &&
                            (next == blocks.end() || next->second.segment != block->second.segment);
      if (is_whole && block->second.state == State::Free) {
        stats[block->second.device].reserved_bytes[0].decrease(block->second.size);
        rlt_stand_in_release(block->first);
        rlt_stand_in_kept(block->second.device, -int64_t(block->second.size));
        forget(block);
        blocks.erase(block);
      }
      block = next;
    }
  }

  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    std::lock_guard<std::mutex> guard(lock);
    const auto found = blocks.find(static_cast<char*>(data.get_context()));
    const CUstream handle = handle_of(stream);
    if (found != blocks.end() && handle != found->second.stream) found->second.users.insert(handle);
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

void forbid_in_capture(const std::string& act) {
  TORCH_CHECK(rlt_stand_in_forbid_in_capture() == CUDA_SUCCESS,
              "CUDA error: operation not permitted when stream is capturing: ", act);
}

}  // namespace torch_cuda
