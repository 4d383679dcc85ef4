// Attention of single queries over a paged cache. A block table lists the cache blocks with the keys and
// values of a context.

constexpr int64_t GROUP_MAX =
    4;  // query heads that are computed together, so that each key is loaded once for all of them

static int64_t paged_scratch(const PagedAttention& a, int64_t context_len) {
  const int64_t wide = round_up(a.dim, W), group = a.heads / a.kv_heads;
  return group * round_up(context_len, W) + 2 * group * wide + a.block_size * wide;
}

// scores[g][j] = q_g . k_j for `count` keys of one block.
template <int G, class T>
static void block_scores(int64_t count, int64_t dim, const float* q, int64_t wide, const T* k,
                         int64_t k_stride, float* scores, int64_t scores_stride) {
  int64_t j = 0;
  for (; j + 4 <= count; j += 4) {
    vf acc[G][4] = {};
    for (int64_t d = 0; d < dim; d += W) {
      vf query[G];
      for (int g = 0; g < G; ++g) query[g] = load(q + g * wide + d);
      for (int i = 0; i < 4; ++i) {
        const vf key = load_at(k + (j + i) * k_stride, d, dim);
        for (int g = 0; g < G; ++g) acc[g][i] += query[g] * key;
      }
    }
    for (int g = 0; g < G; ++g) sums_of(acc[g], scores + g * scores_stride + j);
  }
  for (; j < count; ++j) {
    vf acc[G] = {};
    for (int64_t d = 0; d < dim; d += W) {
      const vf key = load_at(k + j * k_stride, d, dim);
      for (int g = 0; g < G; ++g) acc[g] += load(q + g * wide + d) * key;
    }
    for (int g = 0; g < G; ++g) scores[g * scores_stride + j] = sum_of(acc[g]);
  }
}

template <class T>
static void group_scores(int64_t groups, int64_t count, int64_t dim, const float* q, int64_t wide, const T* k,
                         int64_t k_stride, float* scores, int64_t scores_stride) {
  for (int64_t g = 0; g < groups; g += GROUP_MAX) {
    const float* qg = q + g * wide;
    float* sg = scores + g * scores_stride;
    switch (lesser(GROUP_MAX, groups - g)) {
      case 1: block_scores<1>(count, dim, qg, wide, k, k_stride, sg, scores_stride); break;
      case 2: block_scores<2>(count, dim, qg, wide, k, k_stride, sg, scores_stride); break;
      case 3: block_scores<3>(count, dim, qg, wide, k, k_stride, sg, scores_stride); break;
      default: block_scores<4>(count, dim, qg, wide, k, k_stride, sg, scores_stride); break;
    }
  }
}

// Returns the float rows of values: in place if the width is a multiple of the vector width, else a copy in
// `buffer`.
static inline const float* value_rows(const float* v, int64_t stride, int64_t count, int64_t dim,
                                      float* buffer, int64_t& row_stride) {
  if (dim % W == 0) {
    row_stride = stride;
    return v;
  }
  row_stride = round_up(dim, W);
  pack_rows(v, stride, count, dim, 1.0f, buffer, row_stride);
  return buffer;
}
static inline const float* value_rows(const bf16* v, int64_t stride, int64_t count, int64_t dim,
                                      float* buffer, int64_t& row_stride) {
  row_stride = round_up(dim, W);
  pack_rows(v, stride, count, dim, 1.0f, buffer, row_stride);
  return buffer;
}

template <class T>
static void paged_attention_t(const PagedAttention& a, int64_t query, int64_t kv_head, float* scratch) {
  const int64_t group = a.heads / a.kv_heads, wide = round_up(a.dim, W), len = a.context_lens[query];
  const int64_t stride = a.kv_heads * a.dim, row = round_up(len, W);
  float* scores = scratch;
  float* q = scores + group * row;
  float* acc = q + group * wide;
  float* buffer = acc + group * wide;
  const int32_t* table = a.block_tables[query];
  const int64_t first = a.window > 0 ? greater(0, len - a.window) : 0;
  pack_rows(static_cast<const T*>(a.q) + query * a.q_b + kv_head * group * a.q_h, a.q_h, group, a.dim,
            a.scale, q, wide);
  const auto block = [&](const void* cache, int64_t j) {
    return static_cast<const T*>(cache) +
           (table[j / a.block_size] * a.block_size + j % a.block_size) * stride + kv_head * a.dim;
  };
  const auto block_end = [&](int64_t j) { return lesser(len, (j / a.block_size + 1) * a.block_size); };
  for (int64_t j = first; j < len; j = block_end(j))
    group_scores(group, block_end(j) - j, a.dim, q, wide, block(a.k_cache, j), stride, scores + j, row);
  float inverse[64];
  for (int64_t g0 = 0; g0 < group; g0 += 64) {
    const int64_t groups = lesser(64, group - g0);
    for (int64_t g = 0; g < groups; ++g) {
      float max, sum;
      begin_softmax(a.sinks, kv_head * group + g0 + g, max, sum);
      if (a.softcap != 0.0f) cap_scores(scores + (g0 + g) * row, row, 1.0f, a.softcap);
      online_softmax(scores + (g0 + g) * row, Visible{first, len}, row, max, sum);
      inverse[g] = 1.0f / sum;
    }
    __builtin_memset(acc, 0, size_t(groups * wide) * 4);
    for (int64_t j = first; j < len; j = block_end(j)) {
      int64_t row_stride;
      const float* v = value_rows(block(a.v_cache, j), stride, block_end(j) - j, a.dim, buffer, row_stride);
      gemm<true>(groups, wide, block_end(j) - j, scores + g0 * row + j, row, 1, v, row_stride, acc, wide);
    }
    for (int64_t g = 0; g < groups; ++g) {
      T* out = static_cast<T*>(a.out) + (query * a.heads + kv_head * group + g0 + g) * a.dim;
      for (int64_t d = 0; d < a.dim; d += W) store_at(out, load(acc + g * wide + d) * inverse[g], d, a.dim);
    }
  }
}
