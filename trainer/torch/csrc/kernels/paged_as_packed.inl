// Attention of single queries over a paged cache in bfloat16, which adds in the order of attention.inl: a
// token's values are bitwise equal whether it is decoded or part of a packed sequence. Used if
// `has_one_order` is true.
#if defined(__AVX512F__)
// Largest number of query heads of a KV head that are computed together.
constexpr int64_t PACKED_GROUP_MAX = 64;
// Number of keys that are transposed at once, so that they fit the first-level cache.
constexpr int64_t TRANSPOSED_KEYS = 64;

static int64_t paged_as_packed_scratch(const PagedAttention& a) {
  const int64_t wide = round_up(a.dim, W), most = lesser(PACKED_GROUP_MAX, a.heads / a.kv_heads);
  return a.dim * panel_stride(TRANSPOSED_KEYS) + a.block_size * wide + Queries::len(most, wide);
}

// The keys and values of one KV head in the cache blocks of a query's context.
struct Context {
  const PagedAttention& a;
  const int32_t* table;
  int64_t kv_head;

  int64_t stride() const { return a.kv_heads * a.dim; }
  const bf16* row(const void* cache, int64_t j) const {
    return static_cast<const bf16*>(cache) +
           (table[j / a.block_size] * a.block_size + j % a.block_size) * stride() + kv_head * a.dim;
  }
  // Returns the end of the cache block that contains key j, at most `end`.
  int64_t block_end(int64_t j, int64_t end) const { return lesser(end, (j / a.block_size + 1) * a.block_size); }
};

// Computes the scores of m queries and the keys [begin, end).
static inline void score_stretch(const Context& c, int64_t m, const Queries& q, int64_t begin, int64_t end,
                                 float* keys_t) {
  const int64_t panel = panel_stride(TRANSPOSED_KEYS), dim = c.a.dim;
  for (int64_t at = begin, last; at < end; at = last) {
    last = lesser(end, at + TRANSPOSED_KEYS);
    for (int64_t j = at, next; j < last; j = next) {
      next = c.block_end(j, last);
      pack_transposed(c.row(c.a.k_cache, j), c.stride(), next - j, dim, keys_t + j - at, panel,
                      round_up(next - j, W));
    }
    gemm<false>(m, round_up(last - at, W), dim, q.rows, q.wide, 1, keys_t, panel, q.scores + at - begin, KEY_BLOCK);
  }
}

static inline void add_values(const Context& c, int64_t m, const Queries& q, int64_t begin, int64_t end,
                              float* buffer) {
  for (int64_t j = begin, next; j < end; j = next) {
    next = c.block_end(j, end);
    int64_t row_stride;
    const float* v = value_rows(c.row(c.a.v_cache, j), c.stride(), next - j, c.a.dim, buffer, row_stride);
    gemm<true>(m, q.wide, next - j, q.scores + j - begin, KEY_BLOCK, 1, v, row_stride, q.acc, q.wide);
  }
}

// Computes the query heads [head, head + m) of one query.
static inline void attend_as_packed(const Context& c, int64_t query, int64_t head, int64_t m, const Queries& q,
                                    float* keys_t, float* buffer) {
  const PagedAttention& a = c.a;
  const int64_t len = a.context_lens[query], first = a.window > 0 ? greater(0, len - a.window) : 0;
  const bf16* rows = static_cast<const bf16*>(a.q) + query * a.q_b + head * a.q_h;
  pack_rows(rows, a.q_h, m, a.dim, a.scale, q.rows, q.wide);
  __builtin_memset(q.acc, 0, size_t(m * q.wide) * 4);
  for (int64_t g = 0; g < m; ++g) begin_softmax(a.sinks, head + g, q.max[g], q.sum[g]);
  for (int64_t j = first / W * W, end; j < len; j = end) {
    end = stretch_end(true, j, len);
    score_stretch(c, m, q, j, end, keys_t);
    const Visible seen{greater(0, first - j), end - j};
    weigh_stretch(m, end - j, a.softcap, q, [&](int64_t) { return seen; });
    add_values(c, m, q, j, end, buffer);
  }
  bf16* out = static_cast<bf16*>(a.out) + (query * a.heads + head) * a.dim;
  for (int64_t g = 0; g < m; ++g) {
    const float inverse = 1.0f / q.sum[g];
    for (int64_t d = 0; d < a.dim; d += W)
      store_at(out + g * a.dim, load(q.acc + g * q.wide + d) * inverse, d, a.dim);
  }
}

static void paged_as_packed(const PagedAttention& a, int64_t query, int64_t kv_head, float* scratch) {
  const int64_t group = a.heads / a.kv_heads, wide = round_up(a.dim, W);
  float *keys_t = scratch, *buffer = keys_t + a.dim * panel_stride(TRANSPOSED_KEYS);
  const Queries q(lesser(PACKED_GROUP_MAX, group), wide, buffer + a.block_size * wide);
  const Context context{a, a.block_tables[query], kv_head};
  for (int64_t at = 0; at < group; at += PACKED_GROUP_MAX)
    attend_as_packed(context, query, kv_head * group + at, lesser(PACKED_GROUP_MAX, group - at), q, keys_t, buffer);
}
#endif
