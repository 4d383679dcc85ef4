// Linear layers in bfloat16 on CPUs with AMX or AVX512_BF16. The forward pass adds in the order of
// kernels/bf16/panels.inl, both in training and for weights that are packed for sampling. libtorch computes
// everything else, gradients included.
#include <torch/csrc/autograd/custom_function.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "c_api.h"

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace rlt {
namespace {

// Smallest number of multiply-adds per thread for which waking the thread saves time.
constexpr int64_t DENSE_PARALLEL_COST = 1 << 20;
// Number of bytes of panels that fit a second-level cache together with the rows that are multiplied by them.
constexpr int64_t PANELS_BYTES = 768 << 10;
// Number of rows per work item if the panels are already packed.
constexpr int64_t DENSE_ROW_BLOCK = 256;
// Number of rows from which it pays that a second thread packs the same panels.
constexpr int64_t ROWS_TO_PACK_FOR = 256;

bool takes_bf16(const Tensor& x, const Tensor& weight) {
  return kernels().bf16 && x.device().is_cpu() && x.scalar_type() == at::kBFloat16 && x.dim() >= 1 &&
         weight.device().is_cpu() && weight.scalar_type() == at::kBFloat16 && weight.dim() == 2 &&
         x.size(-1) == weight.size(1) && x.numel() > 0 && weight.numel() > 0;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Pads rows with zeros to full lots; returns the tensor itself if they are full.
Tensor whole_lots(const Tensor& t) {
  const int64_t missing = ceil_div(t.size(-1), Bf16Linear::LOT) * Bf16Linear::LOT - t.size(-1);
  return missing == 0 ? t.contiguous() : at::constant_pad_nd(t, {0, missing}, 0);
}

uint16_t* bf16_bits(const Tensor& t) { return static_cast<uint16_t*>(t.data_ptr()); }

// Splits the product into work items. If the product packs its panels and there are enough panels for all
// threads, only one thread packs each panel. If the panels are already packed, there are enough items for an
// even load.
void divide(Bf16Linear& a, int64_t threads) {
  const int64_t panels = ceil_div(a.out, Bf16Linear::PANEL);
  const int64_t in_cache = std::clamp<int64_t>(PANELS_BYTES / (2 * Bf16Linear::PANEL * a.in), 1, panels);
  const int64_t least_rows = a.panels ? 2 * Bf16Linear::LOT : ROWS_TO_PACK_FOR;
  int64_t row_blocks = a.panels ? ceil_div(a.num_rows, DENSE_ROW_BLOCK) : 1;
  if (panels * row_blocks < threads)
    row_blocks = std::clamp<int64_t>(ceil_div(threads, panels), row_blocks, ceil_div(a.num_rows, least_rows));
  a.item_rows = ceil_div(ceil_div(a.num_rows, row_blocks), 32) * 32;
  const int64_t groups = ceil_div(ceil_div(panels, in_cache), threads) * threads;
  a.item_panels = std::clamp<int64_t>(panels / groups + (panels % groups != 0), 1, in_cache);
}

void run(Bf16Linear& a, const Bf16Kernels& bf16) {
  divide(a, at::get_num_threads());
  const int64_t cost = std::max<int64_t>(32, std::min(a.item_rows, a.num_rows)) * a.item_panels * Bf16Linear::PANEL * a.in;
  at::parallel_for(0, bf16.items(a), std::max<int64_t>(1, DENSE_PARALLEL_COST / cost), [&](int64_t b, int64_t e) {
    // libtorch's allocator aligns to 64 bytes.
    const auto scratch = c10::GetCPUAllocator()->allocate(size_t(bf16.scratch(a)) * sizeof(float));
    bf16.product(a, static_cast<float*>(scratch.get()), b, e);
  });
}

Tensor wide_bias(const std::optional<Tensor>& bias) {
  return bias && bias->defined() ? bias->to(at::kFloat).contiguous() : Tensor();
}

// Multiplies by a weight, or by the panels packed from one, and writes to a contiguous y.
void bf16_into(const Tensor& y, const Tensor& x_any, const Tensor& weight_any, const Tensor& panels, const Tensor& bias) {
  const Tensor x = whole_lots(x_any), weight = panels.defined() ? Tensor() : whole_lots(weight_any);
  Bf16Linear a{};
  a.num_rows = num_rows(x), a.in = x.size(-1), a.out = y.size(-1);
  a.x = bf16_bits(x), a.y = bf16_bits(y), a.bias = bias.defined() ? bias.data_ptr<float>() : nullptr;
  a.weight = panels.defined() ? nullptr : bf16_bits(weight), a.panels = panels.defined() ? bf16_bits(panels) : nullptr;
  run(a, *bf16_kernels());
}

Tensor output_of(const Tensor& x, int64_t num_outputs) {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = num_outputs;
  return at::empty(sizes, x.options());
}

// Computes x W^T + bias without gradients.
Tensor product(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  if (!takes_bf16(x, weight)) return at::linear(x, weight, bias);
  Tensor y = output_of(x, weight.size(0));
  bf16_into(y, x, weight, Tensor(), wide_bias(bias));
  return y;
}

// Writes x W^T to the given y [rows, out].
void product_into(Tensor y, const Tensor& x, const Tensor& weight) {
  if (!takes_bf16(x, weight) || !y.is_contiguous() || y.scalar_type() != at::kBFloat16) {
    at::mm_out(y, x, weight.t());
    return;
  }
  bf16_into(y, x, weight, Tensor(), Tensor());
}

// Reshapes [.., width] to [rows, width].
Tensor flat_rows(const Tensor& t) { return t.reshape({-1, t.size(-1)}); }

// A differentiable product. Like libtorch's linear layer it saves x only if the weight needs a gradient, and
// the weight only if x needs one.
struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
    const bool trains = weight.requires_grad(), descends = x.requires_grad();
    ctx->save_for_backward({trains ? x : Tensor(), descends ? weight : Tensor()});
    ctx->saved_data["has_bias"] = bias && bias->defined();
    return product(x, weight, bias);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &x = saved[0], &weight = saved[1], rows = flat_rows(grads[0]);
    Tensor dx, dw, db;
    if (weight.defined() && ctx->needs_input_grad(0)) {
      dx = at::mm(rows, weight);
      if (grads[0].dim() != 2) dx = dx.view(output_of(grads[0], weight.size(1)).sizes());
    }
    if (x.defined() && ctx->needs_input_grad(1)) dw = at::mm(rows.t(), flat_rows(x));
    if (ctx->saved_data["has_bias"].toBool() && ctx->needs_input_grad(2)) db = rows.sum(0);
    return {dx, dw, db};
  }
};

Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  return takes_bf16(x, weight) ? LinearFunction::apply(x, weight, bias) : at::linear(x, weight, bias);
}

