// The vocabulary head's row kernels: log-probability of the target and entropy of softmax(z / T), and their
// gradient.
//
// With u = z / T, M = max u, S = sum e^(u - M), p = e^(u - M) / S:
//   logp_t = u_t - M - log S                    H = log S - sum p (u - M)
//   d logp_t / dz_j = (1[j = t] - p_j) / T      dH / dz_j = -p_j (logp_j + H) / T
// so dz_j = (g_logp (1[j = t] - p_j) - g_H p_j (logp_j + H)) / T, written over the logits.
//
// With a vocabulary shard, the gradient uses M, S and H of the full vocabulary, and a target below 0 belongs
// to another shard.
//
// With a softcap c the logits y are replaced by z = c tanh(y / c), and dz / dy = 1 - (z / c)^2.

constexpr int64_t HEAD_BLOCK =
    4096;  // a block of logits stays in the first-level cache between its two reads

template <class T>
static void cap_row(T* z, int64_t n, float softcap) {
  const float inverse = 1.0f / softcap;
  for (int64_t i = 0; i < n; i += W) store_at(z, vtanh(load_at(z, i, n) * inverse) * softcap, i, n);
}

// Derivative of the softcap, 1 - (z / c)^2; 1 without a cap.
static inline vf cap_slope(vf z, float inv_softcap) {
  const vf t = z * inv_softcap;
  return 1.0f - t * t;
}

template <class T>
static void head_statistics_t(const HeadRow& a, int64_t begin, int64_t end) {
  const int64_t n = a.vocabulary;
  for (int64_t r = begin; r < end; ++r) {
    T* z = static_cast<T*>(a.logits) + r * a.row_stride;
    double sum = 0.0, weighted = 0.0, top = -__builtin_inf();  // sum e^(u-top), sum e^(u-top) (u-top)
    for (int64_t b = 0; b < n; b += HEAD_BLOCK) {
      const int64_t len = lesser(HEAD_BLOCK, n - b);
      const int64_t whole = len / W * W;
      if (a.softcap != 0.0f) cap_row(z + b, len, a.softcap);
      vf high = splat(-__builtin_inff());
      for (int64_t i = 0; i < whole; i += W) high = vmax(load(z + b + i), high);
      float block_max = max_of(high);
      for (int64_t i = whole; i < len; ++i)
        block_max = to_float(z[b + i]) > block_max ? to_float(z[b + i]) : block_max;
      const float m = block_max * a.inv_temperature;
      vf s0 = {}, s1 = {};
      for (int64_t i = 0; i < whole; i += W) {
        vf u = load(z + b + i) * a.inv_temperature - m;
        vf e = vexp(u);
        s0 += e;
        s1 += e * u;
      }
      double block_sum = sum_of(s0), block_weighted = sum_of(s1);
      for (int64_t i = whole; i < len; ++i) {
        const float u = to_float(z[b + i]) * a.inv_temperature - m;
        const float e = exp_one(u);
        block_sum += e;
        block_weighted += e * u;
      }
      if (b == 0) {
        top = m, sum = block_sum, weighted = block_weighted;
      } else {
        const double next = m > top ? double(m) : top;
        const double old_scale = __builtin_exp(top - next), new_scale = __builtin_exp(double(m) - next);
        weighted = old_scale * (weighted + sum * (top - next)) +
                   new_scale * (block_weighted + block_sum * (m - next));
        sum = old_scale * sum + new_scale * block_sum;
        top = next;
      }
    }
    const double log_sum = __builtin_log(sum);
    a.max[r] = float(top);
    a.log_sum[r] = float(log_sum);
    if (a.targets[r] >= 0)
      a.logprob[r] = float(double(to_float(z[a.targets[r]])) * a.inv_temperature - top - log_sum);
    a.entropy[r] = float(log_sum - weighted / sum);
  }
}

template <class T>
static void head_gradient_t(const HeadRow& a, int64_t begin, int64_t end) {
  const int64_t n = a.vocabulary;
  for (int64_t r = begin; r < end; ++r) {
    T* z = static_cast<T*>(a.logits) + r * a.row_stride;
    const float g = a.grad_logprob[r] * a.inv_temperature, h = a.grad_entropy[r] * a.inv_temperature;
    const int64_t target = a.targets[r];
    const float target_logit = target >= 0 ? to_float(z[target]) : 0.0f;
    const float max = a.max[r], log_sum = a.log_sum[r], entropy = a.entropy[r];
    const float inv_softcap = a.softcap != 0.0f ? 1.0f / a.softcap : 0.0f;
    for (int64_t i = 0; i < n; i += W) {
      const vf capped = load_at(z, i, n);
      vf logp = (capped * a.inv_temperature - max) - log_sum;
      vf p = vexp(logp);
      vf d = h == 0.0f ? p * -g : p * (-g - h * (logp + entropy));
      store_at(z, d * cap_slope(capped, inv_softcap), i, n);
    }
    if (target < 0) continue;
    const float logp = target_logit * a.inv_temperature - max - log_sum;
    const vf at_target = splat(g) + exp_one(logp) * (-g - h * (logp + entropy));
    store_part(z + target, at_target * cap_slope(splat(target_logit), inv_softcap), 1);
  }
}
