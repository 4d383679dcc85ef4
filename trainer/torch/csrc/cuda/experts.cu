// Routing of tokens to experts: the choice of a router, the rows of all (token, choice) pairs sorted by
// expert, and the weighted sum of a token's rows. The launches process a few values per token, except for the
// sum, which is bound by one read of the rows.
#include "include/device.cuh"

namespace rlt {

struct RouteArguments {
  const void* logits;  // [tokens, experts]
  const float* bias;   // [experts], added for the choice only, or null
  int32_t* choices;    // [tokens, per_token], the best first
  float* weights;      // [tokens, per_token]
  int32_t* digests;    // [tokens], `RouteExperts::digests` in Rust, or null
  int64_t tokens;
  int32_t experts, per_token;
  float scale;
  int32_t is_sigmoid, normalises, rounds;
};

constexpr int ROUTE_THREADS = 128;
constexpr int MOST_CHOICES = 32;  // per token

// A candidate in the search for the best expert. The larger value wins, and among equal values the lower
// index, as in the CPU's stable sort.
struct Candidate {
  float value;
  int expert;
};
__device__ inline Candidate better(Candidate a, Candidate b) {
  return b.value > a.value || (b.value == a.value && b.expert < a.expert) ? b : a;
}
__device__ inline Candidate best_of_warp(Candidate own) {
  RLT_UNROLL
  for (int distance = 16; distance > 0; distance /= 2) {
    const Candidate other = {__shfl_xor_sync(ALL_LANES, own.value, distance),
                             __shfl_xor_sync(ALL_LANES, own.expert, distance)};
    own = better(own, other);
  }
  return own;
}

__device__ inline uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Computes rlt_core::digest::combine over the experts in ascending order.
__device__ inline int32_t digest_of(int32_t* chosen, int count) {
  for (int i = 1; i < count; ++i)
    for (int j = i; j > 0 && chosen[j - 1] > chosen[j]; --j) {
      const int32_t low = chosen[j];
      chosen[j] = chosen[j - 1], chosen[j - 1] = low;
    }
  uint64_t digest = 0;
  for (int i = 0; i < count; ++i)
    digest = mixed(digest * 0x9e3779b185ebca87ull + uint64_t(chosen[i]) + 0x9e3779b97f4a7c15ull);
  return int32_t(digest >> 48);
}

// Computes the scores of a token, and the values by which experts are compared. A NaN compares above any
// number, as in libtorch.
template <class T>
__device__ inline void score_experts(const RouteArguments& a, const T* logits, float* scores, float* compared) {
  float max = -INFINITE, sum = 0.0f;
  for (int e = lane_idx(); e < a.experts; e += 32) max = fmaxf(max, to_float(logits[e]));
  max = warp_reduce(max, Max());
  for (int e = lane_idx(); e < a.experts; e += 32) {
    const float x = to_float(logits[e]);
    scores[e] = a.is_sigmoid != 0 ? 1.0f / (1.0f + expf(-x)) : expf(x - max);
    sum += scores[e];
  }
  sum = warp_reduce(sum, Sum());
  for (int e = lane_idx(); e < a.experts; e += 32) {
    if (a.is_sigmoid == 0) scores[e] /= sum;
    const float value = scores[e] + (a.bias == nullptr ? 0.0f : a.bias[e]);
    compared[e] = value != value ? INFINITE : value;
  }
}

// Each warp routes one token.
template <class T>
__device__ inline void route_experts(const RouteArguments& a) {
  RLT_DYNAMIC_SHARED(memory);
  __shared__ int32_t sorted[ROUTE_THREADS / 32][MOST_CHOICES];
  const int64_t token = int64_t(blockIdx.x) * (ROUTE_THREADS / 32) + warp_idx();
  if (token >= a.tokens) return;
  float* scores = reinterpret_cast<float*>(memory) + warp_idx() * 2 * a.experts;
  float* compared = scores + a.experts;
  score_experts(a, static_cast<const T*>(a.logits) + token * a.experts, scores, compared);
  __syncwarp();
  float own = 0.0f, sum = 0.0f;  // each lane holds the weight of one choice
  for (int choice = 0; choice < a.per_token; ++choice) {
    Candidate best = {-INFINITE, 0x7fffffff};
    for (int e = lane_idx(); e < a.experts; e += 32) best = better(best, {compared[e], e});
    best = best_of_warp(best);
    if (lane_idx() == 0) {
      a.choices[token * a.per_token + choice] = best.expert;
      sorted[warp_idx()][choice] = best.expert;
    }
    const float weight = scores[best.expert];
    sum += weight;
    if (lane_idx() == choice) own = weight;
    __syncwarp();
    if (lane_idx() == 0) compared[best.expert] = -INFINITE;
    __syncwarp();
  }
  if (a.normalises != 0) own /= a.is_sigmoid != 0 ? sum + 1e-20f : sum;
  own *= a.scale;
  if (lane_idx() < a.per_token)
    a.weights[token * a.per_token + lane_idx()] = a.rounds != 0 ? rounded<T>(own) : own;
  if (lane_idx() == 0 && a.digests != nullptr) a.digests[token] = digest_of(sorted[warp_idx()], a.per_token);
}

RLT_KERNELS(route_experts, RouteArguments, route_experts, 128)

struct SortRowsArguments {
  const int32_t* choices;  // [n]
  int32_t *order, *inverse, *ends;  // [n] pair at each row; [n] row of each pair; [experts] ends of rows
  int64_t n;
};

// Each block sorts the rows of one expert: they follow the rows of all lower experts and keep their order.
__device__ inline void sort_by_expert(const SortRowsArguments& a) {
  __shared__ int of_warp[32];
  const int expert = int(blockIdx.x), num_warps = int(blockDim.x / 32);
  int lower = 0;
  for (int64_t i = threadIdx.x; i < a.n; i += blockDim.x) lower += a.choices[i] < expert ? 1 : 0;
  int row = block_reduce(lower, Sum(), 0);
  for (int64_t first = 0; first < a.n; first += blockDim.x) {
    const int64_t i = first + threadIdx.x;
    const bool is_mine = i < a.n && a.choices[i] == expert;
    const unsigned mine = __ballot_sync(ALL_LANES, is_mine);
    __syncthreads();  // all threads have read the previous counts
    if (lane_idx() == 0) of_warp[warp_idx()] = __popc(mine);
    __syncthreads();
    int place = row + __popc(mine & ((1u << lane_idx()) - 1));
    for (int warp = 0; warp < num_warps; ++warp) {
      if (warp < warp_idx()) place += of_warp[warp];
      row += of_warp[warp];
    }
    if (is_mine) a.order[place] = int32_t(i), a.inverse[i] = place;
  }
  if (threadIdx.x == 0) a.ends[expert] = row;
}

RLT_KERNEL(sort_rows, SortRowsArguments, sort_by_expert, 1024)

struct CombineArguments {
  const void* rows;        // [n, width]
  const float* weights;    // [tokens, per_token]
  const int32_t* inverse;  // [n]
  const void* beside;      // output of the shared expert for all tokens, [tokens, width], or null
  const void* gate;        // logit of the shared expert's sigmoid gate, [tokens], or null
  void* out;               // [tokens, width]
  int64_t width;
  int32_t per_token;
};

template <class T, int N>
__device__ inline void combine_vector(const CombineArguments& a, int64_t i) {
  const int64_t token = blockIdx.x;
  float sum[N] = {};
  for (int choice = 0; choice < a.per_token; ++choice) {
    const int64_t pair = token * a.per_token + choice;
    const Vec<T, N> row = load<T, N>(static_cast<const T*>(a.rows) + a.inverse[pair] * a.width + i);
    const float weight = a.weights[pair];
    RLT_UNROLL
    for (int k = 0; k < N; ++k) sum[k] += weight * to_float(row.at[k]);
  }
  Vec<T, N> out;
  RLT_UNROLL
  for (int k = 0; k < N; ++k) out.at[k] = from_float<T>(sum[k]);
  if (a.beside != nullptr) {
    const Vec<T, N> beside = load<T, N>(static_cast<const T*>(a.beside) + token * a.width + i);
    // Results are rounded to the dtype where the CPU stores them.
    const float x = a.gate == nullptr ? 0.0f : to_float(static_cast<const T*>(a.gate)[token]);
    const float gate = rounded<T>(1.0f / (1.0f + expf(-x)));
    RLT_UNROLL
    for (int k = 0; k < N; ++k) {
      const float block = to_float(beside.at[k]);
      const float added = a.gate == nullptr ? block : rounded<T>(gate * block);
      out.at[k] = from_float<T>(to_float(out.at[k]) + added);
    }
  }
  store<T, N>(static_cast<T*>(a.out) + token * a.width + i, out);
}

// Each block combines one token, whose rows are added in the order of its choices.
template <class T>
__device__ inline void combine_rows(const CombineArguments& a) {
  const bool wide = is_wide(static_cast<const T*>(a.rows), a.width) && is_wide(static_cast<const T*>(a.out), a.width) &&
                    is_wide(static_cast<const T*>(a.beside), a.width);
  if (wide) {
    for (int64_t i = int64_t(threadIdx.x) * WIDE<T>; i < a.width; i += int64_t(blockDim.x) * WIDE<T>)
      combine_vector<T, WIDE<T>>(a, i);
  } else {
    for (int64_t i = threadIdx.x; i < a.width; i += blockDim.x) combine_vector<T, 1>(a, i);
  }
}

RLT_KERNELS(combine_rows, CombineArguments, combine_rows, 256)

}  // namespace rlt
