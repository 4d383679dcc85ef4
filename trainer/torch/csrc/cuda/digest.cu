// rlt_core::digest::digest64 on the device. Eight threads digest a chunk of 4096 values, one per lane of the
// digest. The mixed digests of chunks are added, in any order. Bound by one read.
#include "include/device.cuh"

namespace rlt {

struct DigestArguments {
  const void* data;
  unsigned long long* out;
  int64_t count;
};

constexpr uint64_t DIGEST_PRIME = 0x9e3779b185ebca87u;
constexpr int DIGEST_LANES = 8, DIGEST_CHUNK = 4096;

__device__ inline uint64_t digest_step(uint64_t state, uint64_t word) {
  const uint64_t product = (state ^ word) * DIGEST_PRIME;
  return product ^ (product >> 32);
}

// Packs two adjacent values into one word; values past the end are zero.
template <class T>
__device__ inline uint64_t digest_pair(const T* data, int64_t at, int64_t count) {
  if (at + 1 < count && reinterpret_cast<uintptr_t>(data) % (2 * sizeof(T)) == 0) {
    const Vec<T, 2> pair = load<T, 2>(data + at);
    return __float_as_uint(to_float(pair.at[0])) | uint64_t(__float_as_uint(to_float(pair.at[1]))) << 32;
  }
  const uint64_t low = at < count ? __float_as_uint(to_float(data[at])) : 0;
  const uint64_t high = at + 1 < count ? __float_as_uint(to_float(data[at + 1])) : 0;
  return low | high << 32;
}

template <class T>
__device__ inline void digest(const DigestArguments& a) {
  const int lane = int(threadIdx.x % DIGEST_LANES);
  const int64_t chunk = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / DIGEST_LANES;
  const int64_t begin = chunk * DIGEST_CHUNK, len = a.count - begin < DIGEST_CHUNK ? a.count - begin : DIGEST_CHUNK;
  const T* data = static_cast<const T*>(a.data) + begin;
  uint64_t state = DIGEST_PRIME * uint64_t(lane + 1);
  constexpr int STRIDE = 2 * DIGEST_LANES;
  const int64_t strides = len > 0 ? len / STRIDE : 0;
  for (int64_t s = 0; s < strides; ++s) state = digest_step(state, digest_pair(data, s * STRIDE + 2 * lane, len));
  if (len > 0) state = digest_step(state, digest_pair(data, strides * STRIDE + 2 * lane, len));
  uint64_t folded = uint64_t(len);
  RLT_UNROLL
  for (int k = 0; k < DIGEST_LANES; ++k)
    folded = digest_step(folded, __shfl_sync(ALL_LANES, state, (lane_idx() & ~7) + k));
  unsigned long long total = 0;
  if (lane == 0 && len > 0) total = mix64(folded + uint64_t(chunk) * 0x9e3779b97f4a7c15u);
  if (chunk == 0 && lane == 0) total += uint64_t(a.count);
  total = block_reduce(total, Sum(), 0ull);
  if (threadIdx.x == 0) atomicAdd(a.out, total);
}

RLT_KERNELS(digest, DigestArguments, digest, 128)

}  // namespace rlt
