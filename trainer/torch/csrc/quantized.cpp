// Linear layers with 4-bit and 8-bit weights. In training each product, forward and backward, dequantizes the
// weight temporarily; in sampling the product unpacks it.
#include <torch/csrc/autograd/custom_function.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <c10/core/CPUAllocator.h>

#include <optional>
#include <vector>

#include "c_api.h"

using at::Tensor;

// C++ side of `QuantizedParts` in ffi.rs. Tensors and tables are borrowed.
struct QuantizedParts {
  int64_t format;  // rlt::Quantized::Format
  int64_t num_outputs, num_inputs, block;
  int64_t stored;  // libtorch's number of the dtype to which values are rounded first
  Tensor* codes;
  Tensor* scales;         // float32, or uint8
  Tensor* nested_scales;  // scales of `scales`; null unless those are nested
  Tensor* nested_offset;  // offset of `scales`; null unless those are nested
  const float* table;
  const float* scale_table;
  // Dequantizes a weight on a GPU to a tensor [outputs, inputs] there. On failure returns false and writes
  // the cause to `message`.
  bool (*dequantize_on_device)(const QuantizedParts* weight, Tensor* out, char* message, size_t capacity);
};

namespace rlt {
namespace {

// A quantized weight that owns its tensors.
struct QuantizedWeight {
  QuantizedParts parts;
  Tensor codes, scales, nested_scales, nested_offset;

  explicit QuantizedWeight(const QuantizedParts& from) : parts(from), codes(*from.codes), scales(*from.scales) {
    if (from.nested_scales) nested_scales = *from.nested_scales, nested_offset = *from.nested_offset;
  }
  int64_t num() const { return parts.num_outputs * parts.num_inputs; }
  // Returns `parts` with pointers to the tensors of this weight.
  QuantizedParts borrowed() const {
    QuantizedParts own = parts;
    own.codes = const_cast<Tensor*>(&codes), own.scales = const_cast<Tensor*>(&scales);
    own.nested_scales = nested_scales.defined() ? const_cast<Tensor*>(&nested_scales) : nullptr;
    own.nested_offset = nested_scales.defined() ? const_cast<Tensor*>(&nested_offset) : nullptr;
    return own;
  }
};

int32_t rounding(at::ScalarType dtype) {
  return dtype == at::kBFloat16 ? 1 : dtype == at::kHalf ? 2 : 0;
}

// Makes the kernels' view of the weight, for a product in the dtype `compute`.
Quantized kernel_view(const QuantizedWeight& w, at::ScalarType compute) {
  TORCH_CHECK(w.codes.device().is_cpu() && w.scales.device().is_cpu(),
              "a quantized weight is read on the CPU, got ", w.codes.device());
  TORCH_CHECK(w.codes.is_contiguous() && w.scales.is_contiguous(), "a quantized weight is contiguous");
  Quantized q{};
  q.format = static_cast<Quantized::Format>(w.parts.format);
  const auto stored = static_cast<at::ScalarType>(w.parts.stored);
  q.rounds[0] = rounding(stored);
  q.rounds[1] = compute == stored ? 0 : rounding(compute);
  q.codes = static_cast<const uint8_t*>(w.codes.data_ptr());
  q.table = w.parts.table;
  q.block = q.format == Quantized::Format::Int8 ? w.parts.num_inputs : w.parts.block;
  if (w.nested_scales.defined()) {
    q.scale_codes = static_cast<const uint8_t*>(w.scales.data_ptr());
    q.scale_table = w.parts.scale_table;
    q.scale_scales = w.nested_scales.data_ptr<float>();
    q.scale_offset = *w.nested_offset.data_ptr<float>();
  } else {
    q.scales = w.scales.data_ptr<float>();
  }
  return q;
}

// Dequantizes by our own kernel. The result is allocated by libtorch's caching allocator, which reuses its
// memory for the next weight.
Tensor dequantized_on_device(const QuantizedWeight& w, at::ScalarType compute) {
  const bool has_kernel = compute == at::kFloat || compute == at::kBFloat16 || compute == at::kHalf;
  const auto options = w.codes.options().dtype(has_kernel ? compute : at::kFloat);
  Tensor out = at::empty({w.parts.num_outputs, w.parts.num_inputs}, options);
  const QuantizedParts parts = w.borrowed();
  char message[512];
  TORCH_CHECK(parts.dequantize_on_device(&parts, &out, message, sizeof message), message);
  return out.to(compute);
}

Tensor dequantized(const QuantizedWeight& w, at::ScalarType compute) {
  if (w.codes.is_cuda()) return dequantized_on_device(w, compute);
  const Quantized q = kernel_view(w, compute);
  // Kernels write float16 values as float32, which represents them exactly; `to` converts them.
  const auto written = compute == at::kBFloat16 ? at::kBFloat16 : at::kFloat;
  Tensor out = at::empty({w.parts.num_outputs, w.parts.num_inputs}, at::TensorOptions().dtype(written));
  const int64_t num = w.num(), blocks = (num + q.block - 1) / q.block;
  at::parallel_for(0, blocks, grain(q.block), [&](int64_t b, int64_t e) {
    kernels().dequantize(q, num, out.data_ptr(), dtype_of(out), b, e);
  });
  return out.to(compute);
}

// Computes y = x W^T + bias with a gradient for x only.
struct QuantizedLinearFunction : torch::autograd::Function<QuantizedLinearFunction> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x,
                        std::shared_ptr<QuantizedWeight> weight, const std::optional<Tensor>& bias) {
    Tensor y = product(x, dequantized(*weight, x.scalar_type()), bias);
    // Not saved by save_for_backward: FSDP frees and all-gathers the tensors' memory between the passes.
    ctx->saved_data["weight"] =
        c10::IValue::make_capsule(c10::make_intrusive<Held>(std::move(weight)));
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    Tensor dx;
    if (ctx->needs_input_grad(0)) {
      const auto held = ctx->saved_data["weight"].toCapsule();
      const QuantizedWeight& weight = *static_cast<const Held&>(*held).weight;
      dx = at::mm(grads[0], dequantized(weight, grads[0].scalar_type()));
    }
    return {dx, Tensor(), Tensor()};
  }
  struct Held : torch::CustomClassHolder {
    explicit Held(std::shared_ptr<QuantizedWeight> w) : weight(std::move(w)) {}
    std::shared_ptr<QuantizedWeight> weight;
  };
};

