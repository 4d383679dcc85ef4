// Sampling of the next tokens, as defined by rlt_core::sampling, in three launches: statistics of parts of
// each row, weights of chunks of 256 tokens, and one block per row that truncates and draws. Weights are
// integers in steps of 2^-60, whose sum does not depend on the order, so a draw is the same in every run.
// Bound by two reads of the logits. For rows with top-k or top-p the probabilities are also written once and
// read three times for each.
#include "include/device.cuh"

namespace rlt {

struct SampleArguments {
  const void* logits;
  const uint64_t* params;  // [rows, 5]
  const int32_t* steps;
  unsigned* seen;  // [rows, words], or null
  float* parts;    // [rows, num_parts, 6]
  unsigned long long* chunk_sums;  // [rows, num_chunks]
  float* probs;    // [rows, vocabulary], for rows with a truncation
  int32_t* tokens;
  float* logprobs;
  int64_t vocabulary;
  int32_t num_parts, num_chunks;
  int32_t banned[4];  // tokens that no row draws; none if the first is negative
};

constexpr int PART = 8192, PART_FLOATS = 6, CHUNK = 256, PER_LANE = 8;
constexpr int STATISTICS_THREADS = 256, DRAW_THREADS = 1024;

using Weight = unsigned long long;

// Sampling parameters of one row.
struct RowParams {
  uint64_t seed;
  double penalty, top_p, min_p;
  float temperature;
  uint32_t top_k;
  bool has_penalty, has_banned, is_greedy, truncates;

  // Whether the logits for the draw differ from those for the log-probs.
  __device__ bool is_changed() const { return has_penalty || has_banned; }
};

__device__ inline RowParams row_params(const SampleArguments& a, int row) {
  const uint64_t* words = a.params + int64_t(row) * 5;
  RowParams p;
  p.seed = words[0];
  p.penalty = __longlong_as_double(int64_t(words[1]));
  p.top_p = __longlong_as_double(int64_t(words[2]));
  p.min_p = __longlong_as_double(int64_t(words[3]));
  p.temperature = __uint_as_float(uint32_t(words[4]));
  p.top_k = uint32_t(words[4] >> 32);
  p.has_penalty = p.penalty != 1.0 && a.seen != nullptr;
  p.has_banned = a.banned[0] >= 0;
  p.is_greedy = p.temperature == 0.0f;
  p.truncates = (p.top_k > 0 && int64_t(p.top_k) < a.vocabulary) || p.top_p < 1.0 || p.min_p > 0.0;
  return p;
}

// Logits of one row: unchanged for log-probs, and penalised for the draw.
template <class T>
struct Row {
  const T* logits;
  const unsigned* seen;
  const int32_t* banned;
  RowParams p;
  float temperature;  // of both distributions; 1 for a greedy draw

