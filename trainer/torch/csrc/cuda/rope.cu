// Norms of query and key heads, rotary embedding, and the write to the paged cache. Each warp computes one
// head of one token, in registers. Bound by one read and one write of the fused projection.
#include "include/norm.cuh"

namespace rlt {

struct RopeArguments {
  const void* qkv;
  const float* inverse_frequencies;
  const int32_t* axes;  // or null
  const int32_t *positions, *slots;  // positions [3, tokens] with axes
  const void *q_norm, *k_norm;  // or null
  void *k_cache, *v_cache, *q_out;
  double inverse_width, eps;
  int64_t tokens, num_slots;
  int32_t heads, kv_heads, head_dim;
  float offset, rope_factor;
};

constexpr int PAIRS = 2;       // adjacent pairs of a lane,
constexpr int ROPE_STEPS = 2;  // and steps over them: two for heads wider than 128

// A lane's values of both halves of a head.
struct Halves {
  float first[ROPE_STEPS][PAIRS], second[ROPE_STEPS][PAIRS];
};

template <class T>
__device__ inline void norm_head(const RopeArguments& a, const T* weight, Halves& x) {
  const int half = a.head_dim / 2;
  float sum = 0.0f;
  RLT_UNROLL
  for (int s = 0; s < ROPE_STEPS; ++s)
    for (int p = 0; p < PAIRS; ++p) sum += x.first[s][p] * x.first[s][p] + x.second[s][p] * x.second[s][p];
  const float scale = inverse_root(warp_reduce(sum, Sum()), a.inverse_width, a.eps);
  RLT_UNROLL
  for (int s = 0; s < ROPE_STEPS; ++s) {
    const int i = (s * 32 + lane_idx()) * PAIRS;
    if (i >= half) continue;
    RLT_UNROLL
    for (int p = 0; p < PAIRS; ++p) {
      const float w1 = to_float(weight[i + p]), w2 = to_float(weight[half + i + p]);
      x.first[s][p] = rounded<T>(normed<T>(x.first[s][p], scale, w1, a.offset));
      x.second[s][p] = rounded<T>(normed<T>(x.second[s][p], scale, w2, a.offset));
    }
  }
}

// Rotates a head: y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin. Cosines and sines are rounded to T, as the CPU
// stores them. With axes each pair is rotated by one of the token's three positions.
template <class T>
__device__ inline void rotate_head(const RopeArguments& a, int64_t token, const Halves& x, T* out) {
  const int half = a.head_dim / 2;
  RLT_UNROLL
  for (int s = 0; s < ROPE_STEPS; ++s) {
    const int i = (s * 32 + lane_idx()) * PAIRS;
    if (i >= half) continue;
    Vec<T, PAIRS> first, second;
    RLT_UNROLL
    for (int p = 0; p < PAIRS; ++p) {
      const int64_t axis = a.axes == nullptr ? 0 : a.axes[i + p];
      const float position = float(a.positions[axis * a.tokens + token]);
      const float frequency = a.inverse_frequencies[i + p], angle = position * frequency;
      const float factor = frequency == 0.0f ? 1.0f : a.rope_factor;  // unrotated dimensions are not scaled
      const float c = rounded<T>(cosf(angle) * factor), n = rounded<T>(sinf(angle) * factor);
      first.at[p] = from_float<T>(x.first[s][p] * c - x.second[s][p] * n);
      second.at[p] = from_float<T>(x.second[s][p] * c + x.first[s][p] * n);
    }
    store<T, PAIRS>(out + i, first);
    store<T, PAIRS>(out + half + i, second);
  }
}

template <class T>
__device__ inline Halves load_head(const RopeArguments& a, const T* from) {
  const int half = a.head_dim / 2;
  Halves x = {};
  RLT_UNROLL
  for (int s = 0; s < ROPE_STEPS; ++s) {
    const int i = (s * 32 + lane_idx()) * PAIRS;
    if (i >= half) continue;
    const Vec<T, PAIRS> first = load<T, PAIRS>(from + i), second = load<T, PAIRS>(from + half + i);
    RLT_UNROLL
    for (int p = 0; p < PAIRS; ++p) x.first[s][p] = to_float(first.at[p]), x.second[s][p] = to_float(second.at[p]);
  }
  return x;
}

template <class T>
__device__ inline void rope_and_write_kv(const RopeArguments& a) {
  const int all_heads = a.heads + 2 * a.kv_heads;
  const int64_t item = int64_t(blockIdx.x) * (blockDim.x / 32) + warp_idx();
  if (item >= a.tokens * all_heads) return;
  const int64_t token = item / all_heads;
  const int head = int(item % all_heads), position = a.positions[token], slot = a.slots[token];
  const T* from = static_cast<const T*>(a.qkv) + item * a.head_dim;
  const bool is_query = head < a.heads, is_key = !is_query && head < a.heads + a.kv_heads;
  T* out = static_cast<T*>(a.q_out) + (token * a.heads + head) * a.head_dim;
  if (!is_query) {
    if (slot < 0 || slot >= a.num_slots) return;
    const int kv_head = (head - a.heads) % a.kv_heads;
    void* cache = is_key ? a.k_cache : a.v_cache;
    out = static_cast<T*>(cache) + (int64_t(slot) * a.kv_heads + kv_head) * a.head_dim;
  }
  if (!is_query && !is_key) {
    for (int i = lane_idx() * 2; i < a.head_dim; i += 64) store<T, 2>(out + i, load<T, 2>(from + i));
    return;
  }
  if (position < 0) {
    for (int i = lane_idx(); i < a.head_dim; i += 32) out[i] = from_float<T>(0.0f);
    return;
  }
  Halves x = load_head(a, from);
  const T* norm = static_cast<const T*>(is_query ? a.q_norm : a.k_norm);
  if (norm != nullptr) norm_head(a, norm, x);
  rotate_head(a, token, x, out);
}

RLT_KERNELS(rope_and_write_kv, RopeArguments, rope_and_write_kv, 128)

}  // namespace rlt
