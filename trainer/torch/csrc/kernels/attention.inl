// Causal attention of one segment, flash style: blocks of queries against blocks of keys, the softmax kept
// online, so that memory grows with the segment's length and never with its square. Everything is computed in
// float.

constexpr int64_t QUERY_BLOCK = 24;  // a whole number of AVX-512 row tiles
constexpr int64_t KEY_BLOCK = 256;

template <class T>
static void pack_rows(const T* x, int64_t stride, int64_t rows, int64_t n, float scale, float* out,
                      int64_t out_stride) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < out_stride; i += W)
      store(out + r * out_stride + i, i < n ? load_at(x + r * stride, i, n) * scale : vf{});
}

// out[d][r] = x[r][d]; columns beyond `rows` are zero.
template <class T>
static void pack_transposed(const T* x, int64_t stride, int64_t rows, int64_t n, float* out,
                            int64_t out_stride) {
  for (int64_t r0 = 0; r0 < out_stride; r0 += 16)
    for (int64_t d = 0; d < n; ++d)
      for (int64_t r = r0; r < lesser(r0 + 16, out_stride); ++r)
        out[d * out_stride + r] = r < rows ? to_float(x[r * stride + d]) : 0.0f;
}

template <class T>
static void unpack_rows(const float* x, int64_t x_stride, int64_t rows, int64_t n, T* out, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < n; i += W) store_at(out + r * stride, load(x + r * x_stride + i), i, n);
}

// One more vector than needed keeps the row stride off powers of two, which would crowd a few cache sets.
static inline int64_t panel_stride(int64_t len) { return round_up(len, W) + W; }