Tensor bf16_panels(const Tensor& weight_any) {
  const Tensor weight = whole_lots(weight_any);
  Bf16Linear a{};
  a.in = weight.size(1), a.out = weight.size(0), a.weight = bf16_bits(weight);
  const int64_t panels = ceil_div(a.out, Bf16Linear::PANEL), numbers = Bf16Linear::PANEL * a.in;
  Tensor out = at::empty({panels, a.in, Bf16Linear::PANEL}, weight.options());
  at::parallel_for(0, panels, grain(numbers), [&](int64_t b, int64_t e) {
    bf16_kernels()->pack_panels(a, b, e, bf16_bits(out) + b * numbers);
  });
  return out;
}

Tensor linear_of_bf16_panels(const Tensor& x, const Tensor& panels, int64_t num_outputs, const Tensor* bias) {
  TORCH_CHECK(bf16_kernels() && x.dim() >= 1 && x.scalar_type() == at::kBFloat16 && x.device().is_cpu() &&
                  ceil_div(x.size(-1), Bf16Linear::LOT) * Bf16Linear::LOT == panels.size(1),
              "a linear layer packed in panels of ", panels.size(1),
              " inputs expected a bfloat16 CPU tensor [.., inputs], got ", x.sizes(), " of ", x.scalar_type());
  Tensor y = output_of(x, num_outputs);
  if (x.numel() > 0)
    bf16_into(y, x, Tensor(), panels, bias ? wide_bias(*bias) : Tensor());
  return y;
}

}  // namespace
}  // namespace rlt

extern "C" {
char* rlt_linear(Tensor* x, Tensor* weight, Tensor* bias, Tensor** out) {
  return rlt::guarded([&] {
    *out = rlt::owned(rlt::linear(*x, *weight, bias ? std::optional<Tensor>(*bias) : std::nullopt));
  });
}
bool rlt_has_one_order() { return rlt::has_one_order(rlt::Dtype::BF16); }
char* rlt_pack_bf16(Tensor* weight, Tensor** out) {
  return rlt::guarded([&] {
    at::NoGradGuard no_grad;
    *out = rlt::owned(rlt::bf16_panels(weight->detach()));
  });
}
char* rlt_linear_of_bf16_panels(Tensor* x, Tensor* panels, int64_t num_outputs, Tensor* bias, Tensor** out) {
  return rlt::guarded([&] {
    at::NoGradGuard no_grad;
    *out = rlt::owned(rlt::linear_of_bf16_panels(x->detach(), *panels, num_outputs, bias));
  });
}
}
