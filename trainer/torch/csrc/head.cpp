// One chunk of the vocabulary head: logits, their statistics, and the gradient, which overwrites the logits.
// The [chunk, V] buffer belongs to the caller, who reuses it for every chunk. The formulas are in
// kernels/head.inl.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>

#include "c_api.h"

using at::Tensor;

namespace rlt {
namespace {

// Arrays of a chunk that cross the C API, with one entry per row.
struct ChunkRows {
  const int64_t* targets;
  float *max, *log_sum, *logprob, *entropy;
  const float *grad_logprob, *grad_entropy;
};

// Parameters of a token's distribution: softmax of the capped logits divided by the temperature. A softcap of
// 0 means none.
struct Distribution {
  double temperature, softcap;
};

HeadRow head_row(const Tensor& logits, const ChunkRows& rows, const Distribution& by) {
  HeadRow a{};
  a.dtype = dtype_of(logits), a.logits = logits.data_ptr(), a.row_stride = logits.stride(0);
  a.vocabulary = logits.size(1), a.targets = rows.targets, a.inv_temperature = float(1.0 / by.temperature);
  a.softcap = float(by.softcap);
  a.max = rows.max, a.log_sum = rows.log_sum, a.logprob = rows.logprob, a.entropy = rows.entropy;
  a.grad_logprob = rows.grad_logprob, a.grad_entropy = rows.grad_entropy;
  return a;
}

Tensor on_device(const float* data, int64_t n, const Tensor& like) {
  return at::from_blob(const_cast<float*>(data), {n}, at::kFloat).to(like.device());
}
Tensor target_column(const ChunkRows& rows, int64_t n, const Tensor& like) {
  return at::from_blob(const_cast<int64_t*>(rows.targets), {n}, at::kLong).to(like.device()).unsqueeze(1);
}
void copy_out(float* to, const Tensor& from) {
  Tensor host = from.to(at::kCPU).to(at::kFloat).contiguous();
  std::memcpy(to, host.data_ptr<float>(), size_t(host.numel()) * sizeof(float));
}

// 1 for rows whose target is one of the columns, else 0: [n, 1].
Tensor has_target(const Tensor& target) { return target.ge(0).to(at::kFloat); }

void statistics_composed(Tensor logits, const ChunkRows& rows, const Distribution& by) {
  if (by.softcap != 0.0) logits.div_(by.softcap).tanh_().mul_(by.softcap);
  Tensor u = logits.to(at::kFloat) / by.temperature, max = u.amax(1, true);
  Tensor log_sum = (u - max).exp().sum(1, true).log(), logp = u - max - log_sum;
  Tensor target = target_column(rows, logits.size(0), logits);
  copy_out(rows.max, max.squeeze(1));
  copy_out(rows.log_sum, log_sum.squeeze(1));
  copy_out(rows.logprob, (logp.gather(1, target.clamp_min(0)) * has_target(target)).squeeze(1));
  copy_out(rows.entropy, -(logp.exp() * logp).sum(1));
}

void gradient_composed(Tensor logits, const ChunkRows& rows, const Distribution& by) {
  const int64_t n = logits.size(0);
  auto column = [&](const float* data) { return on_device(data, n, logits).unsqueeze(1); };
  Tensor logp = logits.to(at::kFloat) / by.temperature - column(rows.max) - column(rows.log_sum), p = logp.exp();
  Tensor g = column(rows.grad_logprob) / by.temperature, h = column(rows.grad_entropy) / by.temperature;
  Tensor grad = p * (-g - h * (logp + column(rows.entropy)));
  Tensor target = target_column(rows, n, logits);
  grad.scatter_add_(1, target.clamp_min(0), g * has_target(target));
  if (by.softcap != 0.0) grad.mul_(1.0 - (logits.to(at::kFloat) / by.softcap).square());
  logits.copy_(grad);
}

void chunk_forward(const Tensor& hidden, const Tensor& weight, Tensor logits, const ChunkRows& rows,
                   const Distribution& by) {
  product_into(logits, hidden, weight);
  if (!kernel_ready(logits)) return statistics_composed(logits, rows, by);
  const HeadRow a = head_row(logits, rows, by);
  at::parallel_for(0, logits.size(0), 1, [&](int64_t b, int64_t e) { kernels().head_statistics(a, b, e); });
}

void chunk_backward(const Tensor& hidden, const Tensor& weight, const Tensor& logits, const ChunkRows& rows,
                    const Distribution& by, Tensor grad_hidden, Tensor* grad_weight) {
  if (kernel_ready(logits)) {
    const HeadRow a = head_row(logits, rows, by);
    at::parallel_for(0, logits.size(0), 1, [&](int64_t b, int64_t e) { kernels().head_gradient(a, b, e); });
  } else {
    gradient_composed(logits, rows, by);
  }
  at::mm_out(grad_hidden, logits, weight);
  if (grad_weight == nullptr) return;
  if (grad_weight->scalar_type() == logits.scalar_type())
    grad_weight->addmm_(logits.t(), hidden);
  else
    grad_weight->add_(at::mm(logits.t(), hidden));
}

}  // namespace
}  // namespace rlt

extern "C" {
char* rlt_head_chunk_forward(Tensor* hidden, Tensor* weight, Tensor* logits, const rlt::ChunkRows* rows,
                             double temperature, double softcap) {
  return rlt::guarded([&] {
    at::NoGradGuard no_grad;
    rlt::chunk_forward(*hidden, *weight, *logits, *rows, {temperature, softcap});
  });
}
char* rlt_head_chunk_backward(Tensor* hidden, Tensor* weight, Tensor* logits, const rlt::ChunkRows* rows,
                              double temperature, double softcap, Tensor* grad_hidden, Tensor* grad_weight) {
  return rlt::guarded([&] {
    at::NoGradGuard no_grad;
    rlt::chunk_backward(*hidden, *weight, *logits, *rows, {temperature, softcap}, *grad_hidden,
                        grad_weight);
  });
}
}
