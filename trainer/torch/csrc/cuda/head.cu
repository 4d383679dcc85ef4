// Row kernels of the vocabulary head: log-prob of the target, entropy of softmax(z / T), and the gradient,
// which overwrites the logits. The formulas are in kernels/head.inl. The forward pass is bound by one read of
// the logits, the backward pass by one read and one write.
#include "include/device.cuh"

namespace rlt {

struct HeadArguments {
  void* logits;
  const int64_t* targets;
  float *logprob, *entropy, *max, *log_sum;
  const float *grad_logprob, *grad_entropy;
  int64_t vocabulary;
  float inv_temperature;
};

// Statistics of some logits: max u, sum e^(u - max), and sum e^(u - max) (u - max).
struct HeadPart {
  float max, sum, weighted;
};

__device__ inline HeadPart head_join(HeadPart a, HeadPart b) {
  const float max = a.max > b.max ? a.max : b.max;
  const auto moved = [&](HeadPart& p) {
    // So far there are no logits but minus infinities, which have no weight.
    const float down = p.sum == 0.0f ? 0.0f : p.max - max, scale = expf(down);
    p.weighted = scale * (p.weighted + p.sum * down);
    p.sum *= scale;
  };
  moved(a), moved(b);
  return {max, a.sum + b.sum, a.weighted + b.weighted};
}

__device__ inline HeadPart head_join_block(HeadPart part) {
  __shared__ HeadPart of_warp[32];
  const auto join_warp = [](HeadPart p) {
    RLT_UNROLL
    for (int distance = 16; distance > 0; distance /= 2) {
      const HeadPart other = {__shfl_xor_sync(ALL_LANES, p.max, distance), __shfl_xor_sync(ALL_LANES, p.sum, distance),
                              __shfl_xor_sync(ALL_LANES, p.weighted, distance)};
      p = head_join(p, other);
    }
    return p;
  };
  part = join_warp(part);
  if (lane_idx() == 0) of_warp[warp_idx()] = part;
  __syncthreads();
  const HeadPart nothing = {-INFINITE, 0.0f, 0.0f};
  return join_warp(lane_idx() < int(blockDim.x / 32) ? of_warp[lane_idx()] : nothing);
}

// Adds N logits. Their maximum is found first, so that each logit needs one exponential instead of two.
template <class T, int N>
__device__ inline void head_add(HeadPart& part, const T* z, float inv_temperature) {
  const Vec<T, N> v = load<T, N>(z);
  float u[N], high = part.max;
  RLT_UNROLL
  for (int k = 0; k < N; ++k) u[k] = to_float(v.at[k]) * inv_temperature, high = fmaxf(high, u[k]);
  if (high > part.max) part = head_join(part, {high, 0.0f, 0.0f});
  // If all logits are minus infinity there is no maximum to subtract. A NaN makes the sum NaN.
  const float base = high == -INFINITE ? 0.0f : high;
  RLT_UNROLL
  for (int k = 0; k < N; ++k) {
    const float e = expf(u[k] - base);
    part.sum += e;
    part.weighted += e == 0.0f ? 0.0f : e * (u[k] - base);
  }
}

template <class T>
__device__ inline void head_forward(const HeadArguments& a) {
  const int64_t row = blockIdx.x, n = a.vocabulary, target = a.targets[row];
  const T* z = static_cast<const T*>(a.logits) + row * n;
  HeadPart part = {-INFINITE, 0.0f, 0.0f};
  if (is_wide(static_cast<const T*>(a.logits), n)) {
    for (int64_t i = int64_t(threadIdx.x) * WIDE<T>; i < n; i += int64_t(blockDim.x) * WIDE<T>)
      head_add<T, WIDE<T>>(part, z + i, a.inv_temperature);
  } else {
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) head_add<T, 1>(part, z + i, a.inv_temperature);
  }
  part = head_join_block(part);
  if (threadIdx.x != 0) return;
  const float log_sum = logf(part.sum);
  const bool exists = target >= 0 && target < n;
  a.max[row] = part.max;
  a.log_sum[row] = log_sum;
  a.logprob[row] = exists ? to_float(z[target]) * a.inv_temperature - part.max - log_sum : NAN;
  a.entropy[row] = log_sum - part.weighted / part.sum;
}

template <class T, int N>
__device__ inline void head_change(const HeadArguments& a, int64_t i) {
  const int64_t row = blockIdx.x, target = a.targets[row];
  const float max = a.max[row], log_sum = a.log_sum[row], entropy = a.entropy[row];
  const float g = a.grad_logprob[row] * a.inv_temperature, h = a.grad_entropy[row] * a.inv_temperature;
  T* z = static_cast<T*>(a.logits) + row * a.vocabulary + i;
  Vec<T, N> v = load<T, N>(z);
  RLT_UNROLL
  for (int k = 0; k < N; ++k) {
    const float logp = to_float(v.at[k]) * a.inv_temperature - max - log_sum, p = expf(logp);
    // If p is 0, so is p (logp + H), even if logp is minus infinity.
    const float d = h == 0.0f || p == 0.0f ? p * -g : p * (-g - h * (logp + entropy));
    v.at[k] = from_float<T>(i + k == target ? g + d : d);
  }
  store<T, N>(z, v);
}

template <class T>
__device__ inline void head_backward(const HeadArguments& a) {
  constexpr int64_t PER_THREAD = 8;
  const int64_t begin = int64_t(blockIdx.y) * blockDim.x * PER_THREAD;
  const int64_t behind = begin + blockDim.x * PER_THREAD, end = behind < a.vocabulary ? behind : a.vocabulary;
  if (is_wide(static_cast<const T*>(a.logits), a.vocabulary)) {
    for (int64_t i = begin + int64_t(threadIdx.x) * WIDE<T>; i < end; i += int64_t(blockDim.x) * WIDE<T>)
      head_change<T, WIDE<T>>(a, i);
  } else {
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) head_change<T, 1>(a, i);
  }
}

RLT_KERNELS(head_forward, HeadArguments, head_forward, 256)
RLT_KERNELS(head_backward, HeadArguments, head_backward, 256)

}  // namespace rlt
