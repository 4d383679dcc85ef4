// The L2 norm of all tensors of a table in f64, without copies of the tensors: blocks compute partial sums of
// squares, and one block adds them. The order of each sum is fixed, so the norm is bitwise equal in every
// run. Bound by one read.
#include "include/device.cuh"

namespace rlt {

// A row of the table: 3 words, laid out by `SquaresTable` in Rust.
struct SquaresTensor {
  const void* data;
  int64_t count, first_block;
};

struct SquaresArguments {
  const SquaresTensor* table;
  double* partials;  // [blocks]
  int32_t num_tensors;
};

struct NormArguments64 {
  const double* partials;  // [count]
  double* out;             // [1]
  int64_t count;
};

constexpr int64_t SQUARES_CHUNK = 1 << 16;

template <class T>
__device__ inline void squares(const SquaresArguments& a) {
  constexpr int N = WIDE<T>;
  const SquaresTensor tensor = row_of_block(a.table, a.num_tensors);
  const T* data = static_cast<const T*>(tensor.data);
  const int64_t begin = (int64_t(blockIdx.x) - tensor.first_block) * SQUARES_CHUNK;
  const int64_t end = begin + SQUARES_CHUNK < tensor.count ? begin + SQUARES_CHUNK : tensor.count;
  const bool wide = reinterpret_cast<uintptr_t>(data) % 16 == 0;
  const int64_t vectors_end = wide ? begin + (end - begin) / N * N : begin;
  double sum = 0.0;
  const auto add = [&](T number) {
    const double value = double(to_float(number));
    sum += value * value;
  };
  for (int64_t i = begin + int64_t(threadIdx.x) * N; i < vectors_end; i += int64_t(blockDim.x) * N) {
    const Vec<T, N> part = load<T, N>(data + i);
    RLT_UNROLL
    for (int k = 0; k < N; ++k) add(part.at[k]);
  }
  for (int64_t i = vectors_end + int64_t(threadIdx.x); i < end; i += int64_t(blockDim.x)) add(data[i]);
  sum = block_reduce(sum, Sum(), 0.0);
  if (threadIdx.x == 0) a.partials[blockIdx.x] = sum;
}

__device__ inline void norm_of_partials(const NormArguments64& a) {
  double sum = 0.0;
  for (int64_t i = int64_t(threadIdx.x); i < a.count; i += int64_t(blockDim.x)) sum += a.partials[i];
  sum = block_reduce(sum, Sum(), 0.0);
  if (threadIdx.x == 0) *a.out = sqrt(sum);
}

RLT_KERNELS(squares, SquaresArguments, squares, 256)
RLT_KERNEL(norm_of_squares, NormArguments64, norm_of_partials, 1024)

}  // namespace rlt
