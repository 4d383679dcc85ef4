// Attention of single queries over a paged cache. A block computes one row (a query token) for up to 8 query
// heads of a KV head and one part of the context. The last block of a row and group to finish combines the
// parts, so one launch suffices. Asynchronous copies load keys and values to shared memory in two stages.
// Bound by one read of the context's keys and values, 2 * context * kv_heads * head_dim values per row.
#include "include/device.cuh"

namespace rlt {

struct AttentionArguments {
  const void *q, *k_cache, *v_cache;
  const int32_t *block_tables, *context_lens;
  void* out;
  float* partials;     // [rows, heads, splits, head_dim + 2]: unnormalised values, maximum, sum
  // [rows, groups]: number of finished parts. Zero between launches; launches of any shape share this memory,
  // and no launch may write partial results to it.
  unsigned* counters;
  int64_t num_blocks;
  int32_t max_blocks, block_size, heads, kv_heads, head_dim, window, tile_keys;
  float scale;
};

constexpr int ATTENTION_THREADS = 128;
constexpr int ATTENTION_GROUP = 8;  // largest number of query heads per block
constexpr int ATTENTION_KEYS = 64;  // largest number of keys per stage
constexpr int ATTENTION_LEAST_TILES = 4;  // smallest number of tiles for a block of its own

// The part of a row's attention that one block computes.
struct AttentionPart {
  int row, first_head, num_heads, kv_head;
  int split, splits;  // index of the part, and number of parts for the row's length
  int begin, end;     // range of keys
};

__device__ inline AttentionPart attention_part(const AttentionArguments& a) {
  AttentionPart p;
  const int group = a.heads / a.kv_heads, chunks = (group + ATTENTION_GROUP - 1) / ATTENTION_GROUP;
  const int chunk = int(blockIdx.y) % chunks;
  p.row = int(blockIdx.x), p.kv_head = int(blockIdx.y) / chunks, p.split = int(blockIdx.z);
  p.first_head = p.kv_head * group + chunk * ATTENTION_GROUP;
  p.num_heads = group - chunk * ATTENTION_GROUP < ATTENTION_GROUP ? group - chunk * ATTENTION_GROUP : ATTENTION_GROUP;
  const int room = a.max_blocks * a.block_size, asked = a.context_lens[p.row], len = asked < room ? asked : room;
  const int first = a.window > 0 && len > a.window ? len - a.window : 0;
  const int tiles = (len - first + a.tile_keys - 1) / a.tile_keys;
  const int worth = (tiles + ATTENTION_LEAST_TILES - 1) / ATTENTION_LEAST_TILES;
  const int most = worth < int(gridDim.z) ? worth : int(gridDim.z);
  const int tiles_each = most > 0 ? (tiles + most - 1) / most : 0;
  p.splits = tiles_each > 0 ? (tiles + tiles_each - 1) / tiles_each : 0;
  p.begin = first + p.split * tiles_each * a.tile_keys;
  p.end = p.begin + tiles_each * a.tile_keys < len ? p.begin + tiles_each * a.tile_keys : len;
  return p;
}

// Layout of a block's dynamic shared memory.
template <class T, int G>
struct AttentionShared {
  int row_bytes;       // of a key or value, padded so that adjacent rows begin in different banks
  unsigned char* keys;  // [2, tile_keys] rows
  unsigned char* values;
  float *q, *scores, *stats, *sums;  // [G, head_dim], [tile_keys, G], [G, 4], [threads, 2 G]

