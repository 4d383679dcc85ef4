// Differentiable fused row operations. Each reads memory once forward and once backward, and saves only what
// the backward pass needs. fused_cuda.cpp has them for CUDA devices; for other tensors ATen computes the same
// formula and autograd differentiates it.
#include <torch/csrc/autograd/custom_function.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>

#include "c_api.h"

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace rlt {
namespace {

Tensor float_weight(const Tensor& weight, double offset) {
  Tensor w = weight.detach().to(at::kFloat).contiguous();
  return offset == 0.0 ? w : w + offset;
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_any, const Tensor& weight, double eps,
                        double offset) {
    Tensor x = as_rows(x_any), out = at::empty(x.sizes(), x.options());
    Tensor w = float_weight(weight, offset), rstd = at::empty({num_rows(x)}, x.options().dtype(at::kFloat));
    RmsNorm a{};
    a.dtype = dtype_of(x), a.x = rows_of(x), a.out = rows_of(out), a.weight = w.data_ptr<float>();
    a.rstd = rstd.data_ptr<float>(), a.num_rows = num_rows(x), a.width = x.size(-1), a.eps = eps;
    a.round_before_weight = offset == 0.0;
    at::parallel_for(0, a.num_rows, grain(a.width),
                     [&](int64_t b, int64_t e) { kernels().rms_norm_forward(a, b, e); });
    ctx->save_for_backward({x, weight, rstd});
    ctx->saved_data["offset"] = offset;
    return out;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &rstd = saved[2];
    Tensor grad = as_rows(grads[0]), dx = at::empty(x.sizes(), x.options());
    Tensor w = float_weight(weight, ctx->saved_data["offset"].toDouble()), partial;
    RmsNorm a{};
    a.dtype = dtype_of(x), a.x = rows_of(x), a.out = rows_of(dx), a.grad_out = rows_of(grad);
    a.weight = w.data_ptr<float>(), a.rstd = rstd.data_ptr<float>(), a.num_rows = num_rows(x),
    a.width = x.size(-1);
    a.chunk_rows = grain(a.width);
    const int64_t num_chunks = (a.num_rows + a.chunk_rows - 1) / a.chunk_rows;
    if (ctx->needs_input_grad(1)) {
      partial = at::empty({num_chunks, a.width}, x.options().dtype(at::kFloat));
      a.grad_weight = partial.data_ptr<float>();
    }
    at::parallel_for(0, num_chunks, 1, [&](int64_t b, int64_t e) { kernels().rms_norm_backward(a, b, e); });
    Tensor dw = partial.defined() ? partial.sum(0).to(weight.scalar_type()) : Tensor();
    return {dx, dw, Tensor(), Tensor()};
  }
};

Tensor rms_norm(const Tensor& x, const Tensor& weight_any, double eps, double offset, LaunchRows launcher) {
  TORCH_CHECK(x.dim() >= 1 && weight_any.dim() == 1 && x.size(-1) == weight_any.size(0), "rms_norm of ", x.sizes(),
              " expected a weight of one dim and the same width, got ", weight_any.sizes());
  if (device_takes_norm(x, weight_any)) return device_rms_norm(x, weight_any, eps, offset, launcher);
  const Tensor weight = weight_any.to(x.scalar_type());
  if (kernel_ready(x)) return RmsNormFunction::apply(x, weight, eps, offset);
  Tensor wide = x.to(at::kFloat);
  Tensor normed = wide * at::rsqrt(wide.pow(2).mean(-1, true) + eps);
  if (offset == 0.0) return (weight * normed.to(x.scalar_type())).to(x.scalar_type());
  return (normed * (weight.to(at::kFloat) + offset)).to(x.scalar_type());
}

Gated gated_args(const Tensor& gate, const Tensor& up, int64_t activation) {
  Gated a{};
  a.dtype = dtype_of(gate), a.activation = static_cast<Activation>(activation), a.width = gate.size(-1);
  a.gate = rows_of(gate), a.up = rows_of(up);
  return a;
}

Tensor gated_forward(const Tensor& gate, const Tensor& up, int64_t activation) {
  Tensor out = at::empty(gate.sizes(), gate.options());
  Gated a = gated_args(gate, up, activation);
  a.out = rows_of(out);
  at::parallel_for(0, num_rows(gate), grain(a.width),
                   [&](int64_t b, int64_t e) { kernels().gated_forward(a, b, e); });
  return out;
}

void gated_backward(const Tensor& gate, const Tensor& up, const Tensor& grad, const Tensor& dgate,
                    const Tensor& dup, int64_t activation) {
  Gated a = gated_args(gate, up, activation);
  a.grad_out = rows_of(grad), a.grad_gate = rows_of(dgate), a.grad_up = rows_of(dup);
  at::parallel_for(0, num_rows(gate), grain(a.width),
                   [&](int64_t b, int64_t e) { kernels().gated_backward(a, b, e); });
}

struct GatedFunction : torch::autograd::Function<GatedFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate_any, const Tensor& up_any,
                        int64_t activation) {
    Tensor gate = as_rows(gate_any), up = as_rows(up_any);
    ctx->save_for_backward({gate, up});
    ctx->saved_data["activation"] = activation;
    return gated_forward(gate, up, activation);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    Tensor dgate = at::empty(saved[0].sizes(), saved[0].options()), dup = at::empty_like(dgate);
    gated_backward(saved[0], saved[1], as_rows(grads[0]), dgate, dup, ctx->saved_data["activation"].toInt());
    return {dgate, dup, Tensor()};
  }
};

