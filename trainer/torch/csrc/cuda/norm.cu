// Addition to the residual stream followed by RMS norm. Each block computes one row, which stays in registers
// between the sum of squares and the scaling. Bound by 4 (with x) or 2 reads and writes of the row.
#include "include/norm.cuh"

namespace rlt {

struct NormArguments {
  const void* x;  // or null
  void* residual;
  const void* weight;
  void* out;
  int64_t width;
  double inverse_width, eps;
  float offset;
};

// Updates N values of the residual stream and returns them.
template <class T, int N>
__device__ inline Vec<T, N> add_residual(const T* x, T* residual) {
  Vec<T, N> sum = load<T, N>(residual);
  if (x == nullptr) return sum;
  const Vec<T, N> added = load<T, N>(x);
  RLT_UNROLL
  for (int k = 0; k < N; ++k) sum.at[k] = from_float<T>(to_float(sum.at[k]) + to_float(added.at[k]));
  store<T, N>(residual, sum);
  return sum;
}

template <class T, int N>
__device__ inline float squares(const Vec<T, N>& v) {
  float sum = 0.0f;
  RLT_UNROLL
  for (int k = 0; k < N; ++k) sum += to_float(v.at[k]) * to_float(v.at[k]);
  return sum;
}

template <class T, int N>
__device__ inline void store_normed(const NormArguments& a, T* out, const Vec<T, N>& v, int64_t i, float scale) {
  const Vec<T, N> weight = load<T, N>(static_cast<const T*>(a.weight) + i);
  Vec<T, N> result;
  RLT_UNROLL
  for (int k = 0; k < N; ++k)
    result.at[k] = from_float<T>(normed<T>(to_float(v.at[k]), scale, to_float(weight.at[k]), a.offset));
  store<T, N>(out + i, result);
}

template <class T, int N>
__device__ inline void norm_row(const NormArguments& a) {
  constexpr int HELD = 4;  // vectors that a thread holds; the rest of a wider row is read again
  const int64_t row = int64_t(blockIdx.x) * a.width, step = int64_t(blockDim.x) * N;
  const T* x = a.x == nullptr ? nullptr : static_cast<const T*>(a.x) + row;
  T *residual = static_cast<T*>(a.residual) + row, *out = static_cast<T*>(a.out) + row;
  const int64_t start = int64_t(threadIdx.x) * N;
  const auto sum_at = [&](int64_t i) { return add_residual<T, N>(x == nullptr ? x : x + i, residual + i); };
  Vec<T, N> held[HELD];
  float sum = 0.0f;
  RLT_UNROLL
  for (int k = 0; k < HELD; ++k)
    if (start + k * step < a.width) held[k] = sum_at(start + k * step), sum += squares<T, N>(held[k]);
  for (int64_t i = start + HELD * step; i < a.width; i += step) sum += squares<T, N>(sum_at(i));
  const float scale = inverse_root(block_reduce(sum, Sum(), 0.0f), a.inverse_width, a.eps);
  RLT_UNROLL
  for (int k = 0; k < HELD; ++k)
    if (start + k * step < a.width) store_normed<T, N>(a, out, held[k], start + k * step, scale);
  for (int64_t i = start + HELD * step; i < a.width; i += step)
    store_normed<T, N>(a, out, load<T, N>(residual + i), i, scale);
}

template <class T>
__device__ inline void rms_norm_residual(const NormArguments& a) {
  const bool wide = is_wide(static_cast<const T*>(a.residual), a.width) &&
                    is_wide(static_cast<const T*>(a.weight), a.width) &&
                    is_wide(static_cast<const T*>(a.out), a.width) && is_wide(static_cast<const T*>(a.x), a.width);
  if (wide)
    norm_row<T, WIDE<T>>(a);
  else
    norm_row<T, 1>(a);
}

RLT_KERNELS(rms_norm_residual, NormArguments, rms_norm_residual, 256)

}  // namespace rlt
