// Matrix products of a mixture of experts. The rows of all (token, choice) pairs are sorted by expert, so
// each expert multiplies a contiguous range of rows without padding. Gradients are implemented here, because
// autograd would allocate a tensor as large as all experts' weights for each expert.
#include <torch/csrc/autograd/custom_function.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "c_api.h"

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace rlt {
namespace {

// Calls `body` with each expert that has rows, the expert's first row, and its number of rows.
template <class Body>
void for_each_expert(const std::vector<int64_t>& ends, Body body) {
  int64_t start = 0;
  for (size_t expert = 0; expert < ends.size(); start = ends[expert++]) {
    if (ends[expert] > start) body(static_cast<int64_t>(expert), start, ends[expert] - start);
  }
}

// Token of each sorted row. `order` numbers the (token, choice) pairs by token.
Tensor tokens_of(const Tensor& order, int64_t per_token) { return order.div(per_token, "floor"); }

// Gathers rows of tokens [t, d], one per choice, sorted by expert: [n, d].
struct GatherFunction : torch::autograd::Function<GatherFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& order, const Tensor& inverse,
                        int64_t per_token) {
    ctx->save_for_backward({inverse});
    ctx->saved_data["per_token"] = per_token;
    return at::index_select(x, 0, tokens_of(order, per_token));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const Tensor inverse = ctx->get_saved_variables()[0];
    const int64_t per_token = ctx->saved_data["per_token"].toInt();
    Tensor by_token = at::index_select(grads[0], 0, inverse);
    return {by_token.view({-1, per_token, grads[0].size(1)}).sum(1), Tensor(), Tensor(), Tensor()};
  }
};

// Multiplies sorted rows [n, in] by the weights [experts, out, in] of their experts: [n, out].
struct GroupedLinearFunction : torch::autograd::Function<GroupedLinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x_any, const Tensor& weight,
                        const std::vector<int64_t>& ends) {
    Tensor x = x_any.contiguous(), y = at::empty({x.size(0), weight.size(1)}, x.options());
    for_each_expert(ends, [&](int64_t expert, int64_t start, int64_t len) {
      Tensor rows = y.narrow(0, start, len);
      product_into(rows, x.narrow(0, start, len), weight.select(0, expert));
    });
    ctx->save_for_backward({x, weight});
    ctx->saved_data["ends"] = ends;
    return y;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1];
    const Tensor grad = grads[0].contiguous();
    const std::vector<int64_t> ends = ctx->saved_data["ends"].toIntVector();
    Tensor dx, dw;
    if (ctx->needs_input_grad(0)) dx = at::empty(x.sizes(), x.options());
    if (ctx->needs_input_grad(1)) dw = at::zeros(weight.sizes(), weight.options());
    for_each_expert(ends, [&](int64_t expert, int64_t start, int64_t len) {
      const Tensor rows = grad.narrow(0, start, len);
      if (dx.defined()) {
        Tensor own = dx.narrow(0, start, len);
        at::mm_out(own, rows, weight.select(0, expert));
      }
      if (dw.defined()) {
        Tensor own = dw.select(0, expert);
        at::mm_out(own, rows.t(), x.narrow(0, start, len));
      }
    });
    return {dx, dw, Tensor()};
  }
};

// Combines sorted rows [n, d] by token: [t, d] is the float32 sum over a token's choices of row times weight
// [t, k].
struct CombineFunction : torch::autograd::Function<CombineFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weights, const Tensor& order,
                        const Tensor& inverse) {
    const int64_t per_token = weights.size(1);
    const Tensor wide = weights.to(at::kFloat), places = inverse.view({-1, per_token});
    Tensor sum = at::zeros({weights.size(0), x.size(1)}, x.options().dtype(at::kFloat));
    for (int64_t choice = 0; choice < per_token; ++choice) {
      const Tensor rows = at::index_select(x, 0, places.select(1, choice).contiguous());
      sum.addcmul_(rows.to(at::kFloat), wide.narrow(1, choice, 1));
    }
    ctx->save_for_backward({x, weights, order, inverse});
    return sum.to(x.scalar_type());
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weights = saved[1], &order = saved[2], &inverse = saved[3];
    const int64_t per_token = weights.size(1);
    const Tensor of_rows =
        at::index_select(grads[0], 0, tokens_of(order, per_token)).to(at::kFloat);
    Tensor dx, dw;
    if (ctx->needs_input_grad(0)) {
      const Tensor sorted = at::index_select(weights.to(at::kFloat).reshape({-1, 1}), 0, order);
      dx = (of_rows * sorted).to(x.scalar_type());
    }
    if (ctx->needs_input_grad(1)) {
      const Tensor sorted = (of_rows * x.to(at::kFloat)).sum(1);
      dw = at::index_select(sorted, 0, inverse).view_as(weights).to(weights.scalar_type());
    }
    return {dx, dw, Tensor(), Tensor()};
  }
};

}  // namespace
}  // namespace rlt

extern "C" {
char* rlt_gather_rows(Tensor* x, Tensor* order, Tensor* inverse, int64_t per_token, Tensor** out) {
  return rlt::guarded([&] { *out = rlt::owned(rlt::GatherFunction::apply(*x, *order, *inverse, per_token)); });
}
char* rlt_grouped_linear(Tensor* x, Tensor* weight, const int64_t* ends, int64_t num_experts, Tensor** out) {
  return rlt::guarded([&] {
    TORCH_CHECK(x->dim() == 2 && weight->dim() == 3 && weight->size(0) == num_experts &&
                    x->size(1) == weight->size(2) && num_experts > 0 && ends[num_experts - 1] == x->size(0),
                "a product by ", num_experts, " experts of ", x->sizes(), " expected weights [experts, out, in], got ",
                weight->sizes());
    *out = rlt::owned(
        rlt::GroupedLinearFunction::apply(*x, *weight, std::vector<int64_t>(ends, ends + num_experts)));
  });
}
char* rlt_combine_rows(Tensor* x, Tensor* weights, Tensor* order, Tensor* inverse, Tensor** out) {
  return rlt::guarded([&] { *out = rlt::owned(rlt::CombineFunction::apply(*x, *weights, *order, *inverse)); });
}
}
