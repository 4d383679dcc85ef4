// The operators of attention that only CUDA has, with the shapes, dtypes and refusals of libtorch's: flash attention
// for 16 bits with fewer heads of keys than of queries, and memory-efficient attention for fp32 as well.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cmath>

#include "attention.h"
#include "torch_cuda.h"

namespace torch_cuda {
namespace {

using at::Tensor;
using Given = const std::optional<Tensor>&;

bool has(Given tensor) { return tensor.has_value() && tensor->defined(); }

// Numbers as fp32 where the formula reads them.
Tensor numbers(const Tensor& tensor) { return host_view(tensor).to(at::kFloat).contiguous(); }
const float* read(const Tensor& tensor) { return tensor.const_data_ptr<float>(); }
float* written(Tensor& tensor) { return tensor.mutable_data_ptr<float>(); }

std::vector<int64_t> boundaries(Given cu_seqlens, const char* name, const Tensor& beside, int64_t batch, int64_t len) {
  std::vector<int64_t> bounds{0};
  if (!has(cu_seqlens)) {
    for (int64_t b = 0; b < batch; ++b) bounds.push_back((b + 1) * len);
    return bounds;
  }
  TORCH_CHECK(cu_seqlens->scalar_type() == at::kInt && cu_seqlens->device() == beside.device() &&
                  cu_seqlens->is_contiguous(),
              name, " must be contiguous, of int32 and on ", beside.device(), ", got ", cu_seqlens->scalar_type(),
              " on ", cu_seqlens->device());
  const Tensor seen = host_view(*cu_seqlens);
  bounds.assign(seen.const_data_ptr<int>(), seen.const_data_ptr<int>() + seen.numel());
  TORCH_CHECK(bounds.size() >= 2 && bounds.front() == 0, name, " must begin with 0 and hold a segment");
  return bounds;
}

std::vector<Segment> segments(const std::vector<int64_t>& q, const std::vector<int64_t>& k, int64_t max_q,
                              int64_t max_k) {
  TORCH_CHECK(q.size() == k.size(), "queries have ", q.size() - 1, " segments, keys ", k.size() - 1);
  std::vector<Segment> all;
  for (size_t s = 0; s + 1 < q.size(); ++s) {
    all.push_back({q[s], q[s + 1], k[s], k[s + 1]});
    TORCH_CHECK(q[s] <= q[s + 1] && k[s] <= k[s + 1] && q[s + 1] - q[s] <= max_q && k[s + 1] - k[s] <= max_k,
                "segment ", s, " does not fit the longest ones, ", max_q, " and ", max_k);
  }
  return all;
}

// One kernel on the current stream of the tensor's device.
void launch(const Tensor& on, const char* name) {
  check_devices();
  check(rlt_stand_in_drain(current_handle(on.get_device())), name);
  rlt_stand_in_count(RLT_LAUNCH, 0);
}

Attention flash(const Tensor& q, const Tensor& k, const Tensor& v, Given cum_q, Given cum_k, int64_t max_q,
                int64_t max_k, double dropout, bool is_causal, std::optional<double> scale,
                std::optional<int64_t> left, std::optional<int64_t> right) {
  TORCH_CHECK(q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16,
              "FlashAttention only support fp16 and bf16 data type");
  TORCH_CHECK(k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type(),
              "query, key and value must have the same dtype");
  TORCH_CHECK(q.stride(-1) == 1 && k.stride(-1) == 1 && v.stride(-1) == 1,
              "Input tensor must have contiguous last dimension");
  TORCH_CHECK(has(cum_q) == has(cum_k), "cum_seq_q and cum_seq_k must be both set or both not set");
  TORCH_CHECK(q.dim() == (has(cum_q) ? 3 : 4), "expected [tokens, heads, dim] with segments, else four dims");
  TORCH_CHECK(dropout == 0.0, "the stand-in has no dropout");
  Attention a{};
  a.heads = q.size(-2), a.kv_heads = k.size(-2), a.dim = q.size(-1);
  TORCH_CHECK(a.dim % 8 == 0 && a.dim <= 256, "FlashAttention takes heads of at most 256 in steps of 8, got ", a.dim);
  TORCH_CHECK(a.kv_heads > 0 && a.heads % a.kv_heads == 0,
              "Number of heads in key/value must divide number of heads in query");
  a.segments = segments(boundaries(cum_q, "cum_seq_q", q, q.size(0), q.size(-3)),
                        boundaries(cum_k, "cum_seq_k", k, k.size(0), k.size(-3)), max_q, max_k);
  a.scale = scale.value_or(1.0 / std::sqrt(double(a.dim)));
  a.left = left.value_or(-1), a.right = is_causal ? 0 : right.value_or(-1), a.is_from_end = true;
  return a;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> flash_forward(
    const Tensor& q, const Tensor& k, const Tensor& v, Given cum_q, Given cum_k, int64_t max_q, int64_t max_k,
    double dropout, bool is_causal, bool wants_mask, std::optional<double> scale, std::optional<int64_t> left,
    std::optional<int64_t> right, Given seqused_k, Given alibi_slopes) {
  const c10::DeviceGuard guard(q.device());
  TORCH_CHECK(!has(seqused_k) && !has(alibi_slopes) && !wants_mask,
              "the stand-in has no seqused_k, no alibi_slopes and no mask to debug with");
  launch(q, "_flash_attention_forward");
  const Attention a = flash(q, k, v, cum_q, cum_k, max_q, max_k, dropout, is_causal, scale, left, right);
  const int64_t num_queries = has(cum_q) ? q.size(0) : q.size(0) * q.size(1);
  Tensor out = at::zeros_like(numbers(q)), lse = at::full({a.heads, num_queries}, INFINITY, out.options());
  attend(a, read(numbers(q)), read(numbers(k)), read(numbers(v)), written(out), written(lse));
  if (!has(cum_q)) lse = lse.view({a.heads, q.size(0), q.size(1)}).transpose(0, 1).contiguous();
  const auto state = q.options().dtype(at::kUInt64);
  return {on_device(out.to(q.scalar_type()), q.get_device()), on_device(lse, q.get_device()), at::empty({2}, state),
          at::empty({}, state), at::empty({0}, q.options())};
}

std::tuple<Tensor, Tensor, Tensor> gradients(const Attention& a, const Tensor& grad_out, const Tensor& q,
                                             const Tensor& k, const Tensor& v, const Tensor& out) {
  const Tensor keys = numbers(k), values = numbers(v), queries = numbers(q);
  Tensor grad_q = at::zeros_like(queries), grad_k = at::zeros_like(keys), grad_v = at::zeros_like(values);
  attend_backward(a, read(queries), read(keys), read(values), read(numbers(out)), read(numbers(grad_out)),
                  written(grad_q), written(grad_k), written(grad_v));
  const auto back = [&](const Tensor& grad) { return on_device(grad.to(q.scalar_type()), q.get_device()); };
  return {back(grad_q), back(grad_k), back(grad_v)};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(const Tensor& grad_out, const Tensor& q, const Tensor& k,
                                                  const Tensor& v, const Tensor& out, const Tensor&,
                                                  const Tensor& cum_q, const Tensor& cum_k, int64_t max_q,
                                                  int64_t max_k, double dropout, bool is_causal, const Tensor&,
                                                  const Tensor&, std::optional<double> scale,
                                                  std::optional<int64_t> left, std::optional<int64_t> right) {
  const c10::DeviceGuard guard(q.device());
  launch(q, "_flash_attention_backward");
  return gradients(flash(q, k, v, cum_q, cum_k, max_q, max_k, dropout, is_causal, scale, left, right), grad_out, q, k,
                   v, out);
}

Attention efficient(const Tensor& q, const Tensor& k, const Tensor& v, Given bias, Given cu_q, Given cu_k,
                    int64_t max_q, int64_t max_k, double dropout, int64_t mask, std::optional<double> scale,
                    std::optional<int64_t> window) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && q.size(2) == k.size(2) && q.size(3) == k.size(3) &&
                  v.sizes() == k.sizes(),
              "memory-efficient attention expected [batch, tokens, heads, dim] with heads alike, got ", q.sizes(), ", ",
              k.sizes(), " and ", v.sizes());
  TORCH_CHECK(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type(), "expected one dtype");
  TORCH_CHECK(!has(cu_q) || (q.size(0) == 1 && k.size(0) == 1), "cu_seqlens only supports batch_size == 1");
  TORCH_CHECK(!has(bias) && dropout == 0.0, "the stand-in has no bias and no dropout");
  TORCH_CHECK(mask >= 0 && mask <= 2 && (!window.has_value() || *window <= 0 || mask > 0),
              "expected no mask, or one from the top left or the bottom right, got ", mask);
  Attention a{};
  a.heads = a.kv_heads = q.size(2), a.dim = q.size(3);
  a.segments = segments(boundaries(cu_q, "cu_seqlens_q", q, q.size(0), q.size(1)),
                        boundaries(cu_k, "cu_seqlens_k", k, k.size(0), k.size(1)), max_q, max_k);
  a.scale = scale.value_or(1.0 / std::sqrt(double(a.dim)));
  a.left = window.value_or(0) > 0 ? *window - 1 : -1;
  a.right = mask == 0 ? -1 : 0, a.is_from_end = mask == 2;
  return a;
}

// The logarithms of sums by segment, padded to what the kernel aligns to.
Tensor by_segment(const Attention& a, const Tensor& lse, int64_t max_q) {
  const int64_t len = (max_q + 31) / 32 * 32;
  Tensor padded = at::full({int64_t(a.segments.size()), a.heads, len}, INFINITY, lse.options());
  for (size_t s = 0; s < a.segments.size(); ++s) {
    const int64_t rows = a.segments[s].q_end - a.segments[s].q_begin;
    padded[int64_t(s)].narrow(1, 0, rows).copy_(lse.narrow(1, a.segments[s].q_begin, rows));
  }
  return padded;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt> efficient_forward(
    const Tensor& q, const Tensor& k, const Tensor& v, Given bias, Given cu_q, Given cu_k, std::optional<int64_t> max_q,
    std::optional<int64_t> max_k, double dropout, int64_t mask, bool wants_lse, std::optional<double> scale,
    Given seqlen_k, std::optional<int64_t> window) {
  const c10::DeviceGuard guard(q.device());
  TORCH_CHECK(!has(seqlen_k), "the stand-in has no seqlen_k");
  launch(q, "_efficient_attention_forward");
  const int64_t longest_q = max_q.value_or(q.size(1)), longest_k = max_k.value_or(k.size(1));
  const Attention a = efficient(q, k, v, bias, cu_q, cu_k, longest_q, longest_k, dropout, mask, scale, window);
  Tensor out = at::zeros_like(numbers(q)), lse = at::empty({a.heads, q.size(0) * q.size(1)}, out.options());
  attend(a, read(numbers(q)), read(numbers(k)), read(numbers(v)), written(out), written(lse));
  lse = wants_lse ? by_segment(a, lse, longest_q) : at::empty({int64_t(a.segments.size()), a.heads, 0}, lse.options());
  const auto state = q.options().dtype(at::kLong);
  return {on_device(out.to(q.scalar_type()), q.get_device()), on_device(lse, q.get_device()), at::empty({}, state),
          at::empty({}, state), longest_q, longest_k};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(
    const Tensor& grad_out, const Tensor& q, const Tensor& k, const Tensor& v, Given bias, const Tensor& out,
    Given cu_q, Given cu_k, int64_t max_q, int64_t max_k, const Tensor& lse, double dropout, const Tensor&,
    const Tensor&, int64_t mask, bool, std::optional<double> scale, std::optional<int64_t>,
    std::optional<int64_t> window, bool) {
  const c10::DeviceGuard guard(q.device());
  TORCH_CHECK(lse.size(-1) > 0, "the backward pass expected the logarithms of sums of the forward pass");
  launch(q, "_efficient_attention_backward");
  const Attention a = efficient(q, k, v, bias, cu_q, cu_k, max_q, max_k, dropout, mask, scale, window);
  auto [grad_q, grad_k, grad_v] = gradients(a, grad_out, q, k, v, out);
  return {grad_q, grad_k, grad_v, Tensor()};
}

}  // namespace
}  // namespace torch_cuda

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_flash_attention_forward", torch_cuda::flash_forward);
  m.impl("_flash_attention_backward", torch_cuda::flash_backward);
  m.impl("_efficient_attention_forward", torch_cuda::efficient_forward);
  m.impl("_efficient_attention_backward", torch_cuda::efficient_backward);
}