  __device__ AttentionShared(const AttentionArguments& a, unsigned char* memory) {
    row_bytes = a.head_dim * int(sizeof(T)) + 16;
    keys = memory;
    values = keys + 2 * a.tile_keys * row_bytes;
    q = reinterpret_cast<float*>(values + 2 * a.tile_keys * row_bytes);
    scores = q + G * a.head_dim;
    stats = scores + G * a.tile_keys;
    sums = stats + G * 4;
  }
  __device__ unsigned char* key(const AttentionArguments& a, int stage, int k) const {
    return keys + (stage * a.tile_keys + k) * row_bytes;
  }
  __device__ unsigned char* value(const AttentionArguments& a, int stage, int k) const {
    return values + (stage * a.tile_keys + k) * row_bytes;
  }
};

// Finds the cache slots of the keys of a tile. Each thread below tile_keys finds one.
__device__ inline void find_slots(const AttentionArguments& a, const AttentionPart& p, int tile, int* slots) {
  const int k = int(threadIdx.x), j = p.begin + tile * a.tile_keys + k;
  if (k >= a.tile_keys || j >= p.end) return;
  const int block = a.block_tables[int64_t(p.row) * a.max_blocks + j / a.block_size];
  slots[k] = (block >= 0 && block < a.num_blocks ? block : 0) * a.block_size + j % a.block_size;
}

template <class T, int G>
__device__ inline void copy_tile(const AttentionArguments& a, const AttentionPart& p, int tile, const int* slots,
                                 const AttentionShared<T, G>& shared) {
  const int begin = p.begin + tile * a.tile_keys, left = p.end - begin;
  const int count = left < a.tile_keys ? left : a.tile_keys, per_row = a.head_dim * int(sizeof(T)) / 16;
  for (int item = int(threadIdx.x); item < count * per_row; item += ATTENTION_THREADS) {
    const int k = item / per_row, at = item % per_row * 16;
    const int64_t row = (int64_t(slots[k]) * a.kv_heads + p.kv_head) * a.head_dim * int64_t(sizeof(T));
    copy_16_async(shared.key(a, tile & 1, k) + at, static_cast<const unsigned char*>(a.k_cache) + row + at);
    copy_16_async(shared.value(a, tile & 1, k) + at, static_cast<const unsigned char*>(a.v_cache) + row + at);
  }
}

// Computes scores[k][g] = q_g . k. A thread computes one key and half of the heads.
template <class T, int G>
__device__ inline void tile_scores(const AttentionArguments& a, int tile, int count,
                                   const AttentionShared<T, G>& shared) {
  constexpr int HEADS = G > 1 ? G / 2 : 1, N = WIDE<T>;
  const int k = int(threadIdx.x) % ATTENTION_KEYS, first = int(threadIdx.x) / ATTENTION_KEYS * HEADS;
  if (k >= a.tile_keys || first >= G) return;
  float sums[HEADS] = {};
  if (k < count) {
    const T* key = reinterpret_cast<const T*>(shared.key(a, tile & 1, k));
    const float* q = shared.q + first * a.head_dim;
    for (int d = 0; d < a.head_dim; d += N) {
      const Vec<T, N> part = load<T, N>(key + d);
      RLT_UNROLL
      for (int g = 0; g < HEADS; ++g) {
        RLT_UNROLL
        for (int half = 0; half < N; half += 4) {
          const Vec<float, 4> query = load<float, 4>(q + g * a.head_dim + d + half);
          RLT_UNROLL
          for (int i = 0; i < 4; ++i) sums[g] += query.at[i] * to_float(part.at[half + i]);
        }
      }
    }
  }
  RLT_UNROLL
  for (int g = 0; g < HEADS; ++g) shared.scores[k * G + first + g] = k < count ? sums[g] : -INFINITE;
}

// Converts scores to weights, relative to the largest score of all tiles so far. A warp computes every fourth
// head. stats: maximum, sum, factor of earlier sums.
template <class T, int G>
__device__ inline void tile_softmax(const AttentionArguments& a, const AttentionShared<T, G>& shared) {
  for (int g = warp_idx(); g < G; g += ATTENTION_THREADS / 32) {
    float* stats = shared.stats + g * 4;
    float high = -INFINITE, sum = 0.0f;
    for (int k = lane_idx(); k < a.tile_keys; k += 32) high = fmaxf(high, shared.scores[k * G + g]);
    const float before = stats[0], max = fmaxf(before, warp_reduce(high, Max()));
    for (int k = lane_idx(); k < a.tile_keys; k += 32) {
      const float weight = expf(shared.scores[k * G + g] - max);
      shared.scores[k * G + g] = weight;
      sum += weight;
    }
    sum = warp_reduce(sum, Sum());
    const float scale = expf(before - max);
    __syncwarp();  // all lanes have read the previous maximum
    if (lane_idx() == 0) stats[0] = max, stats[1] = stats[1] * scale + sum, stats[2] = scale;
  }
}

// The work of a thread on the values: two dimensions of every step-th key of a tile.
struct ValueLane {
  int dim, first_key, step;
  bool active;
};

__device__ inline ValueLane value_lane(const AttentionArguments& a) {
  const int pairs = a.head_dim / 2, step = ATTENTION_THREADS / pairs, first = int(threadIdx.x) / pairs;
  return {int(threadIdx.x) % pairs * 2, first, step, first < step};
}

template <class T, int G>
__device__ inline void tile_values(const AttentionArguments& a, int tile, int count, const ValueLane& lane,
                                   const AttentionShared<T, G>& shared, float (&sums)[G][2]) {
  if (!lane.active) return;
  RLT_UNROLL
  for (int g = 0; g < G; ++g) {
    const float scale = shared.stats[g * 4 + 2];
    sums[g][0] *= scale, sums[g][1] *= scale;
  }
  for (int k = lane.first_key; k < count; k += lane.step) {
    const Vec<T, 2> value = load<T, 2>(reinterpret_cast<const T*>(shared.value(a, tile & 1, k)) + lane.dim);
    const float v0 = to_float(value.at[0]), v1 = to_float(value.at[1]);
    RLT_UNROLL
    for (int g = 0; g < G; ++g) {
      const float weight = shared.scores[k * G + g];
      sums[g][0] += weight * v0, sums[g][1] += weight * v1;
    }
  }
}

// Adds the sums of the threads that have the same dimensions. The first of these threads gets the total.
template <class T, int G>
__device__ inline void join_lanes(const AttentionArguments& a, const ValueLane& lane,
                                  const AttentionShared<T, G>& shared, float (&sums)[G][2]) {
  float* own = shared.sums + threadIdx.x * 2 * G;
  RLT_UNROLL
  for (int g = 0; g < G; ++g) own[2 * g] = sums[g][0], own[2 * g + 1] = sums[g][1];
  __syncthreads();
  if (lane.first_key != 0) return;
  for (int other = 1; other < lane.step; ++other) {
    const float* theirs = own + other * (a.head_dim / 2) * 2 * G;
    RLT_UNROLL
    for (int g = 0; g < G; ++g) sums[g][0] += theirs[2 * g], sums[g][1] += theirs[2 * g + 1];
  }
}

template <class T>
__device__ inline T* attention_out(const AttentionArguments& a, int row, int head) {
  return static_cast<T*>(a.out) + (int64_t(row) * a.heads + head) * a.head_dim;
}

__device__ inline float* attention_partial(const AttentionArguments& a, int row, int head, int split) {
  return a.partials + ((int64_t(row) * a.heads + head) * int(gridDim.z) + split) * (a.head_dim + 2);
}

// Whether this block is the last to finish of its row and group. The partial results of all other blocks are
// then visible to it.
__device__ inline bool is_last_part(const AttentionArguments& a, const AttentionPart& p) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned* counter = a.counters + int64_t(p.row) * gridDim.y + blockIdx.y;
    is_last = atomicAdd(counter, 1u) == unsigned(p.splits - 1);
    if (is_last) *counter = 0;
  }
  __syncthreads();
  __threadfence();
  return is_last;
}