static int64_t attention_scratch(const Attention& a, int64_t len, bool backward) {
  const int64_t wide = round_up(a.dim, W), panel = panel_stride(len);
  if (!backward)
    return a.dim * panel + len * wide + 2 * QUERY_BLOCK * wide + QUERY_BLOCK * KEY_BLOCK + 2 * QUERY_BLOCK;
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
// Sets what lies outside `seen` in a row of whole vectors.
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

// Turns scores into e^(score - max) in place, zero where nothing is seen; returns by how much earlier sums
// must shrink.
static float online_softmax(float* row, const Visible& seen, int64_t padded, float& max, float& sum) {
  fill_outside(row, seen, padded, -__builtin_inff());
  vf high = splat(max);
  for (int64_t j = 0; j < padded; j += W) high = vmax(load(row + j), high);
  const float next = max_of(high);
  // A row that has seen nothing yet: e^(-inf - 0) is zero everywhere.
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

template <class T>
static void attention_forward_t(const Attention& a, const AttentionItem& item, float* scratch) {
  const int64_t len = item.end - item.begin, wide = round_up(a.dim, W), panel = panel_stride(len);
  float* keys_t = scratch;
  float* values = keys_t + a.dim * panel;
  float* queries = values + len * wide;
  float* acc = queries + QUERY_BLOCK * wide;
  float* scores = acc + QUERY_BLOCK * wide;
  float* max = scores + QUERY_BLOCK * KEY_BLOCK;
  float* sum = max + QUERY_BLOCK;
  const T* k = static_cast<const T*>(a.k) + item.begin * a.k_t + item.kv_head * a.k_h;
  const T* v = static_cast<const T*>(a.v) + item.begin * a.v_t + item.kv_head * a.v_h;
  pack_transposed(k, a.k_t, len, a.dim, keys_t, panel);
  pack_rows(v, a.v_t, len, a.dim, 1.0f, values, wide);
  const int64_t group = a.heads / a.kv_heads;
  for (int64_t head = item.kv_head * group + item.group_begin; head < item.kv_head * group + item.group_end;
       ++head)
    for (int64_t i0 = 0; i0 < len; i0 += QUERY_BLOCK) {
      const int64_t m = lesser(QUERY_BLOCK, len - i0);
      const T* q = static_cast<const T*>(a.q) + (item.begin + i0) * a.q_t + head * a.q_h;
      pack_rows(q, a.q_t, m, a.dim, a.scale, queries, wide);
      __builtin_memset(acc, 0, size_t(m * wide) * 4);
      for (int64_t r = 0; r < m; ++r) max[r] = -__builtin_inff(), sum[r] = 0.0f;
      for (int64_t j0 = first_key(a, i0); j0 < i0 + m; j0 += KEY_BLOCK) {
        const int64_t n = lesser(KEY_BLOCK, i0 + m - j0);
        gemm<false>(m, round_up(n, W), a.dim, queries, wide, 1, keys_t + j0, panel, scores, KEY_BLOCK);
        for (int64_t r = 0; r < m; ++r) {
          const float shrink = online_softmax(scores + r * KEY_BLOCK, visible(a, i0 + r, j0, n),
                                              round_up(n, W), max[r], sum[r]);
          if (shrink != 1.0f)
            for (int64_t d = 0; d < wide; d += W)
              store(acc + r * wide + d, load(acc + r * wide + d) * shrink);
        }
        gemm<true>(m, wide, n, scores, KEY_BLOCK, 1, values + j0 * wide, wide, acc, wide);
      }
      for (int64_t r = 0; r < m; ++r) {
        const float inverse = 1.0f / sum[r];
        for (int64_t d = 0; d < wide; d += W) store(acc + r * wide + d, load(acc + r * wide + d) * inverse);
        a.lse[(item.begin + i0 + r) * a.heads + head] = max[r] + __builtin_logf(sum[r]);
      }
      T* out = static_cast<T*>(a.out) + ((item.begin + i0) * a.heads + head) * a.dim;
      unpack_rows(acc, wide, m, a.dim, out, a.heads * a.dim);
    }
}

// From scores and dP to P (in scores) and dS (in grads): P = e^(scale s - lse), dS = scale P (dP - delta).
static void softmax_backward(const Attention& a, float* scores, float* grads, const Visible& seen,
                             int64_t padded, float lse, float delta) {
  fill_outside(scores, seen, padded, -__builtin_inff());
  for (int64_t j = 0; j < padded; j += W) {
    vf p = vexp(load(scores + j) * a.scale - lse);
    store(scores + j, p);
    store(grads + j, p * (load(grads + j) - delta) * a.scale);
  }
}

template <class T>
static void attention_backward_t(const Attention& a, const AttentionItem& item, float* scratch) {
  const int64_t len = item.end - item.begin, wide = round_up(a.dim, W), panel = panel_stride(len);
  float* keys_t = scratch;
  float* values_t = keys_t + a.dim * panel;
  float* keys = values_t + a.dim * panel;
  float* grad_keys = keys + len * wide;
  float* grad_values = grad_keys + len * wide;
  float* queries = grad_values + len * wide;
  float* grad_out = queries + QUERY_BLOCK * wide;
  float* grad_queries = grad_out + QUERY_BLOCK * wide;
  float* scores = grad_queries + QUERY_BLOCK * wide;
  float* grads = scores + QUERY_BLOCK * KEY_BLOCK;
  float* delta = grads + QUERY_BLOCK * KEY_BLOCK;
  const T* k = static_cast<const T*>(a.k) + item.begin * a.k_t + item.kv_head * a.k_h;
  const T* v = static_cast<const T*>(a.v) + item.begin * a.v_t + item.kv_head * a.v_h;
  pack_transposed(k, a.k_t, len, a.dim, keys_t, panel);
  pack_transposed(v, a.v_t, len, a.dim, values_t, panel);
  pack_rows(k, a.k_t, len, a.dim, 1.0f, keys, wide);
  __builtin_memset(grad_keys, 0, size_t(2 * len * wide) * 4);
  const int64_t group = a.heads / a.kv_heads, out_stride = a.heads * a.dim;
  for (int64_t head = item.kv_head * group + item.group_begin; head < item.kv_head * group + item.group_end;
       ++head)
    for (int64_t i0 = 0; i0 < len; i0 += QUERY_BLOCK) {
      const int64_t m = lesser(QUERY_BLOCK, len - i0), t0 = item.begin + i0;
      pack_rows(static_cast<const T*>(a.q) + t0 * a.q_t + head * a.q_h, a.q_t, m, a.dim, 1.0f, queries, wide);
      pack_rows(static_cast<const T*>(a.grad_out) + t0 * a.g_t + head * a.g_h, a.g_t, m, a.dim, 1.0f,
                grad_out, wide);
      const T* out = static_cast<const T*>(a.out) + (t0 * a.heads + head) * a.dim;
      for (int64_t r = 0; r < m; ++r) {
        vf dot = {};
        for (int64_t d = 0; d < a.dim; d += W)
          dot += load(grad_out + r * wide + d) * load_at(out + r * out_stride, d, a.dim);
        delta[r] = sum_of(dot);
      }
      __builtin_memset(grad_queries, 0, size_t(m * wide) * 4);
      for (int64_t j0 = first_key(a, i0); j0 < i0 + m; j0 += KEY_BLOCK) {
        const int64_t n = lesser(KEY_BLOCK, i0 + m - j0);
        gemm<false>(m, round_up(n, W), a.dim, queries, wide, 1, keys_t + j0, panel, scores, KEY_BLOCK);
        gemm<false>(m, round_up(n, W), a.dim, grad_out, wide, 1, values_t + j0, panel, grads, KEY_BLOCK);
        for (int64_t r = 0; r < m; ++r)
          softmax_backward(a, scores + r * KEY_BLOCK, grads + r * KEY_BLOCK, visible(a, i0 + r, j0, n),
                           round_up(n, W), a.lse[(t0 + r) * a.heads + head], delta[r]);
        gemm<true>(n, wide, m, scores, 1, KEY_BLOCK, grad_out, wide, grad_values + j0 * wide, wide);
        gemm<true>(n, wide, m, grads, 1, KEY_BLOCK, queries, wide, grad_keys + j0 * wide, wide);
        gemm<true>(m, wide, n, grads, KEY_BLOCK, 1, keys + j0 * wide, wide, grad_queries, wide);
      }
      T* grad_q = static_cast<T*>(a.grad_q) + (t0 * a.heads + head) * a.dim;
      unpack_rows(grad_queries, wide, m, a.dim, grad_q, out_stride);
    }
  const int64_t stride = a.kv_heads * a.dim, at = (item.begin * a.kv_heads + item.kv_head) * a.dim;
  if (a.parts > 1) {
    const int64_t part = item.part * a.num_tokens * stride + at;
    unpack_rows(grad_keys, wide, len, a.dim, static_cast<float*>(a.grad_k) + part, stride);
    unpack_rows(grad_values, wide, len, a.dim, static_cast<float*>(a.grad_v) + part, stride);
  } else {
    unpack_rows(grad_keys, wide, len, a.dim, static_cast<T*>(a.grad_k) + at, stride);
    unpack_rows(grad_values, wide, len, a.dim, static_cast<T*>(a.grad_v) + at, stride);
  }
}
