// Causal flash attention of a trunk and its branches: blocks of queries against blocks of keys with an online
// softmax, so that memory grows linearly with the length. The packed keys of the trunk precede those of the
// current branch, so a branch is computed like the end of one long segment. The gradients of the trunk are
// accumulated in place, in the order of the branches. All arithmetic is in float.

constexpr int64_t QUERY_BLOCK = 24;  // a multiple of the rows of an AVX-512 tile
constexpr int64_t KEY_BLOCK = 256;

template <class T>
static void pack_rows(const T* x, int64_t stride, int64_t rows, int64_t n, float scale, float* out,
                      int64_t out_stride) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < out_stride; i += W)
      store(out + r * out_stride + i, i < n ? load_at(x + r * stride, i, n) * scale : vf{});
}

// Transposes: out[d][r] = x[r][d] for r below `columns`, with zeros from `rows` on.
template <class T>
static void pack_transposed(const T* x, int64_t stride, int64_t rows, int64_t n, float* out,
                            int64_t out_stride, int64_t columns) {
  for (int64_t r0 = 0; r0 < columns; r0 += 16)
    for (int64_t d = 0; d < n; ++d)
      for (int64_t r = r0; r < lesser(r0 + 16, columns); ++r)
        out[d * out_stride + r] = r < rows ? to_float(x[r * stride + d]) : 0.0f;
}
#if defined(__AVX512F__)
// Transposes bfloat16 values in pairs of 32 bits, W pairs per vector.
static void pack_transposed(const bf16* x, int64_t stride, int64_t rows, int64_t n, float* out,
                            int64_t out_stride, int64_t columns) {
  const auto pairs = [&](const bf16* row, int64_t d0) {
    if (n - d0 >= 2 * W) return load(reinterpret_cast<const float*>(row + d0));
    if (n % 2 == 0) return load_part(reinterpret_cast<const float*>(row + d0), (n - d0) / 2);
    bf16 last[2 * W] = {};
    __builtin_memcpy(last, row + d0, size_t(n - d0) * sizeof(bf16));
    return load(reinterpret_cast<const float*>(last));
  };
  for (int64_t r0 = 0; r0 < columns; r0 += W)
    for (int64_t d0 = 0; d0 < n; d0 += 2 * W) {
      vf block[W];
      for (int r = 0; r < W; ++r) block[r] = r0 + r < rows ? pairs(x + (r0 + r) * stride, d0) : vf{};
      transpose(block);
      for (int64_t d = d0; d < lesser(d0 + 2 * W, n); d += 2) {
        const vu pair = (vu)block[(d - d0) / 2];
        store_at(out + d * out_stride, (vf)(pair << 16), r0, columns);
        if (d + 1 < n) store_at(out + (d + 1) * out_stride, (vf)(pair & 0xffff0000u), r0, columns);
      }
    }
}
#endif

template <class T>
static void unpack_rows(const float* x, int64_t x_stride, int64_t rows, int64_t n, T* out, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < n; i += W) store_at(out + r * stride, load(x + r * x_stride + i), i, n);
}

// Row stride of a panel. One extra vector avoids powers of two, for which rows would compete for few cache
// sets.
static inline int64_t panel_stride(int64_t len) { return round_up(len, W) + W; }

// State of a block of queries: scaled queries, scores of the current block of keys, and the accumulated
// output with its softmax statistics.
struct Queries {
  int64_t wide;
  float *rows, *acc, *scores, *max, *sum;

  static int64_t len(int64_t num, int64_t wide) { return num * (2 * wide + KEY_BLOCK + 2); }
  Queries(int64_t num, int64_t wide, float* scratch) : wide(wide), rows(scratch) {
    acc = rows + num * wide;
    scores = acc + num * wide;
    max = scores + num * KEY_BLOCK;
    sum = max + num;
  }
};

static int64_t attention_scratch(const Attention& a, int64_t len, bool backward) {
  const int64_t wide = round_up(a.dim, W), panel = panel_stride(len);
  if (!backward)
    return a.dim * panel + len * wide + Queries::len(QUERY_BLOCK, wide);
  return 2 * a.dim * panel + 3 * len * wide + 3 * QUERY_BLOCK * wide + 2 * QUERY_BLOCK * KEY_BLOCK +
         QUERY_BLOCK;
}

