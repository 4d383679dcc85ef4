// Matrix products of experts on a CUDA device, with gradients. The number of launches is fixed, because only
// the device knows how many rows each expert has. Rust launches the kernels, since it loads their module
// (`device_experts.rs`).
#include <torch/csrc/autograd/custom_function.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include "c_api.h"

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace rlt {
namespace {

// Kernel numbers that Rust dispatches with their operands; see `Launch` in ffi.rs.
enum Kernel : int32_t { LINEAR, GRADIENT_OF_ROWS, GRADIENT_OF_WEIGHT, COMBINE };
using Launch = bool (*)(int32_t kernel, Tensor* first, Tensor* second, Tensor* ints, Tensor* out, char* message,
                        size_t message_bytes);

void launch(int64_t launcher, Kernel kernel, Tensor first, Tensor second, Tensor ints, Tensor out) {
  char message[MESSAGE_BYTES] = {};
  const bool done =
      reinterpret_cast<Launch>(launcher)(kernel, &first, &second, &ints, &out, message, MESSAGE_BYTES);
  TORCH_CHECK(done, message);
}

// Multiplies sorted rows [n, in] by the weights [experts, out, in] of their experts: [n, out].
struct DeviceLinearFunction : torch::autograd::Function<DeviceLinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_any, const Tensor& weight_any, const Tensor& ends,
                        int64_t launcher) {
    const Tensor x = x_any.contiguous(), weight = weight_any.contiguous();
    Tensor y = at::empty({x.size(0), weight.size(1)}, x.options());
    launch(launcher, LINEAR, x, weight, ends, y);
    // Contiguous copies of the inputs are not saved but made again in the backward pass, because they may be
    // large.
    ctx->save_for_backward({x, weight_any, ends});
    ctx->saved_data["launcher"] = launcher;
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], weight = saved[1].contiguous(), &ends = saved[2];
    const Tensor grad = grads[0].contiguous();
    const int64_t launcher = ctx->saved_data["launcher"].toInt();
    Tensor dx, dw;
    if (ctx->needs_input_grad(0)) {
      dx = at::empty(x.sizes(), x.options());
      launch(launcher, GRADIENT_OF_ROWS, grad, weight, ends, dx);
    }
    if (ctx->needs_input_grad(1)) {
      dw = at::empty(weight.sizes(), weight.options());
      launch(launcher, GRADIENT_OF_WEIGHT, grad, x, ends, dw);
    }
    return {dx, dw, Tensor(), Tensor()};
  }
};

// Combines sorted rows [n, d] by token: [t, d] is the sum over a token's choices of row times weight [t, k].
struct DeviceCombineFunction : torch::autograd::Function<DeviceCombineFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_any, const Tensor& weights, const Tensor& order,
                        const Tensor& inverse, int64_t launcher) {
    const Tensor x = x_any.contiguous();
    Tensor out = at::empty({weights.size(0), x.size(1)}, x.options());
    launch(launcher, COMBINE, x, weights.to(at::kFloat).contiguous(), inverse, out);
    ctx->save_for_backward({x, weights, order, inverse});
    return out;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weights = saved[1], &order = saved[2], &inverse = saved[3];
    const Tensor tokens = order.div(weights.size(1), "floor");
    const Tensor of_rows = at::index_select(grads[0], 0, tokens).to(at::kFloat);
    Tensor dx, dw;
    if (ctx->needs_input_grad(0)) {
      const Tensor sorted = at::index_select(weights.to(at::kFloat).reshape({-1, 1}), 0, order);
      dx = (of_rows * sorted).to(x.scalar_type());
    }
    if (ctx->needs_input_grad(1)) {
      const Tensor sorted = (of_rows * x.to(at::kFloat)).sum(1);
      dw = at::index_select(sorted, 0, inverse).view_as(weights).to(weights.scalar_type());
    }
    return {dx, dw, Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace
}  // namespace rlt

extern "C" {
char* rlt_device_grouped_linear(Tensor* x, Tensor* weight, Tensor* ends, rlt::Launch launcher, Tensor** out) {
  return rlt::guarded([&] {
    TORCH_CHECK(x->dim() == 2 && weight->dim() == 3 && x->size(1) == weight->size(2), "a product by experts of ",
                x->sizes(), " expected weights [experts, out, in], got ", weight->sizes());
    const auto function = reinterpret_cast<int64_t>(launcher);
    *out = rlt::owned(rlt::DeviceLinearFunction::apply(*x, *weight, *ends, function));
  });
}
char* rlt_device_combine_rows(Tensor* x, Tensor* weights, Tensor* order, Tensor* inverse, rlt::Launch launcher,
                              Tensor** out) {
  return rlt::guarded([&] {
    const auto function = reinterpret_cast<int64_t>(launcher);
    *out = rlt::owned(rlt::DeviceCombineFunction::apply(*x, *weights, *order, *inverse, function));
  });
}
}
