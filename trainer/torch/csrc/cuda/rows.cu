// Norm, gated activation and rotary embedding for training, with one kernel forward and one backward.
// Arithmetic is in float, and results are rounded where kernels/rows.inl rounds them. Bound by one read of
// each input and one write of each result.
#include "include/activation.cuh"
#include "include/norm.cuh"

namespace rlt {

struct NormRowsArguments {
  const void *x, *weight, *grad;  // grad: backward only
  void* out;                      // forward: normalised rows; backward: gradient of x
  float* rstd;                    // [rows]: written forward, read backward
  float* grad_weight;             // backward: [blocks, width], a partial sum per block, or null
  int64_t rows, width;
  double inverse_width, eps;
  float offset;
  int32_t weight_is_float;  // else the weight has x's dtype; a float weight is rounded to it
};

// Loads N values of the weight and adds the offset.
template <class T, int N>
__device__ inline Vec<float, N> scales(const NormRowsArguments& a, int64_t i) {
  Vec<float, N> scale;
  if (a.weight_is_float != 0) {
    const Vec<float, N> wide = load<float, N>(static_cast<const float*>(a.weight) + i);
    RLT_UNROLL
    for (int k = 0; k < N; ++k) scale.at[k] = rounded<T>(wide.at[k]) + a.offset;
  } else {
    const Vec<T, N> narrow = load<T, N>(static_cast<const T*>(a.weight) + i);
    RLT_UNROLL
    for (int k = 0; k < N; ++k) scale.at[k] = to_float(narrow.at[k]) + a.offset;
  }
  return scale;
}

// Each block computes one row. Its second read of the row hits the first-level cache.
template <class T, int N>
__device__ inline void norm_forward(const NormRowsArguments& a) {
  const int64_t row = blockIdx.x, step = int64_t(blockDim.x) * N;
  const T* x = static_cast<const T*>(a.x) + row * a.width;
  T* out = static_cast<T*>(a.out) + row * a.width;
  float sum = 0.0f;
  for (int64_t i = int64_t(threadIdx.x) * N; i < a.width; i += step) {
    const Vec<T, N> v = load<T, N>(x + i);
    RLT_UNROLL
    for (int k = 0; k < N; ++k) sum += to_float(v.at[k]) * to_float(v.at[k]);
  }
  const float rstd = inverse_root(block_reduce(sum, Sum(), 0.0f), a.inverse_width, a.eps);
  if (threadIdx.x == 0) a.rstd[row] = rstd;
  for (int64_t i = int64_t(threadIdx.x) * N; i < a.width; i += step) {
    const Vec<T, N> v = load<T, N>(x + i);
    const Vec<float, N> scale = scales<T, N>(a, i);
    Vec<T, N> result;
    RLT_UNROLL
    for (int k = 0; k < N; ++k) {
      const float wide = to_float(v.at[k]) * rstd, normed = a.offset == 0.0f ? rounded<T>(wide) : wide;
      result.at[k] = from_float<T>(normed * scale.at[k]);
    }
    store<T, N>(out + i, result);
  }
}

template <class T>
__device__ inline bool takes_vectors(const NormRowsArguments& a) {
  const bool is_weight_wide = a.weight_is_float != 0
                                  ? reinterpret_cast<uintptr_t>(a.weight) % sizeof(Vec<float, WIDE<T>>) == 0
                                  : is_wide(static_cast<const T*>(a.weight), a.width);
  return is_weight_wide && is_wide(static_cast<const T*>(a.x), a.width) &&
         is_wide(static_cast<const T*>(a.grad), a.width) && is_wide(static_cast<const T*>(a.out), a.width);
}

template <class T>
__device__ inline void rms_norm_rows(const NormRowsArguments& a) {
  if (takes_vectors<T>(a))
    norm_forward<T, WIDE<T>>(a);
  else
    norm_forward<T, 1>(a);
}

// dx = rstd (dy w - x rstd^2 mean(dy w x)), dw = sum over rows of dy x rstd. A block processes every
// gridDim-th row and holds the sums over its rows in registers, COLUMNS of them per thread.
template <class T, int N>
__device__ inline void norm_backward(const NormRowsArguments& a) {
  constexpr int COLUMNS = 16, STEPS = COLUMNS / N;
  const int64_t start = int64_t(threadIdx.x) * N, step = int64_t(blockDim.x) * N;
  Vec<float, N> sums[STEPS] = {};
  for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const T *x = static_cast<const T*>(a.x) + row * a.width, *grad = static_cast<const T*>(a.grad) + row * a.width;
    T* out = static_cast<T*>(a.out) + row * a.width;
    const float rstd = a.rstd[row];
    float dot = 0.0f;
    RLT_UNROLL
    for (int s = 0; s < STEPS; ++s) {
      const int64_t i = start + s * step;
      if (i >= a.width) continue;
      const Vec<T, N> v = load<T, N>(x + i), g = load<T, N>(grad + i);
      const Vec<float, N> scale = scales<T, N>(a, i);
      RLT_UNROLL
      for (int k = 0; k < N; ++k) {
        dot += to_float(g.at[k]) * scale.at[k] * to_float(v.at[k]);
        sums[s].at[k] += to_float(g.at[k]) * (to_float(v.at[k]) * rstd);
      }
    }
    const float mean = float(a.inverse_width) * block_reduce(dot, Sum(), 0.0f) * rstd * rstd * rstd;
    for (int64_t i = start; i < a.width; i += step) {
      const Vec<T, N> v = load<T, N>(x + i), g = load<T, N>(grad + i);
      const Vec<float, N> scale = scales<T, N>(a, i);
      Vec<T, N> result;
      RLT_UNROLL
      for (int k = 0; k < N; ++k)
        result.at[k] = from_float<T>(to_float(g.at[k]) * scale.at[k] * rstd - to_float(v.at[k]) * mean);
      store<T, N>(out + i, result);
    }
  }
  if (a.grad_weight == nullptr) return;
  RLT_UNROLL
  for (int s = 0; s < STEPS; ++s)
    if (start + s * step < a.width)
      store<float, N>(a.grad_weight + int64_t(blockIdx.x) * a.width + start + s * step, sums[s]);
}

