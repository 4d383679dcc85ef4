// Row operations of fused.cpp on a CUDA device: one launch forward, and one or two backward. Rust launches
// the kernels (cuda/rows.cu), since it loads their module (`device_rows.rs`).
#include <torch/csrc/autograd/custom_function.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "c_api.h"

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace rlt {
namespace {

// Kernel numbers that Rust dispatches with their tensors and numbers; see `launched` in device_rows.rs.
enum RowKernel : int32_t { NORM, NORM_BACKWARD, GATED, GATED_BACKWARD, ROPE };

// Largest width of a norm: threads per block times columns per thread.
constexpr int64_t MAX_NORM_WIDTH = 512 * 16;
// Largest number of blocks of a norm's backward pass. Each block writes a partial sum of the weight's
// gradient.
constexpr int64_t MAX_NORM_BLOCKS = 1024;

void launch_rows(int64_t launcher, RowKernel kernel, std::vector<Tensor> tensors, const std::vector<double>& numbers) {
  char message[MESSAGE_BYTES] = {};
  std::vector<Tensor*> pointers;
  for (Tensor& tensor : tensors) pointers.push_back(&tensor);
  const bool done = reinterpret_cast<LaunchRows>(launcher)(kernel, pointers.data(), pointers.size(), numbers.data(),
                                                           numbers.size(), message, MESSAGE_BYTES);
  TORCH_CHECK(done, message);
}

Tensor matrix(const Tensor& t) { return t.contiguous().view({-1, t.size(-1)}); }

struct NormFunction : torch::autograd::Function<NormFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_any, const Tensor& weight, double eps, double offset,
                        int64_t launcher) {
    const Tensor x = x_any.contiguous(), out = at::empty(x.sizes(), x.options());
    const Tensor rstd = at::empty({num_rows(x)}, x.options().dtype(at::kFloat));
    launch_rows(launcher, NORM, {matrix(x), weight.detach().contiguous(), matrix(out), rstd}, {eps, offset});
    ctx->save_for_backward({x, weight, rstd});
    ctx->saved_data["offset"] = offset;
    ctx->saved_data["launcher"] = launcher;
    return out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], &rstd = saved[2];
    const Tensor dx = at::empty(x.sizes(), x.options());
    const bool trains = ctx->needs_input_grad(1);
    const int64_t blocks = std::min(num_rows(x), MAX_NORM_BLOCKS), width = trains ? x.size(-1) : 0;
    const Tensor partial = at::empty({blocks, width}, x.options().dtype(at::kFloat));
    launch_rows(ctx->saved_data["launcher"].toInt(), NORM_BACKWARD,
           {matrix(x), weight.detach().contiguous(), matrix(grads[0]), matrix(dx), rstd, partial},
           {ctx->saved_data["offset"].toDouble()});
    Tensor dw = trains ? partial.sum(0).to(weight.scalar_type()) : Tensor();
    return {dx, dw, Tensor(), Tensor(), Tensor()};
  }
};

// Views a tensor with contiguous rows as a matrix, whatever its row stride.
Tensor strided_rows(const Tensor& t) {
  const bool is_dense = t.stride(-1) == 1 && (t.dim() == 2 || t.is_contiguous());
  const Tensor rows = is_dense ? t : t.contiguous();
  return rows.dim() == 2 ? rows : rows.view({-1, rows.size(-1)});
}

// Returns gate and up as matrices with the same row stride.
std::pair<Tensor, Tensor> alike(const Tensor& gate_any, const Tensor& up_any) {
  const Tensor gate = strided_rows(gate_any), up = strided_rows(up_any);
  if (gate.stride(0) == up.stride(0)) return {gate, up};
  return {gate.contiguous(), up.contiguous()};
}

void device_gated_backward(int64_t launcher, const Tensor& gate, const Tensor& up, const Tensor& grad, const Tensor& dgate,
                    const Tensor& dup, double activation) {
  const auto [gate_rows, up_rows] = alike(gate, up);
  launch_rows(launcher, GATED_BACKWARD,
         {gate_rows, up_rows, matrix(grad), strided_rows(dgate), strided_rows(dup)}, {activation});
}

