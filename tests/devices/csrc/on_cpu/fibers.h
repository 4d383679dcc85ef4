// CUDA's language on a CPU: the threads of a block are fibers that one thread of the machine runs in random order. A
// fiber runs until it waits (a barrier of its block or warp), so what is missing a barrier is found by some order. Blocks
// of a grid follow each other, in random order too. A barrier that not all threads reach ends the process with a message.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include <sys/mman.h>

// No other library's function of the same name may take a kernel's place.
#define __global__ __attribute__((visibility("hidden")))
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)

namespace fibers {

constexpr unsigned WARP = 32, MAX_THREADS = 1024;
constexpr size_t STACK_BYTES = 64 << 10;
// From one stack to the next: nine lines of the cache more than its size. At equal offsets of their pages, the frames of
// all threads would share a few sets of the cache.
constexpr size_t STACK_STRIDE = STACK_BYTES + 9 * 64;

struct Index {
  unsigned x, y, z;
};

// Stores the callee-saved registers on the stack, the stack pointer in `*from`, and goes on at `to`.
extern "C" void rlt_fiber_switch(void** from, void* to);

struct Fiber {
  void* stack_pointer;
  char* stack;  // null before the start
  Index index;
};

// Threads that wait for each other.
struct Group {
  unsigned size, arrived, generation, num_waiting;
  unsigned waiting[MAX_THREADS];
};

struct Block {
  Fiber threads[MAX_THREADS];
  Group all, warps[MAX_THREADS / WARP];
  // The values that the lanes of a warp exchange, of two generations: no lane is further ahead than one.
  uint64_t shown[MAX_THREADS / WARP][2][WARP];
  unsigned ready[MAX_THREADS], num_ready, num_done, num_threads, current;
  void* scheduler;
  std::vector<char*> free_stacks;
  size_t num_stacks;
  void (*body)(void*);
  void* body_argument;
};

extern Block block;
extern Index thread_index, block_index, block_size, grid_size;
extern uint64_t order;                // state of the random order
extern unsigned char dynamic_shared[];  // of the block that runs

void wait(Group& group);

// The body of a kernel for every thread of every block; one launch at a time in a process.
void run(const unsigned grid[3], const unsigned block[3], size_t shared_bytes, void (*body)(void*), void* argument);

inline unsigned lane() { return block.current % WARP; }
inline unsigned warp() { return block.current / WARP; }

// Shows `value` to the warp and returns the place where all lanes' values lie.
template <class T>
const uint64_t* show(T value) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most eight bytes");
  Group& group = block.warps[warp()];
  uint64_t* shown = block.shown[warp()][group.generation & 1];
  shown[lane()] = 0;
  std::memcpy(&shown[lane()], &value, sizeof value);
  wait(group);
  return shown;
}

template <class T>
T shuffled(unsigned mask, T value, unsigned source) {
  if (mask != ~0u) std::abort();
  const uint64_t* shown = show(value);
  T result;
  std::memcpy(&result, &shown[source < WARP ? source : lane()], sizeof result);
  return result;
}

// Whether the calling thread's kernels reduce the values of a warp in as many exchanges as a GPU does, instead of in one:
// tests of single kernels do so in one of their orders.
extern __thread bool reduces_in_steps;

// The reduction of a warp's values, in every lane, by one exchange: the lane that arrives last combines all of them as
// exchanges at distances of 16, 8, 4, 2 and 1 lanes would, operands in the same order, so no bit differs.
template <class T, class Op>
T reduced(T value, Op op) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most eight bytes");
  Group& group = block.warps[warp()];
  uint64_t* shown = block.shown[warp()][group.generation & 1];
  std::memcpy(&shown[lane()], &value, sizeof value);
  if (group.arrived + 1 == group.size) {
    T values[WARP], combined[WARP];
    for (unsigned k = 0; k < WARP; ++k) std::memcpy(&values[k], &shown[k], sizeof value);
    for (unsigned distance = WARP / 2; distance > 0; distance /= 2) {
      for (unsigned k = 0; k < WARP; ++k) combined[k] = op(values[k], values[k ^ distance]);
      std::memcpy(values, combined, sizeof values);
    }
    for (unsigned k = 0; k < WARP; ++k) std::memcpy(&shown[k], &values[k], sizeof value);
  }
  wait(group);
  std::memcpy(&value, &shown[lane()], sizeof value);
  return value;
}

// Ends the process where a GPU would report a misaligned address.
inline void check_alignment(const void* address, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(address) % alignment == 0) return;
  std::fprintf(stderr, "kernel: %p is no multiple of %zu bytes\n", address, alignment);
  std::abort();
}

}  // namespace fibers

#define threadIdx fibers::thread_index
#define blockIdx fibers::block_index
#define blockDim fibers::block_size
#define gridDim fibers::grid_size

inline void __syncthreads() { fibers::wait(fibers::block.all); }
inline void __syncwarp(unsigned = ~0u) { fibers::wait(fibers::block.warps[fibers::warp()]); }
inline void __threadfence() {}

template <class T>
T __shfl_sync(unsigned mask, T value, int source) {
  return fibers::shuffled(mask, value, unsigned(source) % fibers::WARP);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return fibers::shuffled(mask, value, fibers::lane() ^ unsigned(bits));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta) {
  return fibers::shuffled(mask, value, fibers::lane() >= delta ? fibers::lane() - delta : fibers::lane());
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  const uint64_t* shown = fibers::show(int(predicate != 0));
  unsigned bits = 0;
  for (unsigned lane = 0; lane < fibers::WARP; ++lane) bits |= unsigned(shown[lane]) << lane;
  return bits;
}

inline int __popc(unsigned bits) { return __builtin_popcount(bits); }

template <class T>
T atomicAdd(T* at, T value) {
  const T before = *at;
  *at = T(before + value);
  return before;
}
inline unsigned atomicOr(unsigned* at, unsigned value) {
  const unsigned before = *at;
  *at = before | value;
  return before;
}

inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
// A product that no fused multiply-add swallows.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline unsigned __float_as_uint(float value) {
  unsigned bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}
inline double __longlong_as_double(long long bits) {
  double value;
  std::memcpy(&value, &bits, 8);
  return value;
}