// The visible keys [first, last) of query i among keys [j0, j0 + n), relative to j0.
struct Visible {
  int64_t first, last;
};
static inline Visible visible(const Attention& a, int64_t i, int64_t j0, int64_t n) {
  const int64_t first = a.window > 0 ? greater(0, i - a.window + 1 - j0) : 0;
  return {lesser(first, n), greater(0, lesser(n, i + 1 - j0))};
}
static inline int64_t first_key(const Attention& a, int64_t i0) {
  return a.window > 0 ? greater(0, i0 - a.window + 1) / W * W : 0;
}
// Sets the scores of invisible keys, those outside of `seen`, to `fill`. The row is padded to full vectors.
static inline void fill_outside(float* row, const Visible& seen, int64_t padded, float fill) {
  const vf lane = iota();
  int64_t j = 0;
  for (; j + W <= seen.first; j += W) store(row + j, splat(fill));
  if (j < seen.first) store(row + j, lane < float(seen.first - j) ? splat(fill) : load(row + j));
  j = seen.last / W * W;
  if (j < padded && j < seen.last) {
    store(row + j, lane < float(seen.last - j) ? load(row + j) : splat(fill));
    j += W;
  }
  for (; j < padded; j += W) store(row + j, splat(fill));
}

// Replaces scores s by softcap tanh(scale s / softcap).
static inline void cap_scores(float* row, int64_t padded, float scale, float softcap) {
  const float inverse = scale / softcap;
  for (int64_t j = 0; j < padded; j += W) store(row + j, vtanh(load(row + j) * inverse) * softcap);
}

// Replaces scores by e^(score - max), 0 for invisible keys, and updates `max` and `sum`. Returns the factor
// by which the caller must scale earlier sums.
static float online_softmax(float* row, const Visible& seen, int64_t padded, float& max, float& sum) {
  fill_outside(row, seen, padded, -__builtin_inff());
  vf high = splat(max);
  for (int64_t j = 0; j < padded; j += W) high = vmax(load(row + j), high);
  const float next = max_of(high);
  // Without any visible key so far, e^(-inf - 0) is zero for every key.
  const float base = next == -__builtin_inff() ? 0.0f : next;
  vf total = {};
  for (int64_t j = 0; j < padded; j += W) {
    vf e = vexp(load(row + j) - base);
    total += e;
    store(row + j, e);
  }
  const float shrink = max == next ? 1.0f : max == -__builtin_inff() ? 0.0f : exp_one(max - next);
  sum = sum * shrink + sum_of(total);
  max = next;
  return shrink;
}

// Initializes the softmax statistics: with sinks, the sink of the head is the first score; otherwise there is
// none.
static inline void begin_softmax(const float* sinks, int64_t head, float& max, float& sum) {
  max = sinks != nullptr ? sinks[head] : -__builtin_inff();
  sum = sinks != nullptr ? 1.0f : 0.0f;
}

struct ForwardScratch {
  int64_t panel;
  float *keys_t, *values;
  Queries queries;

  ForwardScratch(const Attention& a, int64_t longest, float* scratch)
      : panel(panel_stride(longest)),
        keys_t(scratch),
        values(keys_t + a.dim * panel),
        queries(QUERY_BLOCK, round_up(a.dim, W), values + longest * round_up(a.dim, W)) {}
};

template <class T>
static inline const T* rows_at(const void* x, int64_t token_stride, int64_t head_stride, int64_t token,
                               int64_t head) {
  return static_cast<const T*>(x) + token * token_stride + head * head_stride;
}

// Packs the keys and values of `span` after `before` packed ones.
template <class T>
static void pack_forward(const Attention& a, int64_t kv_head, const Span& span, int64_t before,
                         const ForwardScratch& s) {
  pack_transposed(rows_at<T>(a.k, a.k_t, a.k_h, span.begin, kv_head), a.k_t, span.len(), a.dim,
                  s.keys_t + before, s.panel, panel_stride(before + span.len()) - before);
  pack_rows(rows_at<T>(a.v, a.v_t, a.v_h, span.begin, kv_head), a.v_t, span.len(), a.dim, 1.0f,
            s.values + before * s.queries.wide, s.queries.wide);
}