template <class T>
__device__ inline void rms_norm_rows_backward(const NormRowsArguments& a) {
  if (takes_vectors<T>(a))
    norm_backward<T, WIDE<T>>(a);
  else
    norm_backward<T, 1>(a);
}

struct GatedRowsArguments {
  const void *gate, *up, *grad;  // grad: backward only
  void *out, *grad_gate, *grad_up;
  int64_t width, input_row, grad_row;  // row strides of gate and up, and of their gradients
  int32_t activation;
};

// Computes N values of a row: activation(gate) up, or, in the backward pass, the gradients of both.
template <class T, int N>
__device__ inline void gate_numbers(const GatedRowsArguments& a, int64_t row, int64_t i) {
  const Vec<T, N> gate = load<T, N>(static_cast<const T*>(a.gate) + row * a.input_row + i);
  const Vec<T, N> up = load<T, N>(static_cast<const T*>(a.up) + row * a.input_row + i);
  Vec<T, N> first, second;
  if (a.grad == nullptr) {
    RLT_UNROLL
    for (int k = 0; k < N; ++k)
      first.at[k] = from_float<T>(activated(to_float(gate.at[k]), a.activation) * to_float(up.at[k]));
    store<T, N>(static_cast<T*>(a.out) + row * a.width + i, first);
    return;
  }
  const Vec<T, N> grad = load<T, N>(static_cast<const T*>(a.grad) + row * a.width + i);
  RLT_UNROLL
  for (int k = 0; k < N; ++k) {
    const Activated y = activated_with_slope(to_float(gate.at[k]), a.activation);
    const float g = to_float(grad.at[k]);
    first.at[k] = from_float<T>(g * to_float(up.at[k]) * y.slope);
    second.at[k] = from_float<T>(g * y.value);
  }
  store<T, N>(static_cast<T*>(a.grad_gate) + row * a.grad_row + i, first);
  store<T, N>(static_cast<T*>(a.grad_up) + row * a.grad_row + i, second);
}