// Gated activation of a fused projection that holds gate and up. The gradient of both is one tensor.
struct GatedPackedFunction : torch::autograd::Function<GatedPackedFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& packed_any, int64_t activation) {
    Tensor packed = as_rows(packed_any);
    const int64_t width = packed.size(-1) / 2;
    ctx->save_for_backward({packed});
    ctx->saved_data["activation"] = activation;
    return gated_forward(packed.narrow(-1, 0, width), packed.narrow(-1, width, width), activation);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Tensor packed = ctx->get_saved_variables()[0];
    const int64_t width = packed.size(-1) / 2;
    Tensor grad = at::empty(packed.sizes(), packed.options());
    gated_backward(packed.narrow(-1, 0, width), packed.narrow(-1, width, width), as_rows(grads[0]),
                   grad.narrow(-1, 0, width), grad.narrow(-1, width, width),
                   ctx->saved_data["activation"].toInt());
    return {grad, Tensor()};
  }
};

Tensor gated(const Tensor& gate, const Tensor& up, int64_t activation, LaunchRows launcher) {
  TORCH_CHECK(gate.sizes() == up.sizes() && gate.scalar_type() == up.scalar_type() && gate.dim() >= 1,
              "gated activation expected gate and up alike, got ", gate.sizes(), " and ", up.sizes());
  if (kernel_ready(gate) && gate.dim() <= 3) return GatedFunction::apply(gate, up, activation);
  if (device_takes(gate)) return device_gated(gate, up, activation, launcher);
  return (activation == 0 ? at::silu(gate) : at::gelu(gate, "tanh")) * up;
}

Tensor gated_packed(const Tensor& packed, int64_t activation, LaunchRows launcher) {
  TORCH_CHECK(packed.dim() >= 1 && packed.size(-1) % 2 == 0, "gated activation expected an even width, got ",
              packed.sizes());
  if (kernel_ready(packed) && packed.dim() <= 3) return GatedPackedFunction::apply(packed, activation);
  if (device_takes(packed)) return device_gated_packed(packed, activation, launcher);
  const int64_t width = packed.size(-1) / 2;
  return gated(packed.narrow(-1, 0, width), packed.narrow(-1, width, width), activation, launcher);
}

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static Tensor run(const Tensor& x, const Tensor& cos, const Tensor& sin, bool backward) {
    Tensor out = at::empty(x.sizes(), x.options());
    Rope a{};
    a.dtype = dtype_of(x), a.x = rows_of(x), a.out = rows_of(out), a.width = x.size(-1),
    a.backward = backward;
    a.cos = cos.data_ptr<float>(), a.sin = sin.data_ptr<float>(), a.table_stride = cos.size(1);
    a.second_half = cos.size(1) == x.size(-1) ? x.size(-1) / 2 : 0;
    at::parallel_for(0, num_rows(x), grain(a.width), [&](int64_t b, int64_t e) { kernels().rope(a, b, e); });
    return out;
  }
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cos, const Tensor& sin) {
    Tensor c = cos.to(at::kFloat).contiguous(), s = sin.to(at::kFloat).contiguous();
    ctx->save_for_backward({c, s});
    return run(as_rows(x), c, s, false);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {run(as_rows(grads[0]), saved[0], saved[1], true), Tensor(), Tensor()};
  }
};

Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin, LaunchRows launcher) {
  TORCH_CHECK(x.dim() == 3 && cos.dim() == 2 && cos.sizes() == sin.sizes() && cos.size(0) == x.size(0) &&
                  x.size(2) % 2 == 0 && (cos.size(1) == x.size(2) || cos.size(1) == x.size(2) / 2),
              "rope of ", x.sizes(),
              " expected cos and sin of one row a token and the head's width or half of it, got ",
              cos.sizes(), " and ", sin.sizes());
  if (kernel_ready(x)) return RopeFunction::apply(x, cos.detach(), sin.detach());
  if (device_takes(x)) return device_rope(x, cos.detach(), sin.detach(), launcher);
  const int64_t half = x.size(2) / 2;
  const bool full = cos.size(1) == x.size(2);
  Tensor c = (full ? cos : at::cat({cos, cos}, 1)).unsqueeze(1),
         s = (full ? sin : at::cat({sin, sin}, 1)).unsqueeze(1);
  Tensor rotated = at::cat({-x.narrow(2, half, half), x.narrow(2, 0, half)}, 2);
  return (x * c + rotated * s).to(x.scalar_type());
}

}  // namespace
}  // namespace rlt

extern "C" {
char* rlt_rms_norm(Tensor* x, Tensor* weight, double eps, double offset, rlt::LaunchRows launcher, Tensor** out) {
  return rlt::guarded([&] { *out = rlt::owned(rlt::rms_norm(*x, *weight, eps, offset, launcher)); });
}
char* rlt_gated_activation(Tensor* gate, Tensor* up, int64_t activation, rlt::LaunchRows launcher, Tensor** out) {
  return rlt::guarded([&] { *out = rlt::owned(rlt::gated(*gate, *up, activation, launcher)); });
}
char* rlt_gated_activation_packed(Tensor* packed, int64_t activation, rlt::LaunchRows launcher, Tensor** out) {
  return rlt::guarded([&] { *out = rlt::owned(rlt::gated_packed(*packed, activation, launcher)); });
}
char* rlt_apply_rope(Tensor* x, Tensor* cos, Tensor* sin, rlt::LaunchRows launcher, Tensor** out) {
  return rlt::guarded([&] { *out = rlt::owned(rlt::rope(*x, *cos, *sin, launcher)); });
}
}