// Returns the end of the block of keys that begins at key j. Aligned blocks end at the same keys for every
// query, so a query's sums do not depend on the other queries of its block.
static inline int64_t stretch_end(bool aligned, int64_t j, int64_t len) {
  return lesser(len, (aligned ? j / KEY_BLOCK * KEY_BLOCK : j) + KEY_BLOCK);
}

// Converts the scores of m queries and a block of n keys to weights, and rescales the accumulated outputs.
// `seen(r)` is the range of keys that query r attends to.
template <class Seen>
static inline void weigh_stretch(int64_t m, int64_t n, float softcap, const Queries& q, Seen seen) {
  for (int64_t r = 0; r < m; ++r) {
    float *row = q.scores + r * KEY_BLOCK, *acc = q.acc + r * q.wide;
    if (softcap != 0.0f) cap_scores(row, round_up(n, W), 1.0f, softcap);
    const float shrink = online_softmax(row, seen(r), round_up(n, W), q.max[r], q.sum[r]);
    if (shrink != 1.0f)
      for (int64_t d = 0; d < q.wide; d += W) store(acc + d, load(acc + d) * shrink);
  }
}

// Computes the outputs of the queries of `span` in one head. `before` packed keys precede those of the span.
template <class T>
static void attend(const Attention& a, int64_t head, const Span& span, int64_t before,
                   const ForwardScratch& s) {
  const Queries& q = s.queries;
  const int64_t wide = q.wide;
  for (int64_t at = 0; at < span.len(); at += QUERY_BLOCK) {
    const int64_t m = lesser(QUERY_BLOCK, span.len() - at), t0 = span.begin + at, i0 = before + at;
    pack_rows(rows_at<T>(a.q, a.q_t, a.q_h, t0, head), a.q_t, m, a.dim, a.scale, q.rows, wide);
    __builtin_memset(q.acc, 0, size_t(m * wide) * 4);
    for (int64_t r = 0; r < m; ++r) begin_softmax(a.sinks, head, q.max[r], q.sum[r]);
    for (int64_t j0 = first_key(a, i0), end; j0 < i0 + m; j0 = end) {
      end = stretch_end(a.aligned, j0, i0 + m);
      const int64_t n = end - j0;
      gemm<false>(m, round_up(n, W), a.dim, q.rows, wide, 1, s.keys_t + j0, s.panel, q.scores, KEY_BLOCK);
      weigh_stretch(m, n, a.softcap, q, [&](int64_t r) { return visible(a, i0 + r, j0, n); });
      gemm<true>(m, wide, n, q.scores, KEY_BLOCK, 1, s.values + j0 * wide, wide, q.acc, wide);
    }
    for (int64_t r = 0; r < m; ++r) {
      const float inverse = 1.0f / q.sum[r];
      for (int64_t d = 0; d < wide; d += W) store(q.acc + r * wide + d, load(q.acc + r * wide + d) * inverse);
      a.lse[(t0 + r) * a.heads + head] = q.max[r] + __builtin_logf(q.sum[r]);
    }
    T* out = static_cast<T*>(a.out) + (t0 * a.heads + head) * a.dim;
    unpack_rows(q.acc, wide, m, a.dim, out, a.heads * a.dim);
  }
}

// Returns the query heads of an item, as indices among all heads.
static inline Span heads_of(const Attention& a, const AttentionItem& item) {
  const int64_t first = item.kv_head * (a.heads / a.kv_heads);
  return {first + item.group_begin, first + item.group_end};
}

template <class T>
static void attention_forward_t(const Attention& a, const AttentionItem& item, float* scratch) {
  const ForwardScratch s(a, item.longest, scratch);
  const Span heads = heads_of(a, item);
  const int64_t before = item.trunk.len();
  pack_forward<T>(a, item.kv_head, item.trunk, 0, s);
  if (item.trunk_queries)
    for (int64_t head = heads.begin; head < heads.end; ++head) attend<T>(a, head, item.trunk, 0, s);
  for (int64_t b = 0; b < item.num_branches; ++b) {
    pack_forward<T>(a, item.kv_head, item.branches[b], before, s);
    for (int64_t head = heads.begin; head < heads.end; ++head)
      attend<T>(a, head, item.branches[b], before, s);
  }
}