template <class T>
__device__ inline void join_parts(const AttentionArguments& a, const AttentionPart& p) {
  const int dim = a.head_dim;
  for (int item = int(threadIdx.x); item < p.num_heads * dim; item += ATTENTION_THREADS) {
    const int head = p.first_head + item / dim, d = item % dim;
    float max = -INFINITE, sum = 0.0f, value = 0.0f;
    for (int s = 0; s < p.splits; ++s) max = fmaxf(max, attention_partial(a, p.row, head, s)[dim]);
    for (int s = 0; s < p.splits; ++s) {
      const float* part = attention_partial(a, p.row, head, s);
      const float weight = expf(part[dim] - max);
      sum += weight * part[dim + 1], value += weight * part[d];
    }
    attention_out<T>(a, p.row, head)[d] = from_float<T>(value * __fdividef(1.0f, sum));
  }
}

template <class T, int G>
__device__ inline void store_part(const AttentionArguments& a, const AttentionPart& p, const ValueLane& lane,
                                  const AttentionShared<T, G>& shared, const float (&sums)[G][2]) {
  if (!lane.active || lane.first_key != 0) return;
  RLT_UNROLL
  for (int g = 0; g < G; ++g) {
    if (g >= p.num_heads) continue;
    const float *stats = shared.stats + g * 4, sum = stats[1], inverse = __fdividef(1.0f, sum);
    if (p.splits == 1) {
      const Vec<T, 2> out = {{from_float<T>(sums[g][0] * inverse), from_float<T>(sums[g][1] * inverse)}};
      store<T, 2>(attention_out<T>(a, p.row, p.first_head + g) + lane.dim, out);
      continue;
    }
    float* part = attention_partial(a, p.row, p.first_head + g, p.split);
    part[lane.dim] = sums[g][0], part[lane.dim + 1] = sums[g][1];
    if (lane.dim == 0) part[a.head_dim] = stats[0], part[a.head_dim + 1] = sum;
  }
}

