// The gated activation of a fused projection [rows, 2 width], gate first. Bound by the memory traffic of
// three values per output.
#include "include/activation.cuh"

namespace rlt {

struct SwiGluArguments {
  const void* gate_up;
  void* out;
  int64_t width;
  int32_t activation;
};

template <class T, int N>
__device__ inline void gate_vector(const SwiGluArguments& a, int64_t i) {
  const int64_t row = blockIdx.x;
  const T* gate = static_cast<const T*>(a.gate_up) + row * 2 * a.width + i;
  const Vec<T, N> g = load<T, N>(gate), up = load<T, N>(gate + a.width);
  Vec<T, N> out;
  RLT_UNROLL
  for (int k = 0; k < N; ++k) {
    const float gated = activated(to_float(g.at[k]), a.activation);
    // On a CPU the error-function GELU is a separate operation, which rounds its result to the dtype.
    out.at[k] = from_float<T>((a.activation == 2 ? rounded<T>(gated) : gated) * to_float(up.at[k]));
  }
  store<T, N>(static_cast<T*>(a.out) + row * a.width + i, out);
}

// A block computes a part of one row, so that no index needs a division.
template <class T>
__device__ inline void swiglu(const SwiGluArguments& a) {
  constexpr int64_t PER_THREAD = 8;
  const int64_t begin = int64_t(blockIdx.y) * blockDim.x * PER_THREAD;
  const int64_t behind = begin + blockDim.x * PER_THREAD, end = behind < a.width ? behind : a.width;
  if (is_wide(static_cast<const T*>(a.gate_up), a.width) && is_wide(static_cast<const T*>(a.out), a.width)) {
    for (int64_t i = begin + int64_t(threadIdx.x) * WIDE<T>; i < end; i += int64_t(blockDim.x) * WIDE<T>)
      gate_vector<T, WIDE<T>>(a, i);
  } else {
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) gate_vector<T, 1>(a, i);
  }
}

RLT_KERNELS(swiglu, SwiGluArguments, swiglu, 256)

}  // namespace rlt