// Backward pass of the softmax with a softcap c: P = e^(c t - lse) with t = tanh(scale s / c), dS = scale P
// (dP - delta) (1 - t^2).
static void capped_softmax_backward(const Attention& a, float* scores, float* grads, const Visible& seen,
                                    int64_t padded, float lse, float delta) {
  cap_scores(scores, padded, a.scale, a.softcap);
  fill_outside(scores, seen, padded, -__builtin_inff());
  const float inverse = 1.0f / a.softcap;
  for (int64_t j = 0; j < padded; j += W) {
    const vf capped = load(scores + j), p = vexp(capped - lse);
    const vf t = vmax(capped * inverse, splat(-1.0f));  // clamps the minus infinity of invisible keys
    store(scores + j, p);
    store(grads + j, p * (load(grads + j) - delta) * (1.0f - t * t) * a.scale);
  }
}

// Backward pass of the softmax: replaces scores s by P = e^(scale s - lse), and grads dP by dS = scale P (dP
// - delta).
static void softmax_backward(const Attention& a, float* scores, float* grads, const Visible& seen,
                             int64_t padded, float lse, float delta) {
  if (a.softcap != 0.0f) return capped_softmax_backward(a, scores, grads, seen, padded, lse, delta);
  fill_outside(scores, seen, padded, -__builtin_inff());
  for (int64_t j = 0; j < padded; j += W) {
    vf p = vexp(load(scores + j) * a.scale - lse);
    store(scores + j, p);
    store(grads + j, p * (load(grads + j) - delta) * a.scale);
  }
}

struct BackwardScratch {
  int64_t wide, panel;
  float *keys_t, *values_t, *keys, *grad_keys, *grad_values, *queries, *grad_out, *grad_queries, *scores,
      *grads, *delta;

  BackwardScratch(const Attention& a, int64_t longest, float* scratch)
      : wide(round_up(a.dim, W)), panel(panel_stride(longest)) {
    keys_t = scratch;
    values_t = keys_t + a.dim * panel;
    keys = values_t + a.dim * panel;
    grad_keys = keys + longest * wide;
    grad_values = grad_keys + longest * wide;
    queries = grad_values + longest * wide;
    grad_out = queries + QUERY_BLOCK * wide;
    grad_queries = grad_out + QUERY_BLOCK * wide;
    scores = grad_queries + QUERY_BLOCK * wide;
    grads = scores + QUERY_BLOCK * KEY_BLOCK;
    delta = grads + QUERY_BLOCK * KEY_BLOCK;
  }
};

// Packs the keys and values of `span` after `before` packed ones, and zeroes their gradients.
template <class T>
static void pack_backward(const Attention& a, int64_t kv_head, const Span& span, int64_t before,
                          const BackwardScratch& s) {
  const int64_t columns = panel_stride(before + span.len()) - before, at = before * s.wide;
  const T* k = rows_at<T>(a.k, a.k_t, a.k_h, span.begin, kv_head);
  const T* v = rows_at<T>(a.v, a.v_t, a.v_h, span.begin, kv_head);
  pack_transposed(k, a.k_t, span.len(), a.dim, s.keys_t + before, s.panel, columns);
  pack_transposed(v, a.v_t, span.len(), a.dim, s.values_t + before, s.panel, columns);
  pack_rows(k, a.k_t, span.len(), a.dim, 1.0f, s.keys + at, s.wide);
  __builtin_memset(s.grad_keys + at, 0, size_t(span.len() * s.wide) * 4);
  __builtin_memset(s.grad_values + at, 0, size_t(span.len() * s.wide) * 4);
}

