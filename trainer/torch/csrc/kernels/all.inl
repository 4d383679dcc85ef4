// The kernels of one instruction set and their table. The including file defines RLT_ISA (the namespace) and
// RLT_ISA_NAME.
#include "../kernels.h"

#include <cstddef>
#include "intrinsics.h"

namespace rlt {
namespace RLT_ISA {
namespace {
#include "simd.h"
#include "rows.inl"
#include "head.inl"
#include "gemm.inl"
#include "attention.inl"
#include "paged.inl"
#include "paged_as_packed.inl"
#include "linear.inl"
#include "quantized/numbers.inl"
#include "quantized/linear.inl"
#include "optim.inl"

#define RLT_BY_DTYPE(kernel, Args)                         \
  void kernel(const Args& a, int64_t begin, int64_t end) { \
    if (a.dtype == Dtype::BF16)                            \
      kernel##_t<bf16>(a, begin, end);                     \
    else                                                   \
      kernel##_t<float>(a, begin, end);                    \
  }
RLT_BY_DTYPE(rms_norm_forward, RmsNorm)
RLT_BY_DTYPE(rms_norm_backward, RmsNorm)
RLT_BY_DTYPE(gated_forward, Gated)
RLT_BY_DTYPE(gated_backward, Gated)
RLT_BY_DTYPE(rope, Rope)
RLT_BY_DTYPE(head_statistics, HeadRow)
RLT_BY_DTYPE(head_gradient, HeadRow)
#undef RLT_BY_DTYPE

void attention_forward(const Attention& a, const AttentionItem& item, float* scratch) {
  if (a.dtype == Dtype::BF16)
    attention_forward_t<bf16>(a, item, scratch);
  else
    attention_forward_t<float>(a, item, scratch);
}
void attention_backward(const Attention& a, const AttentionItem& item, float* scratch) {
  if (a.dtype == Dtype::BF16)
    attention_backward_t<bf16>(a, item, scratch);
  else
    attention_backward_t<float>(a, item, scratch);
}
int64_t paged_attention_scratch(const PagedAttention& a, int64_t context_len) {
#if defined(__AVX512F__)
  if (a.as_packed) return paged_as_packed_scratch(a);
#endif
  return paged_scratch(a, context_len);
}
void paged_attention(const PagedAttention& a, int64_t query, int64_t kv_head, float* scratch) {
#if defined(__AVX512F__)
  if (a.as_packed) return paged_as_packed(a, query, kv_head, scratch);
#endif
  if (a.dtype == Dtype::BF16)
    paged_attention_t<bf16>(a, query, kv_head, scratch);
  else
    paged_attention_t<float>(a, query, kv_head, scratch);
}
double sum_of_squares(const void* x, Dtype dtype, int64_t begin, int64_t end) {
  if (dtype == Dtype::BF16) return sum_of_squares_t(static_cast<const bf16*>(x), begin, end);
  return sum_of_squares_t(static_cast<const float*>(x), begin, end);
}
}  // namespace

extern const Kernels TABLE;
const Kernels TABLE = {RLT_ISA_NAME,       rms_norm_forward,
                       rms_norm_backward,  gated_forward,
                       gated_backward,     rope,
                       head_statistics,    head_gradient,
                       attention_scratch,  attention_forward,
                       attention_backward, paged_attention_scratch,
                       paged_attention,    linear_items,
                       linear_panels,      spread_len,
                       spread_rows,        quantized_items,
                       quantized_scratch,  quantized_linear,
                       dequantize,         adamw,
                       sum_of_squares,     nullptr};
}  // namespace RLT_ISA
}  // namespace rlt
