// Dropout masks, drawn where they are used. Each value of a mask is a function of the key and the value's
// index only, so it is the same on the host, with any number of threads and in a recomputed pass. Bound by
// one write.
#include "include/device.cuh"

namespace rlt {

struct DropoutArguments {
  void* out;
  uint64_t key, first_idx;
  int64_t count;
  float threshold, keep;  // draws in [-1, 1) below the threshold become zero, others `keep`
};

constexpr int64_t DROPOUT_CHUNK = 2048;

template <class T>
__device__ inline void dropout_mask(const DropoutArguments& a) {
  const int64_t begin = int64_t(blockIdx.x) * DROPOUT_CHUNK;
  const int64_t end = begin + DROPOUT_CHUNK < a.count ? begin + DROPOUT_CHUNK : a.count;
  T* out = static_cast<T*>(a.out);
  const T zero = from_float<T>(0.0f), keep = from_float<T>(a.keep);
  for (int64_t i = begin + int64_t(threadIdx.x); i < end; i += int64_t(blockDim.x)) {
    const double draw = 2.0 * unit_interval(splitmix64(a.key, a.first_idx + uint64_t(i))) - 1.0;
    out[i] = float(draw) < a.threshold ? zero : keep;
  }
}

RLT_KERNELS(dropout_mask, DropoutArguments, dropout_mask, 256)

}  // namespace rlt