// Computes the gradients of the queries of `span` in one head, and adds to the gradients of all keys and
// values that they attend to.
template <class T>
static void attend_backward(const Attention& a, int64_t head, const Span& span, int64_t before,
                            const BackwardScratch& s) {
  const int64_t wide = s.wide, out_stride = a.heads * a.dim;
  for (int64_t at = 0; at < span.len(); at += QUERY_BLOCK) {
    const int64_t m = lesser(QUERY_BLOCK, span.len() - at), t0 = span.begin + at, i0 = before + at;
    pack_rows(rows_at<T>(a.q, a.q_t, a.q_h, t0, head), a.q_t, m, a.dim, 1.0f, s.queries, wide);
    pack_rows(rows_at<T>(a.grad_out, a.g_t, a.g_h, t0, head), a.g_t, m, a.dim, 1.0f, s.grad_out, wide);
    const T* out = static_cast<const T*>(a.out) + (t0 * a.heads + head) * a.dim;
    for (int64_t r = 0; r < m; ++r) {
      vf dot = {};
      for (int64_t d = 0; d < a.dim; d += W)
        dot += load(s.grad_out + r * wide + d) * load_at(out + r * out_stride, d, a.dim);
      s.delta[r] = sum_of(dot);
    }
    __builtin_memset(s.grad_queries, 0, size_t(m * wide) * 4);
    for (int64_t j0 = first_key(a, i0); j0 < i0 + m; j0 += KEY_BLOCK) {
      const int64_t n = lesser(KEY_BLOCK, i0 + m - j0);
      gemm<false>(m, round_up(n, W), a.dim, s.queries, wide, 1, s.keys_t + j0, s.panel, s.scores, KEY_BLOCK);
      gemm<false>(m, round_up(n, W), a.dim, s.grad_out, wide, 1, s.values_t + j0, s.panel, s.grads,
                  KEY_BLOCK);
      for (int64_t r = 0; r < m; ++r)
        softmax_backward(a, s.scores + r * KEY_BLOCK, s.grads + r * KEY_BLOCK, visible(a, i0 + r, j0, n),
                         round_up(n, W), a.lse[(t0 + r) * a.heads + head], s.delta[r]);
      gemm<true>(n, wide, m, s.scores, 1, KEY_BLOCK, s.grad_out, wide, s.grad_values + j0 * wide, wide);
      gemm<true>(n, wide, m, s.grads, 1, KEY_BLOCK, s.queries, wide, s.grad_keys + j0 * wide, wide);
      gemm<true>(m, wide, n, s.grads, KEY_BLOCK, 1, s.keys + j0 * wide, wide, s.grad_queries, wide);
    }
    unpack_rows(s.grad_queries, wide, m, a.dim, static_cast<T*>(a.grad_q) + (t0 * a.heads + head) * a.dim,
                out_stride);
  }
}

// Writes the gradients of the keys and values of `span`, which follow `before` others in the packed order.
template <class T>
static void unpack_backward(const Attention& a, const AttentionItem& item, const Span& span, int64_t before,
                            const BackwardScratch& s) {
  const int64_t stride = a.kv_heads * a.dim, at = (span.begin * a.kv_heads + item.kv_head) * a.dim;
  const float *grad_keys = s.grad_keys + before * s.wide, *grad_values = s.grad_values + before * s.wide;
  if (a.parts > 1) {
    const int64_t part = item.part * a.num_tokens * stride + at;
    unpack_rows(grad_keys, s.wide, span.len(), a.dim, static_cast<float*>(a.grad_k) + part, stride);
    unpack_rows(grad_values, s.wide, span.len(), a.dim, static_cast<float*>(a.grad_v) + part, stride);
  } else {
    unpack_rows(grad_keys, s.wide, span.len(), a.dim, static_cast<T*>(a.grad_k) + at, stride);
    unpack_rows(grad_values, s.wide, span.len(), a.dim, static_cast<T*>(a.grad_v) + at, stride);
  }
}

template <class T>
static void attention_backward_t(const Attention& a, const AttentionItem& item, float* scratch) {
  const BackwardScratch s(a, item.longest, scratch);
  const Span heads = heads_of(a, item);
  const int64_t before = item.trunk.len();
  pack_backward<T>(a, item.kv_head, item.trunk, 0, s);
  for (int64_t head = heads.begin; head < heads.end; ++head) attend_backward<T>(a, head, item.trunk, 0, s);
  for (int64_t b = 0; b < item.num_branches; ++b) {
    const Span& branch = item.branches[b];
    pack_backward<T>(a, item.kv_head, branch, before, s);
    for (int64_t head = heads.begin; head < heads.end; ++head) attend_backward<T>(a, head, branch, before, s);
    unpack_backward<T>(a, item, branch, before, s);
  }
  unpack_backward<T>(a, item, item.trunk, 0, s);
}