void check_input(const Tensor& x, const QuantizedParts& w) {
  TORCH_CHECK(x.dim() == 2 && x.size(1) == w.num_inputs && x.device() == w.codes->device(),
              "a quantized linear layer of ", w.num_inputs, " inputs on ", w.codes->device(),
              " expected a tensor [rows, inputs] there, got ", x.sizes(), " on ", x.device());
}

// Smallest number of multiply-adds per thread for which waking the thread saves time.
constexpr int64_t QUANTIZED_PARALLEL_COST = 1 << 17;

uint16_t* bits_of(const Tensor& t) { return static_cast<uint16_t*>(t.data_ptr()); }

// Computes the product in bfloat16 on CPUs with instructions for it.
Tensor product_in_bf16(const Bf16Kernels& bf16, const Tensor& x, const Quantized& q, int64_t num_outputs,
                       const float* bias) {
  QuantizedBf16Linear a{};
  a.weight = q, a.num_rows = x.size(0), a.in = x.size(1), a.out = num_outputs;
  Tensor y = at::empty({a.num_rows, a.out}, x.options()), inputs = at::empty({bf16.quantized_inputs(a)}, x.options());
  a.x = bits_of(x), a.inputs = bits_of(inputs), a.y = bits_of(y), a.bias = bias;
  bf16.pack_quantized_inputs(a);
  // Unpacking takes as long as multiplying by 16 rows.
  const int64_t item_cost = std::max<int64_t>(1, 32 * a.in * (1 + std::min<int64_t>(a.num_rows, 256) / 16));
  at::parallel_for(0, bf16.quantized_items(a), std::max<int64_t>(1, QUANTIZED_PARALLEL_COST / item_cost),
                   [&](int64_t b, int64_t e) {
                     // libtorch's allocator aligns to 64 bytes.
                     const auto scratch = c10::GetCPUAllocator()->allocate(size_t(bf16.quantized_scratch(a)) * sizeof(float));
                     bf16.quantized_product(a, static_cast<float*>(scratch.get()), b, e);
                   });
  return y;
}