  __device__ Row(const SampleArguments& a, int row) : p(row_params(a, row)) {
    logits = static_cast<const T*>(a.logits) + int64_t(row) * a.vocabulary;
    banned = a.banned;
    seen = p.has_penalty ? a.seen + int64_t(row) * ((a.vocabulary + 31) / 32) : nullptr;
    temperature = p.is_greedy ? 1.0f : p.temperature;
  }
  // A division takes longer than the exponential after it, and most rows have temperature 1.
  __device__ float tempered(float z) const { return temperature == 1.0f ? z : z / temperature; }
  __device__ float plain(int64_t token) const { return tempered(to_float(logits[token])); }
  __device__ bool is_banned(int64_t token) const {
    return token == banned[0] || token == banned[1] || token == banned[2] || token == banned[3];
  }
  __device__ float penalised(int64_t token) const {
    if (p.has_banned && is_banned(token)) return -INFINITE;
    float z = to_float(logits[token]);
    if (seen != nullptr && (seen[token / 32] >> (token % 32) & 1))
      z = float(double(z) * (z > 0.0f ? 1.0 / p.penalty : p.penalty));
    return tempered(z);
  }
};

// Writes the maximum and the sum of exponentials of a part of one distribution. A NaN or an infinity makes
// the sum NaN.
template <class Logit>
__device__ inline void part_statistics(int64_t begin, int64_t end, Logit logit, float* out) {
  constexpr int EACH = PART / STATISTICS_THREADS;
  float z[EACH], high = -INFINITE, sum = 0.0f;
  RLT_UNROLL
  for (int k = 0; k < EACH; ++k) {
    const int64_t token = begin + k * STATISTICS_THREADS + threadIdx.x;
    z[k] = token < end ? logit(token) : -INFINITE;
    high = fmaxf(high, z[k]);
  }
  high = block_reduce(high, Max(), -INFINITE);
  const float base = high == -INFINITE ? 0.0f : high;
  RLT_UNROLL
  for (int k = 0; k < EACH; ++k) sum += expf(z[k] - base);
  sum = block_reduce(sum, Sum(), 0.0f);
  if (threadIdx.x == 0) out[0] = high, out[1] = sum;
}

// Encodes a logit and its token as an integer that orders by logit, then by descending token, so that the
// first of equal logits is the largest.
__device__ inline Weight rank_of(float logit, int64_t token) {
  const uint32_t bits = __float_as_uint(logit == 0.0f ? 0.0f : logit);
  const uint32_t ordered = bits >> 31 ? ~bits : bits | 0x80000000u;
  return Weight(ordered) << 32 | (0xffffffffu - uint32_t(token));
}

template <class T>
__device__ inline void sample_statistics(const SampleArguments& a) {
  const int row = int(blockIdx.x), part = int(blockIdx.y);
  if (a.steps[row] < 0) return;
  const Row<T> r(a, row);
  const int64_t begin = int64_t(part) * PART, end = begin + PART < a.vocabulary ? begin + PART : a.vocabulary;
  float* out = a.parts + (int64_t(row) * a.num_parts + part) * PART_FLOATS;
  part_statistics(begin, end, [&](int64_t token) { return r.plain(token); }, out);
  if (r.p.is_changed()) part_statistics(begin, end, [&](int64_t token) { return r.penalised(token); }, out + 2);
  if (!r.p.is_greedy) return;
  Weight best = 0;
  for (int64_t token = begin + threadIdx.x; token < end; token += blockDim.x) {
    const float z = r.penalised(token);
    if (z == z) best = Max()(best, rank_of(z, token));
  }
  best = block_reduce(best, Max(), Weight(0));
  if (threadIdx.x == 0) out[4] = __uint_as_float(uint32_t(best >> 32)), out[5] = __uint_as_float(uint32_t(best));
}

// Maximum and log of the sum of exponentials of a distribution, from the statistics of its parts. `at` is the
// offset of the distribution in a part's statistics.
struct Normaliser {
  float max, log_sum;
  bool is_finite;
};

__device__ inline Normaliser normaliser(const SampleArguments& a, int row, int at) {
  const float* parts = a.parts + int64_t(row) * a.num_parts * PART_FLOATS + at;
  float max = -INFINITE, sum = 0.0f;
  for (int k = 0; k < a.num_parts; ++k) max = fmaxf(max, parts[k * PART_FLOATS]);
  for (int k = 0; k < a.num_parts; ++k) {
    const float part = parts[k * PART_FLOATS + 1];
    sum += part == 0.0f ? 0.0f : part * expf(parts[k * PART_FLOATS] - max);
  }
  return {max, logf(sum), sum > 0.0f && sum < INFINITE};
}

// Converts a probability to steps of 2^-60.
__device__ inline Weight weight_of(float p) { return Weight(p * 0x1p60f); }

// The distribution from which a row is drawn.
template <class T>
struct Distribution {
  Row<T> row;
  Normaliser plain, drawn;

