// Fused kernels on rows: RMS norm, gated activation, rotary embedding. Arithmetic is in float, whatever the
// stored dtype.

template <class T>
static void rms_norm_forward_t(const RmsNorm& a, int64_t begin, int64_t end) {
  const int64_t n = a.width;
  for (int64_t r = begin; r < end; ++r) {
    const T* x = row_of<T>(a.x, r);
    T* out = row_of<T>(a.out, r);
    vf sum = {};
    for (int64_t i = 0; i < n; i += W) {
      vf v = load_at(x, i, n);
      sum += v * v;
    }
    const float rstd = float(1.0 / __builtin_sqrt(double(sum_of(sum)) / double(n) + a.eps));
    a.rstd[r] = rstd;
    for (int64_t i = 0; i < n; i += W) {
      vf normed = load_at(x, i, n) * rstd;
      if (a.round_before_weight) normed = round_to(normed, T{});
      store_at(out, normed * load_at(a.weight, i, n), i, n);
    }
  }
}

// dx = rstd * (dy w - x * rstd^2 * mean(dy w x)); dw = sum over rows of dy * x * rstd. Each chunk of rows has
// its own row of partial sums, so the result does not depend on the number of threads.
template <class T>
static void rms_norm_backward_t(const RmsNorm& a, int64_t chunk_begin, int64_t chunk_end) {
  const int64_t n = a.width;
  for (int64_t c = chunk_begin; c < chunk_end; ++c) {
    float* partial = a.grad_weight ? a.grad_weight + c * n : nullptr;
    if (partial) __builtin_memset(partial, 0, size_t(n) * 4);
    for (int64_t r = c * a.chunk_rows; r < lesser((c + 1) * a.chunk_rows, a.num_rows); ++r) {
      const T* x = row_of<T>(a.x, r);
      const T* dy = row_of<T>(a.grad_out, r);
      T* dx = row_of<T>(a.out, r);
      const float rstd = a.rstd[r];
      vf dot = {};
      for (int64_t i = 0; i < n; i += W) {
        vf xi = load_at(x, i, n), g = load_at(dy, i, n);
        dot += g * load_at(a.weight, i, n) * xi;
        if (partial) store_at(partial, load_at(partial, i, n) + g * (xi * rstd), i, n);
      }
      const float scale = sum_of(dot) * rstd * rstd * rstd / float(n);
      for (int64_t i = 0; i < n; i += W) {
        vf g = load_at(dy, i, n) * load_at(a.weight, i, n);
        store_at(dx, g * rstd - load_at(x, i, n) * scale, i, n);
      }
    }
  }
}

static inline vf sigmoid(vf x) { return 1.0f / (1.0f + vexp(-x)); }
constexpr float GELU_A = 0.7978845608028654f;  // sqrt(2 / pi)
constexpr float GELU_B = 0.044715f;

// Computes the activation and its derivative at x.
static inline void activate(Activation kind, vf x, vf& y, vf& dy) {
  if (kind == Activation::Silu) {
    vf s = sigmoid(x);
    y = x * s;
    dy = s + y * (1.0f - s);
  } else {
    vf inner = GELU_A * (x + GELU_B * x * x * x);
    vf rest = 2.0f / (vexp(2.0f * inner) + 1.0f);  // 1 - tanh(inner)
    vf half = 1.0f - 0.5f * rest;
    y = x * half;
    dy = half + 0.5f * x * (rest * (2.0f - rest)) * (GELU_A * (1.0f + 3.0f * GELU_B * x * x));
  }
}

template <class T>
static void gated_forward_t(const Gated& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T *gate = row_of<T>(a.gate, r), *up = row_of<T>(a.up, r);
    T* out = row_of<T>(a.out, r);
    for (int64_t i = 0; i < a.width; i += W) {
      vf y, dy;
      activate(a.activation, load_at(gate, i, a.width), y, dy);
      store_at(out, y * load_at(up, i, a.width), i, a.width);
    }
  }
}

template <class T>
static void gated_backward_t(const Gated& a, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const T *gate = row_of<T>(a.gate, r), *up = row_of<T>(a.up, r), *g = row_of<T>(a.grad_out, r);
    T *dgate = row_of<T>(a.grad_gate, r), *dup = row_of<T>(a.grad_up, r);
    for (int64_t i = 0; i < a.width; i += W) {
      vf y, dy, gi = load_at(g, i, a.width);
      activate(a.activation, load_at(gate, i, a.width), y, dy);
      store_at(dgate, gi * load_at(up, i, a.width) * dy, i, a.width);
      store_at(dup, gi * y, i, a.width);
    }
  }
}

// y1 = x1 c1 - x2 s1, y2 = x2 c2 + x1 s2 (rotate_half); backward is the transpose.
template <class T>
static void rope_t(const Rope& a, int64_t begin, int64_t end) {
  const int64_t half = a.width / 2;
  for (int64_t r = begin; r < end; ++r) {
    const T* x = row_of<T>(a.x, r);
    T* out = row_of<T>(a.out, r);
    const float* c = a.cos + (r / a.x.inner) * a.table_stride;
    const float* s = a.sin + (r / a.x.inner) * a.table_stride;
    for (int64_t i = 0; i < half; i += W) {
      vf x1 = load_at(x, i, half), x2 = load_at(x + half, i, half);
      vf c1 = load_at(c, i, half), s1 = load_at(s, i, half);
      vf c2 = load_at(c + a.second_half, i, half), s2 = load_at(s + a.second_half, i, half);
      vf y1 = a.backward ? x1 * c1 + x2 * s2 : x1 * c1 - x2 * s1;
      vf y2 = a.backward ? x2 * c2 - x1 * s1 : x2 * c2 + x1 * s2;
      store_at(out, y1, i, half);
      store_at(out + half, y2, i, half);
    }
  }
}
