// Common code of all kernels: conversion of stored values, vectors of 16 bytes, reductions, asynchronous
// copies. nvcc compiles the sources for GPUs, and a C++ compiler compiles the same sources for tests, with
// fibers as threads. The differences are in this file.
#pragma once
#include <stdint.h>

// Defines and registers a kernel with one structure as parameter. The bounds are those of CUDA's
// __launch_bounds__: threads per block, and blocks that should fit a multiprocessor.
#define RLT_KERNEL(name, Arguments, body, ...)                                          \
  extern "C" __global__ void __launch_bounds__(__VA_ARGS__)                             \
      name(const __grid_constant__ Arguments a) {                                       \
    body(a);                                                                            \
  }                                                                                     \
  RLT_REGISTER(name)
// Defines the kernels `body<T>` for f32, bf16 and f16.
#define RLT_KERNELS(family, Arguments, body, ...)               \
  RLT_KERNEL(family##_f32, Arguments, body<float>, __VA_ARGS__) \
  RLT_KERNEL(family##_bf16, Arguments, body<bf16>, __VA_ARGS__) \
  RLT_KERNEL(family##_f16, Arguments, body<f16>, __VA_ARGS__)

#if defined(__CUDACC__)
#define RLT_REGISTER(name)
#define RLT_UNROLL _Pragma("unroll")
// Dynamic shared memory of the block, aligned to 16 bytes.
#define RLT_DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
// A GPU reports a misaligned address by itself.
#define RLT_CHECK_ALIGNED(address, alignment)
#define RLT_REDUCE_AT_ONCE(value, op)
#else
#define RLT_CHECK_ALIGNED(address, alignment) fibers::check_alignment(address, alignment)
#define RLT_UNROLL
// A reduction in one exchange: each exchange between the lanes of a warp switches fibers 32 times.
#define RLT_REDUCE_AT_ONCE(value, op) \
  if (!fibers::reduces_in_steps) return fibers::reduced(value, op)
#define RLT_DYNAMIC_SHARED(name) unsigned char* const name = fibers::dynamic_shared
#endif

namespace rlt {

constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr float INFINITE = __builtin_huge_valf();

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return __uint_as_float(uint32_t(x.bits) << 16); }

// Rounds to nearest even; NaN remains NaN.
template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}

#if defined(__CUDA_ARCH__)
__device__ inline float to_float(f16 x) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
}
template <>
__device__ inline bf16 from_float<bf16>(float x) {
  bf16 narrow;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
  return narrow;
}
template <>
__device__ inline f16 from_float<f16>(float x) {
  f16 narrow;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(x));
  return narrow;
}
#else
inline float to_float(f16 x) {
  const uint32_t sign = uint32_t(x.bits >> 15) << 31, exponent = x.bits >> 10 & 31, fraction = x.bits & 1023;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
  // Subnormal values, below 2^-14, have steps of 2^-24.
  if (exponent == 0) return (sign ? -1.0f : 1.0f) * float(fraction) * 0x1p-24f;
  return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}