  __device__ Distribution(const SampleArguments& a, int idx)
      : row(a, idx), plain(normaliser(a, idx, 0)), drawn(row.p.is_changed() ? normaliser(a, idx, 2) : plain) {}
  __device__ bool is_finite() const { return plain.is_finite && drawn.is_finite; }
  __device__ float prob(int64_t token) const { return expf(row.penalised(token) - drawn.max - drawn.log_sum); }
};

// Sums the weights of chunks of 256 tokens, one chunk per warp.
template <class T>
__device__ inline void sample_weights(const SampleArguments& a) {
  const int idx = int(blockIdx.x);
  if (a.steps[idx] < 0) return;
  const Distribution<T> d(a, idx);
  if (d.row.p.is_greedy || !d.is_finite()) return;
  constexpr int WARPS = STATISTICS_THREADS / 32;
  const int first = int(blockIdx.y) * (PART / CHUNK) + warp_idx();
  for (int chunk = first; chunk < int(blockIdx.y + 1) * (PART / CHUNK) && chunk < a.num_chunks; chunk += WARPS) {
    Weight sum = 0;
    RLT_UNROLL
    for (int k = 0; k < PER_LANE; ++k) {
      const int64_t token = int64_t(chunk) * CHUNK + k * 32 + lane_idx();
      const float p = token < a.vocabulary ? d.prob(token) : 0.0f;
      if (d.row.p.truncates && token < a.vocabulary) a.probs[int64_t(idx) * a.vocabulary + token] = p;
      sum += weight_of(p);
    }
    sum = warp_reduce(sum, Sum());
    if (lane_idx() == 0) a.chunk_sums[int64_t(idx) * a.num_chunks + chunk] = sum;
  }
}

// Returns the sum of the values of all threads before this one; `total` becomes the sum of all threads.
__device__ inline Weight block_sum_before(Weight value, Weight& total) {
  __shared__ Weight of_warp[32];
  Weight upto = value;
  RLT_UNROLL
  for (int distance = 1; distance < 32; distance *= 2) {
    const Weight other = __shfl_up_sync(ALL_LANES, upto, distance);
    if (lane_idx() >= distance) upto += other;
  }
  __syncthreads();  // all threads have read the previous scan
  if (lane_idx() == 31) of_warp[warp_idx()] = upto;
  __syncthreads();
  Weight before = 0;
  total = 0;
  for (int warp = 0; warp < int(blockDim.x / 32); ++warp) {
    if (warp < warp_idx()) before += of_warp[warp];
    total += of_warp[warp];
  }
  return before + upto - value;
}

// A threshold. It keeps tokens more probable than `value`, and of equally probable tokens those up to
// `last_tied`.
struct Cut {
  float value;
  int64_t last_tied;

  __device__ bool keeps(int64_t token, float p) const { return p > value || (p == value && token <= last_tied); }
};
constexpr int64_t ALL_TIED = INT64_MAX;

// Finds the first token, in the order of the vocabulary, at which the running sum of weights exceeds
// `choose(total)`. `chunk_sum` returns the weight of a chunk of 256 tokens, `weight` that of one token. Every
// thread must call this, and gets the token.
template <class ChunkSum, class WeightOf, class Choose>
__device__ inline int64_t walk(const SampleArguments& a, ChunkSum chunk_sum, WeightOf weight, Choose choose) {
  __shared__ int found_chunk, found_token;
  __shared__ Weight found_below;
  const int each = (a.num_chunks + DRAW_THREADS - 1) / DRAW_THREADS, first = int(threadIdx.x) * each;
  const int behind = first + each < a.num_chunks ? first + each : a.num_chunks;
  Weight own = 0, total;
  for (int chunk = first; chunk < behind; ++chunk) own += chunk_sum(chunk);
  Weight below = block_sum_before(own, total);
  const Weight target = choose(total);
  if (threadIdx.x == 0) found_chunk = 0, found_token = 0, found_below = 0;
  __syncthreads();
  if (below <= target && target < below + own) {
    for (int chunk = first; chunk < behind; ++chunk) {
      const Weight sum = chunk_sum(chunk);
      if (target < below + sum) {
        found_chunk = chunk, found_below = below;
        break;
      }
      below += sum;
    }
  }
  __syncthreads();
  if (warp_idx() == 0) {
    const int64_t start = int64_t(found_chunk) * CHUNK + lane_idx() * PER_LANE;
    Weight weights[PER_LANE], sum = 0;
    RLT_UNROLL
    for (int k = 0; k < PER_LANE; ++k) weights[k] = start + k < a.vocabulary ? weight(start + k) : 0, sum += weights[k];
    Weight upto = sum;
    RLT_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
      const Weight other = __shfl_up_sync(ALL_LANES, upto, distance);
      if (lane_idx() >= distance) upto += other;
    }
    Weight at = found_below + upto - sum;
    RLT_UNROLL
    for (int k = 0; k < PER_LANE; ++k) {
      if (at <= target && target < at + weights[k]) found_token = int(start + k);
      at += weights[k];
    }
  }
  __syncthreads();
  return found_token;
}

