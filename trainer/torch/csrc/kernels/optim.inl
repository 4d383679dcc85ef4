// Optimizer kernels on flat arrays: decoupled AdamW, and the sum of squares for a gradient norm.

// torch.optim.AdamW in its order of operations (no amsgrad): decay, moments, bias-corrected update.
static void adamw(const AdamW& a, int64_t begin, int64_t end) {
  const float decay = float(1.0 - a.lr * a.weight_decay), b1 = float(1.0 - a.beta1), b2 = float(a.beta2);
  const float one_minus_b2 = float(1.0 - a.beta2), step = float(a.lr / a.bias1), bias2 = float(a.bias2_sqrt);
  const float eps = float(a.eps), scale = float(a.grad_scale);
  const int64_t n = end - begin;
  float *param = a.param + begin, *m = a.m + begin, *v = a.v + begin;
  const float* grad = a.grad + begin;
  for (int64_t i = 0; i < n; i += W) {
    vf g = load_at(grad, i, n) * scale, mi = load_at(m, i, n);
    mi = mi + b1 * (g - mi);
    vf vn = load_at(v, i, n) * b2 + one_minus_b2 * g * g;
    vf denom = vsqrt(vn) / bias2 + eps;
    store_at(m, mi, i, n);
    store_at(v, vn, i, n);
    store_at(param, load_at(param, i, n) * decay - step * mi / denom, i, n);
  }
}

template <class T>
static double sum_of_squares_t(const T* x, int64_t begin, int64_t end) {
  typedef double vd __attribute__((vector_size(W * 8)));
  vd sum[4] = {};
  int64_t i = begin;
  for (; i + 4 * W <= end; i += 4 * W)
    for (int k = 0; k < 4; ++k) {
      vd wide = __builtin_convertvector(load(x + i + k * W), vd);
      sum[k] += wide * wide;
    }
  vd all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  double total = 0.0;
  for (int l = 0; l < W; ++l) total += all[l];
  for (; i < end; ++i) total += double(to_float(x[i])) * double(to_float(x[i]));
  return total;
}