template <class T, int G>
__device__ inline void load_queries(const AttentionArguments& a, const AttentionPart& p,
                                    const AttentionShared<T, G>& shared) {
  const T* q = static_cast<const T*>(a.q) + (int64_t(p.row) * a.heads + p.first_head) * a.head_dim;
  for (int i = int(threadIdx.x); i < G * a.head_dim; i += ATTENTION_THREADS)
    shared.q[i] = i < p.num_heads * a.head_dim ? to_float(q[i]) * a.scale : 0.0f;
  if (threadIdx.x < G) {
    float* stats = shared.stats + threadIdx.x * 4;
    stats[0] = -INFINITE, stats[1] = 0.0f;
  }
}

template <class T>
__device__ inline void store_zeros(const AttentionArguments& a, const AttentionPart& p) {
  for (int i = int(threadIdx.x); i < p.num_heads * a.head_dim; i += ATTENTION_THREADS)
    attention_out<T>(a, p.row, p.first_head)[i] = from_float<T>(0.0f);
}

template <class T, int G>
__device__ inline void paged_decode_attention(const AttentionArguments& a) {
  RLT_DYNAMIC_SHARED(memory);
  __shared__ int slots[2][ATTENTION_KEYS];
  const AttentionPart p = attention_part(a);
  if (p.splits == 0 && p.split == 0) store_zeros<T>(a, p);
  if (p.split >= p.splits) return;
  const AttentionShared<T, G> shared(a, memory);
  const ValueLane lane = value_lane(a);
  float sums[G][2] = {};
  const int tiles = (p.end - p.begin + a.tile_keys - 1) / a.tile_keys;
  load_queries(a, p, shared);
  find_slots(a, p, 0, slots[0]);
  find_slots(a, p, 1, slots[1]);
  __syncthreads();
  copy_tile(a, p, 0, slots[0], shared);
  commit_copies();
  for (int tile = 0; tile < tiles; ++tile) {
    __syncthreads();  // all threads have read the other stage, and its next slots are found
    if (tile + 1 < tiles) copy_tile(a, p, tile + 1, slots[(tile + 1) & 1], shared);
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();  // the copies of this stage are visible to all threads
    find_slots(a, p, tile + 2, slots[tile & 1]);
    const int left = p.end - p.begin - tile * a.tile_keys, count = left < a.tile_keys ? left : a.tile_keys;
    tile_scores(a, tile, count, shared);
    __syncthreads();
    tile_softmax(a, shared);
    __syncthreads();
    tile_values(a, tile, count, lane, shared, sums);
  }
  join_lanes(a, lane, shared, sums);
  store_part(a, p, lane, shared, sums);
  if (p.splits > 1 && is_last_part(a, p)) join_parts<T>(a, p);
}

template <class T>
__device__ inline void attention_of_1(const AttentionArguments& a) {
  paged_decode_attention<T, 1>(a);
}
template <class T>
__device__ inline void attention_of_2(const AttentionArguments& a) {
  paged_decode_attention<T, 2>(a);
}
template <class T>
__device__ inline void attention_of_4(const AttentionArguments& a) {
  paged_decode_attention<T, 4>(a);
}
template <class T>
__device__ inline void attention_of_8(const AttentionArguments& a) {
  paged_decode_attention<T, 8>(a);
}

RLT_KERNELS(paged_decode_attention_g1, AttentionArguments, attention_of_1, 128, 3)
RLT_KERNELS(paged_decode_attention_g2, AttentionArguments, attention_of_2, 128, 3)
RLT_KERNELS(paged_decode_attention_g4, AttentionArguments, attention_of_4, 128, 3)
RLT_KERNELS(paged_decode_attention_g8, AttentionArguments, attention_of_8, 128, 3)

}  // namespace rlt