constexpr int DIGIT_BITS = 10, DIGITS = 1 << DIGIT_BITS, LEVELS = 3;

// The fewest most probable tokens whose weights sum to `choose(total)`: their smallest probability, the
// weight above it, and the weight of tokens equal to it. Found digit by digit in the bits of the probability,
// which have the same order.
struct Reached {
  float value;
  Weight target, above, tied;
  bool is_found;
};

template <class WeightOf, class Choose>
__device__ inline Reached reach(const SampleArguments& a, const float* probs, WeightOf weight, Choose choose) {
  __shared__ Weight histogram[DIGITS];
  __shared__ Weight found_above, found_tied;
  __shared__ int found_digit;
  Reached r = {0.0f, 0, 0, 0, false};
  uint32_t prefix = 0;
  for (int level = 0; level < LEVELS; ++level) {
    const int shift = (LEVELS - 1 - level) * DIGIT_BITS;
    __syncthreads();  // all threads have read the previous results
    histogram[threadIdx.x] = 0;
    if (threadIdx.x == 0) found_digit = -1;
    __syncthreads();
    for (int64_t token = threadIdx.x; token < a.vocabulary; token += DRAW_THREADS) {
      const uint32_t bits = __float_as_uint(probs[token]);
      if (level > 0 && bits >> (shift + DIGIT_BITS) != prefix) continue;
      const Weight w = weight(token, probs[token]);
      if (w > 0) atomicAdd(&histogram[bits >> shift & (DIGITS - 1)], w);
    }
    __syncthreads();
    // The first thread has the largest digit.
    const int digit = DIGITS - 1 - int(threadIdx.x);
    const Weight own = histogram[digit];
    Weight total;
    const Weight above = r.above + block_sum_before(own, total);
    if (level == 0) r.target = choose(total);
    if (above < r.target && r.target <= above + own) found_digit = digit, found_above = above, found_tied = own;
    __syncthreads();
    if (found_digit < 0) return r;
    prefix = prefix << DIGIT_BITS | uint32_t(found_digit);
    r.above = found_above, r.tied = found_tied;
  }
  r.value = __uint_as_float(prefix);
  r.is_found = true;
  return r;
}

// Sums the weights of the tokens in a chunk, in one thread.
template <class WeightOf>
__device__ inline Weight sum_of_chunk(const SampleArguments& a, int chunk, WeightOf weight) {
  Weight sum = 0;
  for (int64_t token = int64_t(chunk) * CHUNK; token < int64_t(chunk + 1) * CHUNK && token < a.vocabulary; ++token)
    sum += weight(token);
  return sum;
}

__device__ inline Cut top_k(const SampleArguments& a, const float* probs, uint32_t k) {
  const auto one = [](int64_t, float) { return Weight(1); };
  const Reached r = reach(a, probs, one, [&](Weight) { return Weight(k); });
  return r.is_found ? Cut{r.value, ALL_TIED} : Cut{0.0f, ALL_TIED};
}

__device__ inline Cut top_p(const SampleArguments& a, const float* probs, Cut before, double share) {
  const auto kept = [&](int64_t token, float p) { return before.keeps(token, p) ? weight_of(p) : Weight(0); };
  const Reached r = reach(a, probs, kept, [&](Weight total) { return Weight(ceil(share * double(total))); });
  if (!r.is_found) return {0.0f, ALL_TIED};
  const Weight each = weight_of(r.value), needed = (r.target - r.above + each - 1) / each;
  if (needed * each >= r.tied) return {r.value, ALL_TIED};
  // Only the first of the tied tokens are kept; `walk` finds the last of these.
  const auto tied = [&](int64_t token) { return Weight(probs[token] == r.value ? 1 : 0); };
  const auto chunk = [&](int c) { return sum_of_chunk(a, c, tied); };
  return {r.value, walk(a, chunk, tied, [&](Weight) { return needed - 1; })};
}

