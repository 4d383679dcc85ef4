// Attention over packed segments on a CUDA device by libtorch's own kernels, with a fixed number of launches
// for any number of segments. The kernels are called through the dispatcher, because this library is not
// linked with CUDA.
//
// The keys of a segment are the keys of its prefix followed by its own keys. So its queries belong to its
// last keys:
//
//   packed     |  prompt  | completion 1 | completion 2 |
//   queries    |  prompt  | completion 1 | completion 2 |                     cu_queries
//   keys       |  prompt  | prompt, completion 1 | prompt, completion 2 |     cu_keys, row indices `keys`
//
// With a causal mask aligned to the bottom right corner, each query attends to all keys before it and its
// own.
#include <torch/csrc/autograd/custom_function.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_efficient_attention_backward_ops.h>
#include <ATen/ops/_efficient_attention_forward_ops.h>
#include <ATen/ops/_flash_attention_backward_ops.h>
#include <ATen/ops/_flash_attention_forward_ops.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>

#include "c_api.h"

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace rlt {
namespace {

// The segments on the device (`DeviceSegments` in on_device/device_segments.rs).
struct Packing {
  Tensor cu_queries, cu_keys;  // i32 [segments + 1], no segment empty
  Tensor keys;                 // rows of the packed tokens or of a cache; undefined: all packed tokens
  int64_t max_queries, max_keys;
};

// Value of _efficient_attention's `custom_mask_type` for a causal mask aligned to the bottom right corner.
constexpr int64_t CAUSAL_FROM_BOTTOM_RIGHT = 2;

// Whether flash attention supports these queries. The memory-efficient kernel, which computes all others, has
// no grouped-query attention.
bool flash_takes(const Tensor& q) {
  const bool is_narrow = q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16;
  return is_narrow && q.size(2) % 8 == 0 && q.size(2) <= 256;
}

Tensor dense_rows(const Tensor& t) { return t.stride(2) == 1 ? t : t.contiguous(); }

// Gathers the keys or the values of all segments, concatenated.
Tensor gathered(const Tensor& rows, const Tensor& keys) {
  return keys.defined() ? rows.index_select(0, keys) : dense_rows(rows);
}

// Repeats KV heads so that each query head has one, and adds a batch dimension in front.
Tensor expanded(const Tensor& rows, int64_t heads) {
  const int64_t num = rows.size(0), kv_heads = rows.size(1), dim = rows.size(2);
  if (kv_heads == heads) return rows.unsqueeze(0);
  return rows.unsqueeze(2).expand({num, kv_heads, heads / kv_heads, dim}).reshape({1, num, heads, dim});
}

// Backward pass of `expanded`.
Tensor collapsed(const Tensor& grad, int64_t kv_heads) {
  const Tensor rows = grad.squeeze(0);
  const int64_t group = rows.size(1) / kv_heads;
  return group == 1 ? rows : rows.unflatten(1, {kv_heads, group}).sum(2);
}

// Backward pass of `gathered`: the gradient of a prompt's row is the sum over all segments that continue the
// prompt, in fp32.
Tensor scattered(const Tensor& grad, const Tensor& keys, int64_t num_tokens) {
  if (!keys.defined()) return grad;
  Tensor sum = at::zeros({num_tokens, grad.size(1), grad.size(2)}, grad.options().dtype(at::kFloat));
  return sum.index_add_(0, keys, grad.to(at::kFloat)).to(grad.scalar_type());
}

// Number of visible keys before a query's own key, as flash attention counts a window.
std::optional<c10::SymInt> left_of(int64_t window) {
  return window > 0 ? std::optional<c10::SymInt>(window - 1) : std::nullopt;
}
std::optional<c10::SymInt> right_of(int64_t window) {
  return window > 0 ? std::optional<c10::SymInt>(0) : std::nullopt;
}
std::optional<int64_t> width_of(int64_t window) {
  return window > 0 ? std::optional<int64_t>(window) : std::nullopt;
}

struct PackedFunction : torch::autograd::Function<PackedFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& q_any, const Tensor& k_any, const Tensor& v_any,
                        const Packing& packing, double scale, int64_t window) {
    const bool is_flash = flash_takes(q_any);
    const Tensor q = dense_rows(q_any);
    const Tensor k = gathered(k_any, packing.keys), v = gathered(v_any, packing.keys);
    Tensor out, lse, first, second;
    if (is_flash) {
      std::tie(out, lse, first, second, std::ignore) = at::_ops::_flash_attention_forward::call(
          q, k, v, packing.cu_queries, packing.cu_keys, packing.max_queries, packing.max_keys, 0.0, true,
          false, scale, left_of(window), right_of(window), std::nullopt, std::nullopt);
    } else {
      std::tie(out, lse, first, second, std::ignore, std::ignore) =
          at::_ops::_efficient_attention_forward::call(
              q.unsqueeze(0), expanded(k, q.size(1)), expanded(v, q.size(1)), std::nullopt,
              packing.cu_queries, packing.cu_keys, packing.max_queries, packing.max_keys, 0.0,
              CAUSAL_FROM_BOTTOM_RIGHT, true, scale, std::nullopt, width_of(window));
      out = out.squeeze(0);
    }
    // Gathered and expanded keys and values are not saved but recomputed in the backward pass, because they
    // may be many times as large as the packed tokens' own.
    ctx->save_for_backward({q_any, k_any, v_any, out, lse, first, second, packing.cu_queries,
                            packing.cu_keys, packing.keys});
    ctx->saved_data["max_queries"] = packing.max_queries;
    ctx->saved_data["max_keys"] = packing.max_keys;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["window"] = window;
    ctx->saved_data["is_flash"] = is_flash;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const int64_t max_queries = ctx->saved_data["max_queries"].toInt();
    const int64_t max_keys = ctx->saved_data["max_keys"].toInt();
    const int64_t window = ctx->saved_data["window"].toInt();
    const double scale = ctx->saved_data["scale"].toDouble();
    const Tensor q = dense_rows(saved[0]), keys = saved[9];
    const Tensor k = gathered(saved[1], keys), v = gathered(saved[2], keys);
    const Tensor &out = saved[3], &lse = saved[4], &first = saved[5], &second = saved[6];
    const Tensor &cu_queries = saved[7], &cu_keys = saved[8];
    const Tensor grad = grads[0].contiguous();
    Tensor dq, dk, dv;
    if (ctx->saved_data["is_flash"].toBool()) {
      std::tie(dq, dk, dv) = at::_ops::_flash_attention_backward::call(
          grad, q, k, v, out, lse, cu_queries, cu_keys, max_queries, max_keys, 0.0, true, first, second,
          scale, left_of(window), right_of(window));
    } else {
      const int64_t heads = q.size(1), kv_heads = k.size(1);
      std::tie(dq, dk, dv, std::ignore) = at::_ops::_efficient_attention_backward::call(
          grad.unsqueeze(0), q.unsqueeze(0), expanded(k, heads), expanded(v, heads), std::nullopt,
          out.unsqueeze(0), cu_queries, cu_keys, max_queries, max_keys, lse, 0.0, first, second,
          CAUSAL_FROM_BOTTOM_RIGHT, false, scale, std::nullopt, width_of(window), false);
      dq = dq.squeeze(0), dk = collapsed(dk, kv_heads), dv = collapsed(dv, kv_heads);
    }
    const int64_t num_tokens = saved[1].size(0);
    return {dq, scattered(dk, keys, num_tokens), scattered(dv, keys, num_tokens), Tensor(), Tensor(), Tensor()};
  }
};