struct DeviceGatedFunction : torch::autograd::Function<DeviceGatedFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gate, const Tensor& up, int64_t activation,
                        int64_t launcher) {
    const Tensor out = at::empty(gate.sizes(), gate.options());
    const auto [gate_rows, up_rows] = alike(gate, up);
    launch_rows(launcher, GATED, {gate_rows, up_rows, matrix(out)}, {double(activation)});
    ctx->save_for_backward({gate, up});
    ctx->saved_data["activation"] = double(activation);
    ctx->saved_data["launcher"] = launcher;
    return out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor dgate = at::empty(saved[0].sizes(), saved[0].options()), dup = at::empty_like(dgate);
    device_gated_backward(ctx->saved_data["launcher"].toInt(), saved[0], saved[1], grads[0], dgate, dup,
                   ctx->saved_data["activation"].toDouble());
    return {dgate, dup, Tensor(), Tensor()};
  }
};

// Gated activation of a fused projection that holds gate and up. The gradient of both is one tensor.
struct DeviceGatedPackedFunction : torch::autograd::Function<DeviceGatedPackedFunction> {
  static std::pair<Tensor, Tensor> halves(const Tensor& packed) {
    const int64_t width = packed.size(-1) / 2;
    return {packed.narrow(-1, 0, width), packed.narrow(-1, width, width)};
  }
  static Tensor forward(AutogradContext* ctx, const Tensor& packed_any, int64_t activation, int64_t launcher) {
    const Tensor packed = matrix(packed_any), out = at::empty({packed.size(0), packed.size(1) / 2}, packed.options());
    const auto [gate, up] = halves(packed);
    launch_rows(launcher, GATED, {gate, up, out}, {double(activation)});
    ctx->save_for_backward({packed});
    ctx->saved_data["activation"] = double(activation);
    ctx->saved_data["launcher"] = launcher;
    std::vector<int64_t> sizes = packed_any.sizes().vec();
    sizes.back() /= 2;
    return out.view(sizes);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Tensor packed = ctx->get_saved_variables()[0], grad = at::empty(packed.sizes(), packed.options());
    const auto [gate, up] = halves(packed);
    const auto [dgate, dup] = halves(grad);
    device_gated_backward(ctx->saved_data["launcher"].toInt(), gate, up, grads[0], dgate, dup,
                   ctx->saved_data["activation"].toDouble());
    std::vector<int64_t> sizes = grads[0].sizes().vec();
    sizes.back() *= 2;
    return {grad.view(sizes), Tensor(), Tensor()};
  }
};

struct DeviceRopeFunction : torch::autograd::Function<DeviceRopeFunction> {
  static Tensor run(const Tensor& x_any, const Tensor& cos, const Tensor& sin, int64_t launcher, bool is_backward) {
    const Tensor x = x_any.contiguous(), out = at::empty(x.sizes(), x.options());
    launch_rows(launcher, ROPE, {x, cos, sin, out}, {double(is_backward)});
    return out;
  }
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cos_any, const Tensor& sin_any,
                        int64_t launcher) {
    const Tensor cos = cos_any.to(x.scalar_type()).contiguous(), sin = sin_any.to(x.scalar_type()).contiguous();
    ctx->save_for_backward({cos, sin});
    ctx->saved_data["launcher"] = launcher;
    return run(x, cos, sin, launcher, false);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {run(grads[0], saved[0], saved[1], ctx->saved_data["launcher"].toInt(), true), Tensor(), Tensor(),
            Tensor()};
  }
};

int64_t number_of(LaunchRows launcher) { return reinterpret_cast<int64_t>(launcher); }

}  // namespace

bool device_takes(const Tensor& t) {
  const auto kind = t.scalar_type();
  return t.device().is_cuda() && t.layout() == at::kStrided && t.dim() >= 2 && t.numel() > 0 &&
         (kind == at::kFloat || kind == at::kBFloat16 || kind == at::kHalf);
}
bool device_takes_norm(const Tensor& x, const Tensor& weight) {
  const bool fits = weight.scalar_type() == x.scalar_type() || weight.scalar_type() == at::kFloat;
  return device_takes(x) && fits && x.size(-1) <= MAX_NORM_WIDTH;
}
Tensor device_rms_norm(const Tensor& x, const Tensor& weight, double eps, double offset, LaunchRows launcher) {
  return NormFunction::apply(x, weight, eps, offset, number_of(launcher));
}
Tensor device_gated(const Tensor& gate, const Tensor& up, int64_t activation, LaunchRows launcher) {
  return DeviceGatedFunction::apply(gate, up, activation, number_of(launcher));
}
Tensor device_gated_packed(const Tensor& packed, int64_t activation, LaunchRows launcher) {
  return DeviceGatedPackedFunction::apply(packed, activation, number_of(launcher));
}
Tensor device_rope(const Tensor& x, const Tensor& cos, const Tensor& sin, LaunchRows launcher) {
  return DeviceRopeFunction::apply(x, cos, sin, number_of(launcher));
}

}  // namespace rlt