template <>
inline bf16 from_float<bf16>(float x) {
  const uint32_t bits = __float_as_uint(x);
  if (x != x) return {0x7fc0};
  return {uint16_t((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}
template <>
inline f16 from_float<f16>(float x) {
  const uint16_t sign = uint16_t(__float_as_uint(x) >> 31 << 15);
  const float size = fabsf(x);
  if (x != x) return {uint16_t(sign | 0x7fff)};
  if (size >= 65520.0f) return {uint16_t(sign | 0x7c00)};
  // Rounds to the step of f16 at this magnitude, which is at least 2^-24.
  int exponent;
  frexpf(size, &exponent);
  const float step = ldexpf(1.0f, exponent - 11 < -24 ? -24 : exponent - 11);
  const float rounded = nearbyintf(size / step) * step;
  if (rounded < 0x1p-14f) return {uint16_t(sign | uint16_t(rounded * 0x1p24f))};
  const uint32_t bits = __float_as_uint(rounded);
  return {uint16_t(sign | ((bits >> 23) - 112) << 10 | (bits >> 13 & 1023))};
}
#endif

// Rounds to T and converts back to float.
template <class T>
__device__ inline float rounded(float x) {
  return to_float(from_float<T>(x));
}

// A vector of N adjacent values. It is loaded and stored by one instruction if it has 16, 8 or 4 bytes.
template <class T, int N>
struct alignas(sizeof(T) * N) Vec {
  T at[N];
};
template <class T, int N>
__device__ inline Vec<T, N> load(const T* from) {
  RLT_CHECK_ALIGNED(from, sizeof(T) * N);
  return *reinterpret_cast<const Vec<T, N>*>(from);
}
template <class T, int N>
__device__ inline void store(T* to, const Vec<T, N>& value) {
  RLT_CHECK_ALIGNED(to, sizeof(T) * N);
  *reinterpret_cast<Vec<T, N>*>(to) = value;
}
// Number of values in a 16-byte vector.
template <class T>
constexpr int WIDE = 16 / int(sizeof(T));

// Whether rows of `width` values at `data` can be accessed by vectors of 16 bytes.
template <class T>
__device__ inline bool is_wide(const T* data, int64_t width) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && width % WIDE<T> == 0;
}

// Returns the table row that this block processes: the last one whose first block is at most this block.
template <class Row>
__device__ inline const Row& row_of_block(const Row* table, int num_rows) {
  int low = 0, high = num_rows;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (table[middle].first_block <= int64_t(blockIdx.x))
      low = middle;
    else
      high = middle;
  }
  return table[low];
}

// SplitMix64's finaliser.
__device__ inline uint64_t mix64(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Returns output `idx` of SplitMix64 with seed `seed`, like rlt_core::permutation::splitmix64.
__device__ inline uint64_t splitmix64(uint64_t seed, uint64_t idx) {
  return mix64(seed + 0x9e3779b97f4a7c15u * (idx + 1));
}

// Converts the upper 53 bits to a value in [0, 1).
__device__ inline double unit_interval(uint64_t bits) { return double(bits >> 11) * 0x1p-53; }

// A number of elements as a compile-time constant.
template <int N>
struct Width {
  static constexpr int value = N;
};

__device__ inline int lane_idx() { return int(threadIdx.x & 31); }
__device__ inline int warp_idx() { return int(threadIdx.x >> 5); }

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

// Reduces over a warp. Every lane gets the result.
template <class T, class Op>
__device__ inline T warp_reduce(T value, Op op) {
  RLT_REDUCE_AT_ONCE(value, op);
  RLT_UNROLL
  for (int distance = 16; distance > 0; distance /= 2)
    value = op(value, __shfl_xor_sync(ALL_LANES, value, distance));
  return value;
}

// Reduces over a block. Every thread must call this, and gets the result.
template <class T, class Op>
__device__ inline T block_reduce(T value, Op op, T identity) {
  __shared__ T of_warp[32];
  value = warp_reduce(value, op);
  __syncthreads();  // all threads have read the previous reduction
  if (lane_idx() == 0) of_warp[warp_idx()] = value;
  __syncthreads();
  return warp_reduce(lane_idx() < int(blockDim.x / 32) ? of_warp[lane_idx()] : identity, op);
}

// Copies 16 bytes from global to shared memory. The copy is complete after `wait_for_copies`, and visible to
// other threads after a barrier.
__device__ inline void copy_16_async(void* to_shared, const void* from) {
#if defined(__CUDA_ARCH__)
  const unsigned to = unsigned(__cvta_generic_to_shared(to_shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#else
  RLT_CHECK_ALIGNED(to_shared, 16);
  RLT_CHECK_ALIGNED(from, 16);
  __builtin_memcpy(to_shared, from, 16);
#endif
}
// Ends the current group of copies.
__device__ inline void commit_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits until at most the last `PENDING` groups are incomplete.
template <int PENDING>
__device__ inline void wait_for_copies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

}  // namespace rlt
