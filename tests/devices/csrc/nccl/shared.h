// What the ranks of a communicator share: a piece of memory with a stream of bytes from each rank to each other.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace nccl {

constexpr size_t CHANNEL_BYTES = 64 << 10;
constexpr int MOST_RANKS = 16;

// Bytes from one rank to another, in their order.
struct Channel {
  std::atomic<uint64_t> written, read;
  char bytes[CHANNEL_BYTES];

  // As many of `n` bytes as fit, or as are there.
  size_t write(const char* from, size_t n);
  size_t take(char* into, size_t n);
};

struct Shared {
  std::atomic<int> num_joined;
  // The device of each rank.
  int devices[MOST_RANKS];
  Channel channels[];
};

// The communicator's memory in this process; null with a cause in `error` where it cannot be had.
Shared* open_shared(const std::string& name, int num_ranks, std::string& error);
void close_shared(Shared* shared, int num_ranks);
// Removes its name, once all have opened it.
void forget_shared(const std::string& name);

}  // namespace nccl
