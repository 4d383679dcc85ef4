// Memory that the ranks of a communicator share.
#include "shared.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace nccl {
namespace {

size_t size_of(int num_ranks) { return sizeof(Shared) + sizeof(Channel) * size_t(num_ranks) * size_t(num_ranks); }

// Copies `n` bytes, of which the ring's end may lie in the middle.
template <class Copy>
void around(uint64_t position, size_t n, Copy copy) {
  const size_t at = position % CHANNEL_BYTES, first = std::min(n, CHANNEL_BYTES - at);
  copy(at, 0, first);
  if (n > first) copy(0, first, n - first);
}

}  // namespace

size_t Channel::write(const char* from, size_t n) {
  const uint64_t end = written.load(std::memory_order_relaxed);
  n = std::min(n, CHANNEL_BYTES - size_t(end - read.load(std::memory_order_acquire)));
  around(end, n, [&](size_t at, size_t offset, size_t len) { std::memcpy(bytes + at, from + offset, len); });
  written.store(end + n, std::memory_order_release);
  return n;
}

size_t Channel::take(char* into, size_t n) {
  const uint64_t begin = read.load(std::memory_order_relaxed);
  n = std::min(n, size_t(written.load(std::memory_order_acquire) - begin));
  around(begin, n, [&](size_t at, size_t offset, size_t len) { std::memcpy(into + offset, bytes + at, len); });
  read.store(begin + n, std::memory_order_release);
  return n;
}

// The first process creates it; its bytes begin as zeros, which is an empty communicator.
Shared* open_shared(const std::string& name, int num_ranks, std::string& error) {
  const int file = shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  void* memory = MAP_FAILED;
  if (file >= 0 && ftruncate(file, off_t(size_of(num_ranks))) == 0)
    memory = mmap(nullptr, size_of(num_ranks), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) error = "shared memory " + name + ": " + std::strerror(errno);
  if (file >= 0) close(file);
  return memory == MAP_FAILED ? nullptr : static_cast<Shared*>(memory);
}

void close_shared(Shared* shared, int num_ranks) { munmap(shared, size_of(num_ranks)); }
void forget_shared(const std::string& name) { shm_unlink(name.c_str()); }

}  // namespace nccl