template <class T>
__device__ inline Cut cut_of(const SampleArguments& a, const Distribution<T>& d, const float* probs) {
  const RowParams& p = d.row.p;
  Cut cut = {0.0f, ALL_TIED};
  if (p.top_k > 0 && int64_t(p.top_k) < a.vocabulary) cut = top_k(a, probs, p.top_k);
  if (p.top_p < 1.0) cut = top_p(a, probs, cut, p.top_p);
  if (p.min_p > 0.0) {
    const float least = float(double(expf(-d.drawn.log_sum)) * p.min_p);
    if (least > cut.value) cut = {least, ALL_TIED};
  }
  return cut;
}

template <class T>
__device__ inline int64_t drawn_token(const SampleArguments& a, int row, const Distribution<T>& d) {
  const uint64_t bits = splitmix64(splitmix64(d.row.p.seed, 0), uint64_t(a.steps[row]));
  const double u = unit_interval(bits);
  const auto choose = [&](Weight total) {
    const Weight target = Weight(u * double(total));
    return target < total ? target : total - 1;
  };
  const float* probs = a.probs + int64_t(row) * a.vocabulary;
  if (!d.row.p.truncates) {
    const auto chunk = [&](int c) { return a.chunk_sums[int64_t(row) * a.num_chunks + c]; };
    return walk(a, chunk, [&](int64_t token) { return weight_of(d.prob(token)); }, choose);
  }
  const Cut cut = cut_of(a, d, probs);
  const auto kept = [&](int64_t token) { return cut.keeps(token, probs[token]) ? weight_of(probs[token]) : Weight(0); };
  // `walk` reads the weight of each chunk twice, so the weights are stored in place of those before
  // truncation.
  for (int c = warp_idx(); c < a.num_chunks; c += DRAW_THREADS / 32) {
    Weight sum = 0;
    for (int64_t token = int64_t(c) * CHUNK + lane_idx(); token < int64_t(c + 1) * CHUNK && token < a.vocabulary;
         token += 32)
      sum += kept(token);
    sum = warp_reduce(sum, Sum());
    if (lane_idx() == 0) a.chunk_sums[int64_t(row) * a.num_chunks + c] = sum;
  }
  __syncthreads();
  const auto chunk = [&](int c) { return a.chunk_sums[int64_t(row) * a.num_chunks + c]; };
  return walk(a, chunk, kept, choose);
}

__device__ inline int64_t greedy_token(const SampleArguments& a, int row) {
  const float* parts = a.parts + int64_t(row) * a.num_parts * PART_FLOATS;
  Weight best = 0;
  for (int k = 0; k < a.num_parts; ++k) {
    const float* part = parts + k * PART_FLOATS;
    best = Max()(best, Weight(__float_as_uint(part[4])) << 32 | __float_as_uint(part[5]));
  }
  return int64_t(0xffffffffu - uint32_t(best));
}

template <class T>
__device__ inline void sample_draw(const SampleArguments& a) {
  const int row = int(blockIdx.x);
  if (a.steps[row] < 0) return;
  const Distribution<T> d(a, row);
  if (!d.is_finite()) {
    if (threadIdx.x == 0) a.tokens[row] = 0, a.logprobs[row] = NAN;
    return;
  }
  const int64_t token = d.row.p.is_greedy ? greedy_token(a, row) : drawn_token(a, row, d);
  if (threadIdx.x != 0) return;
  a.tokens[row] = int32_t(token);
  a.logprobs[row] = d.row.plain(token) - d.plain.max - d.plain.log_sum;
  if (a.seen != nullptr) a.seen[int64_t(row) * ((a.vocabulary + 31) / 32) + token / 32] |= 1u << (token % 32);
}

RLT_KERNELS(sample_statistics, SampleArguments, sample_statistics, 256)
RLT_KERNELS(sample_weights, SampleArguments, sample_weights, 256)
RLT_KERNELS(sample_draw, SampleArguments, sample_draw, 1024)

}  // namespace rlt