Tensor packed_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Packing& packing,
                        double scale, int64_t window) {
  // Keys that are selected by index may be rows of a cache, whose number is not that of the queries.
  const bool has_rows = packing.keys.defined() || (k.dim() == 3 && q.size(0) == k.size(0));
  TORCH_CHECK(q.dim() == 3 && k.dim() == 3 && v.sizes() == k.sizes() && has_rows && q.size(2) == k.size(2) &&
                  k.size(1) > 0 && q.size(1) % k.size(1) == 0,
              "packed attention expected q [T, H, D] and k, v [T, K, D] with K dividing H, got ", q.sizes(),
              ", ", k.sizes(), " and ", v.sizes());
  if (q.size(0) == 0) return q.clone();
  return PackedFunction::apply(q, k, v, packing, scale, window);
}

}  // namespace
}  // namespace rlt

extern "C" {
char* rlt_packed_attention(Tensor* q, Tensor* k, Tensor* v, Tensor* cu_queries, Tensor* cu_keys, Tensor* keys,
                           int64_t max_queries, int64_t max_keys, double scale, int64_t window,
                           Tensor** out) {
  return rlt::guarded([&] {
    const rlt::Packing packing{*cu_queries, *cu_keys, keys == nullptr ? Tensor() : *keys, max_queries,
                               max_keys};
    *out = rlt::owned(rlt::packed_attention(*q, *k, *v, packing, scale, window));
  });
}
}