Tensor quantized_product(const Tensor& x_any, const QuantizedWeight& w, const Tensor* bias) {
  const auto compute = x_any.scalar_type();
  if (!kernel_ready(x_any)) {
    return at::linear(x_any, dequantized(w, compute), bias ? std::optional<Tensor>(*bias) : std::nullopt);
  }
  const Quantized q = kernel_view(w, compute);
  const Tensor x = x_any.contiguous();
  const Tensor wide_bias = bias ? bias->to(at::kFloat).contiguous() : Tensor();
  const float* biases = bias ? wide_bias.data_ptr<float>() : nullptr;
  const Kernels& table = kernels();
  const Bf16Kernels* bf16 = table.bf16;
  if (compute == at::kBFloat16 && bf16 && bf16->fits_quantized(q, w.parts.num_inputs))
    return product_in_bf16(*bf16, x, q, w.parts.num_outputs, biases);
  QuantizedLinear a{};
  a.weight = q, a.in = w.parts.num_inputs, a.out = w.parts.num_outputs, a.num_rows = x.size(0);
  a.x_row = table.spread_len(a.in);
  const auto numbers = at::TensorOptions().dtype(at::kFloat);
  Tensor spread = at::empty({a.num_rows, a.x_row}, numbers), y = at::empty({a.num_rows, a.out}, numbers);
  table.spread_rows(q, x.data_ptr(), dtype_of(x), a.in, spread.data_ptr<float>(), 0, a.num_rows);
  a.x = spread.data_ptr<float>(), a.y = y.data_ptr<float>(), a.bias = biases;
  const int64_t item_cost = std::max<int64_t>(1, 4 * a.in * std::min<int64_t>(a.num_rows, 64));
  at::parallel_for(0, table.quantized_items(a), std::max<int64_t>(1, QUANTIZED_PARALLEL_COST / item_cost),
                   [&](int64_t b, int64_t e) {
                     std::vector<float> scratch(a.num_rows > 1 ? table.quantized_scratch(a) : 0);
                     table.quantized_linear(a, scratch.data(), b, e);
                   });
  return y.to(compute);
}

}  // namespace
}  // namespace rlt

extern "C" {
char* rlt_dequantize(const QuantizedParts* weight, int8_t dtype, Tensor** out) {
  return rlt::guarded([&] {
    at::NoGradGuard no_grad;
    *out = rlt::owned(rlt::dequantized(rlt::QuantizedWeight(*weight), static_cast<at::ScalarType>(dtype)));
  });
}
char* rlt_quantized_linear(const QuantizedParts* weight, Tensor* x, Tensor* bias, Tensor** out) {
  return rlt::guarded([&] {
    rlt::check_input(*x, *weight);
    const auto given = bias ? std::optional<Tensor>(*bias) : std::nullopt;
    *out = rlt::owned(
        rlt::QuantizedLinearFunction::apply(*x, std::make_shared<rlt::QuantizedWeight>(*weight), given));
  });
}
char* rlt_quantized_product(const QuantizedParts* weight, Tensor* x, Tensor* bias, Tensor** out) {
  return rlt::guarded([&] {
    at::NoGradGuard no_grad;
    rlt::check_input(*x, *weight);
    *out = rlt::owned(rlt::quantized_product(x->detach(), rlt::QuantizedWeight(*weight), bias));
  });
}
}
