// Pinned memory of the host. Freed memory is kept for later requests, and not reused before recorded copies
// are over.
#include <map>
#include <mutex>
#include <vector>

#include "torch_cuda.h"

namespace torch_cuda {
namespace {

struct Piece {
  size_t size;
  std::map<CUstream, uint64_t> until;

  bool is_over() const {
    for (const auto& [stream, position] : until)
      if (rlt_stand_in_passed(stream) < position) return false;
    return true;
  }
};

size_t rounded(size_t n) {
  size_t size = 4096;
  while (size < n) size *= 2;
  return size;
}

struct Pinned final : c10::Allocator {
  std::mutex lock;
  std::map<char*, Piece> taken;
  std::multimap<size_t, std::pair<char*, Piece>> kept;

  static void release(void* address);

  c10::DataPtr allocate(size_t n) override {
    const c10::Device cpu(c10::kCPU);
    if (n == 0) return {nullptr, nullptr, &release, cpu};
    // libtorch asks here whether the events of freed memory are over.
    forbid_in_capture("pinned memory was asked for");
    std::lock_guard<std::mutex> guard(lock);
    char* address = from_kept(rounded(n));
    if (address == nullptr) {
      void* made = nullptr;
      check(cuMemHostAlloc(&made, rounded(n), 0), "reserving pinned memory");
      address = static_cast<char*>(made);
    }
    taken[address] = {rounded(n), {}};
    return {address, address, &release, cpu};
  }

  char* from_kept(size_t size) {
    const auto [from, to] = kept.equal_range(size);
    for (auto piece = from; piece != to; ++piece) {
      if (!piece->second.second.is_over()) continue;
      char* address = piece->second.first;
      kept.erase(piece);
      return address;
    }
    return nullptr;
  }

  void give_back(void* address) {
    std::lock_guard<std::mutex> guard(lock);
    const auto found = taken.find(static_cast<char*>(address));
    if (found == taken.end()) return;
    kept.emplace(found->second.size, std::make_pair(found->first, found->second));
    taken.erase(found);
  }

  void record(const void* address, CUstream stream) {
    std::lock_guard<std::mutex> guard(lock);
    char* at = static_cast<char*>(const_cast<void*>(address));
    auto piece = taken.upper_bound(at);
    if (piece == taken.begin()) return;
    --piece;
    if (at < piece->first + piece->second.size) piece->second.until[stream] = rlt_stand_in_position(stream);
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t n) const override { default_copy_data(to, from, n); }
};

Pinned& pinned() {
  static Pinned* made = new Pinned;
  return *made;
}

void Pinned::release(void* address) { pinned().give_back(address); }

}  // namespace

c10::Allocator& pinned_allocator() { return pinned(); }
void record_pinned(const void* address, CUstream stream) { pinned().record(address, stream); }

}  // namespace torch_cuda