// A block computes a part of one row.
template <class T>
__device__ inline void gated_rows(const GatedRowsArguments& a) {
  constexpr int64_t PER_THREAD = 8;
  const int64_t row = blockIdx.x, begin = int64_t(blockIdx.y) * blockDim.x * PER_THREAD;
  const int64_t behind = begin + blockDim.x * PER_THREAD, end = behind < a.width ? behind : a.width;
  const auto fits = [&](const void* data, int64_t row_numbers) {
    return is_wide(static_cast<const T*>(data), a.width) && row_numbers % WIDE<T> == 0;
  };
  const bool wide = fits(a.gate, a.input_row) && fits(a.up, a.input_row) && fits(a.out, a.width) &&
                    fits(a.grad, a.width) && fits(a.grad_gate, a.grad_row) && fits(a.grad_up, a.grad_row);
  if (wide) {
    for (int64_t i = begin + int64_t(threadIdx.x) * WIDE<T>; i < end; i += int64_t(blockDim.x) * WIDE<T>)
      gate_numbers<T, WIDE<T>>(a, row, i);
  } else {
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) gate_numbers<T, 1>(a, row, i);
  }
}

struct RopeRowsArguments {
  const void *x, *cos, *sin;  // cos and sin: [tokens, table] of the dtype
  void* out;
  int64_t heads, head_dim, table;  // table: head_dim, or half of it if both halves have the same angles
  int32_t is_backward;
};

// Rotates N pairs, whose values are half a head apart: y1 = x1 c1 - x2 s1, y2 = x2 c2 + x1 s2; the backward
// pass is the transpose.
template <class T, int N>
__device__ inline void turn_pairs(const RopeRowsArguments& a, int64_t head, int64_t i) {
  const int64_t token = blockIdx.x, half = a.head_dim / 2, second = a.table - half;
  const int64_t at = (token * a.heads + head) * a.head_dim + i;
  const T *x = static_cast<const T*>(a.x) + at, *cos = static_cast<const T*>(a.cos) + token * a.table + i;
  const T* sin = static_cast<const T*>(a.sin) + token * a.table + i;
  const Vec<T, N> x1 = load<T, N>(x), x2 = load<T, N>(x + half), c1 = load<T, N>(cos), s1 = load<T, N>(sin);
  const Vec<T, N> c2 = load<T, N>(cos + second), s2 = load<T, N>(sin + second);
  const float sign = a.is_backward != 0 ? -1.0f : 1.0f;
  Vec<T, N> y1, y2;
  RLT_UNROLL
  for (int k = 0; k < N; ++k) {
    const float v1 = to_float(x1.at[k]), v2 = to_float(x2.at[k]);
    // The transpose exchanges the sines of the two halves.
    const float n1 = to_float(a.is_backward != 0 ? s2.at[k] : s1.at[k]);
    const float n2 = to_float(a.is_backward != 0 ? s1.at[k] : s2.at[k]);
    y1.at[k] = from_float<T>(v1 * to_float(c1.at[k]) - sign * v2 * n1);
    y2.at[k] = from_float<T>(v2 * to_float(c2.at[k]) + sign * v1 * n2);
  }
  store<T, N>(static_cast<T*>(a.out) + at, y1);
  store<T, N>(static_cast<T*>(a.out) + at + half, y2);
}

template <class T, int N>
__device__ inline void turn_token(const RopeRowsArguments& a) {
  const int64_t of_head = a.head_dim / 2 / N;
  for (int64_t item = threadIdx.x; item < a.heads * of_head; item += blockDim.x)
    turn_pairs<T, N>(a, item / of_head, item % of_head * N);
}

// Each block rotates one token.
template <class T>
__device__ inline void rope_rows(const RopeRowsArguments& a) {
  const auto fits = [&](const void* data) { return is_wide(static_cast<const T*>(data), a.head_dim / 2); };
  if (fits(a.x) && fits(a.cos) && fits(a.sin) && fits(a.out))
    turn_token<T, WIDE<T>>(a);
  else
    turn_token<T, 1>(a);
}

RLT_KERNELS(rms_norm_rows, NormRowsArguments, rms_norm_rows, 512)
RLT_KERNELS(rms_norm_rows_backward, NormRowsArguments, rms_norm_rows_backward, 512)
RLT_KERNELS(gated_rows, GatedRowsArguments, gated_rows, 256)
RLT_KERNELS(rope_rows, RopeRowsArguments, rope_rows, 256)

}  // namespace rlt
