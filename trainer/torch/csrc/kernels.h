// Interface between tensor code and arithmetic: plain pointers and sizes, and one table of kernels per
// instruction set. Neither this file nor kernels/ includes a torch header. These files are compiled several
// times with different instruction sets; if they shared an inline function, the linker might keep the copy
// for a newer CPU.
#pragma once
#include <cstdint>

namespace rlt {

enum class Dtype : int32_t { F32 = 0, BF16 = 1 };

// Rows of `width` contiguous elements. Row r starts at (r / inner) * outer_stride + (r % inner) *
// inner_stride, which covers [T, D], [T, H, D] and slices of a wider fused projection alike. Strides count
// elements.
struct Rows {
  void* data;
  int64_t inner;
  int64_t outer_stride;
  int64_t inner_stride;
};

struct RmsNorm {
  Dtype dtype;
  Rows x, out;          // forward: out; backward: out is dx
  Rows grad_out;        // backward only
  const float* weight;  // [width], the offset already added
  float* rstd;          // [rows]: written forward, read backward
  float* grad_weight;   // backward: [num_chunks, width] partial sums, or null
  int64_t num_rows, width, chunk_rows;
  double eps;
  bool round_before_weight;
};

enum class Activation : int32_t { Silu = 0, GeluTanh = 1 };

struct Gated {
  Dtype dtype;
  Activation activation;
  Rows gate, up, out;                 // forward
  Rows grad_out, grad_gate, grad_up;  // backward
  int64_t width;
};

struct Rope {
  Dtype dtype;
  Rows x, out;
  const float* cos;  // row t at cos + t * table_stride
  const float* sin;
  int64_t table_stride;
  int64_t second_half;  // offset of the second half's angles: width / 2, or 0 for half tables
  int64_t width;
  bool backward;
};

struct HeadRow {
  Dtype dtype;
  void* logits;  // [rows, vocabulary]; replaced by the capped logits, then by the gradient
  int64_t row_stride, vocabulary;
  const int64_t* targets;
  float inv_temperature;
  float softcap;  // logits z are replaced by softcap tanh(z / softcap); 0: no cap
  float *max, *log_sum, *logprob, *entropy;  // [rows]; max in units of logits / temperature
  const float *grad_logprob, *grad_entropy;  // [rows]
};

struct Attention {
  Dtype dtype;
  const void *q, *k, *v;
  int64_t q_t, q_h, k_t, k_h, v_t, v_h;              // strides of token and head
  int64_t num_tokens, heads, kv_heads, dim, window;  // window 0: no window
  float scale;
  bool aligned;        // blocks of keys end at multiples of KEY_BLOCK, also within a window
  float softcap;       // scores s are replaced by softcap tanh(s / softcap); 0: no cap
  const float* sinks;  // [H], score of each head that has no key and no value; null: no sinks
  void* out;           // [T, H, D] contiguous
  float* lse;          // [T, H], sinks included
  const void* grad_out;
  int64_t g_t, g_h;
  void* grad_q;           // [T, H, D] contiguous
  void *grad_k, *grad_v;  // [T, K, D] of dtype, or [parts, T, K, D] of float when parts > 1
  int64_t parts;
};

// A range [begin, end) of the packed tokens.
struct Span {
  int64_t begin, end;
  int64_t len() const { return end - begin; }
};

// One unit of work: the query heads [group_begin, group_end) that share kv_head, for a segment (the trunk)
// and segments that continue it (the branches). Queries of a branch attend to the full trunk and causally to
// their branch.
struct AttentionItem {
  Span trunk;
  bool trunk_queries;  // false: another item computes the queries of the trunk
  const Span* branches;
  int64_t num_branches;
  int64_t longest;  // number of tokens of the trunk and its longest branch together
  int64_t kv_head, group_begin, group_end, part;
};

struct PagedAttention {
  Dtype dtype;
  const void* q;
  int64_t q_b, q_h;
  const void *k_cache, *v_cache;  // [num_blocks, block_size, K, D] contiguous
  int64_t block_size, heads, kv_heads, dim, window;
  float scale;
  bool as_packed;                      // adds in the order of `Attention`; only for bfloat16 with AVX-512
  float softcap;                       // see `Attention`
  const float* sinks;                  // see `Attention`
  const int32_t* const* block_tables;  // one row per query
  const int32_t* context_lens;
  void* out;  // [B, H, D] contiguous
};

// y = x W^T + bias with W packed as [panels][in][PANEL]; zeros pad the last panel.
struct LinearPanels {
  static constexpr int64_t PANEL = 32;
  const float *x, *panels, *bias;  // bias null: no bias
  int64_t num_rows, in, out, x_row;
  float* y;  // [num_rows, out] contiguous
};

// A quantized weight [out, in] in row-major order. With 4 bits a byte holds two codes, the first in its upper
// half, and `block` values share a scale. With 8 bits all values of a row share a scale.
struct Quantized {
  enum class Format : int32_t { FourBit = 0, Int8 = 1 };
  Format format;
  int32_t rounds[2];  // dtypes to which values are rounded in turn: 0 none, 1 bfloat16, 2 float16
  const uint8_t* codes;
  const float* table;  // [16], value of each 4-bit code
  int64_t block;
  const float* scales;         // one per block or row; null if scales are themselves 8-bit codes
  const uint8_t* scale_codes;  // 8-bit code of each block's scale
  const float* scale_table;    // [256], value of each 8-bit code
  const float* scale_scales;   // one per SCALE_BLOCK scales
  float scale_offset;
  static constexpr int64_t SCALE_BLOCK = 256;
};

// y = x W^T + bias with a quantized W, which the product unpacks as it reads it.
struct QuantizedLinear {
  Quantized weight;
  const float* x;     // [num_rows, x_row], in the order of `spread_rows`
  const float* bias;  // null: no bias
  int64_t num_rows, in, out, x_row;
  float* y;  // [num_rows, out] contiguous
};

// `QuantizedLinear` in bfloat16. Inputs, outputs and bias are contiguous.
struct QuantizedBf16Linear {
  Quantized weight;
  const uint16_t* x;  // [num_rows, in]
  const float* bias;  // null: no bias
  int64_t num_rows, in, out;
  uint16_t* inputs;  // x in the kernel's order, `quantized_inputs` values
  uint16_t* y;       // [num_rows, out]
};

// y = x W^T + bias in bfloat16. `in` is a multiple of LOT; x, W, bias and y are contiguous. The product, or
// the caller beforehand, packs W as [panels][lots][2][LOT / 2][16][2]; zeros pad the last panel.
struct Bf16Linear {
  static constexpr int64_t PANEL = 32, LOT = 32;
  const uint16_t* x;       // [num_rows, in]
  const uint16_t* weight;  // [out, in]; null if `panels` is given
  const uint16_t* panels;  // packed weight; null if `weight` is given
  const float* bias;       // null: no bias
  int64_t num_rows, in, out;
  int64_t item_rows, item_panels;  // size of a work item; rows are a multiple of 32, or all rows
  uint16_t* y;                     // [num_rows, out]
};

// Products in bfloat16 by dedicated instructions: AMX tiles, or the pairwise dot products of AVX512_BF16.
struct Bf16Kernels {
  // Packs the panels [begin, end) of `weight` to `to`.
  void (*pack_panels)(const Bf16Linear&, int64_t begin, int64_t end, uint16_t* to);
  int64_t (*items)(const Bf16Linear&);
  // Number of floats of scratch memory per thread, aligned to 64 bytes.
  int64_t (*scratch)(const Bf16Linear&);
  void (*product)(const Bf16Linear&, float* scratch, int64_t begin, int64_t end);
  // Whether these kernels support a quantized weight with `in` inputs.
  bool (*fits_quantized)(const Quantized&, int64_t in);
  int64_t (*quantized_inputs)(const QuantizedBf16Linear&);
  void (*pack_quantized_inputs)(const QuantizedBf16Linear&);
  int64_t (*quantized_items)(const QuantizedBf16Linear&);
  // Number of floats of scratch memory per thread, aligned to 64 bytes.
  int64_t (*quantized_scratch)(const QuantizedBf16Linear&);
  void (*quantized_product)(const QuantizedBf16Linear&, float* scratch, int64_t begin, int64_t end);
};

struct AdamW {
  float *param, *m, *v;
  const float* grad;
  double lr, beta1, beta2, eps, weight_decay, grad_scale, bias1, bias2_sqrt;
};

struct Kernels {
  const char* isa;
  void (*rms_norm_forward)(const RmsNorm&, int64_t begin, int64_t end);
  void (*rms_norm_backward)(const RmsNorm&, int64_t chunk_begin, int64_t chunk_end);
  void (*gated_forward)(const Gated&, int64_t begin, int64_t end);
  void (*gated_backward)(const Gated&, int64_t begin, int64_t end);
  void (*rope)(const Rope&, int64_t begin, int64_t end);
  void (*head_statistics)(const HeadRow&, int64_t begin, int64_t end);
  void (*head_gradient)(const HeadRow&, int64_t begin, int64_t end);
  int64_t (*attention_scratch)(const Attention&, int64_t longest, bool backward);
  void (*attention_forward)(const Attention&, const AttentionItem&, float* scratch);
  void (*attention_backward)(const Attention&, const AttentionItem&, float* scratch);
  int64_t (*paged_scratch)(const PagedAttention&, int64_t context_len);
  void (*paged_attention)(const PagedAttention&, int64_t query, int64_t kv_head, float* scratch);
  int64_t (*linear_items)(const LinearPanels&);
  void (*linear_panels)(const LinearPanels&, int64_t begin, int64_t end);
  // Number of floats of a row of `in` inputs after `spread_rows`.
  int64_t (*spread_len)(int64_t in);
  // Reorders the rows [begin, end) of x [.., in] to the order in which the product reads them.
  void (*spread_rows)(const Quantized&, const void* x, Dtype, int64_t in, float* out, int64_t begin, int64_t end);
  int64_t (*quantized_items)(const QuantizedLinear&);
  // Number of floats of scratch memory for the product.
  int64_t (*quantized_scratch)(const QuantizedLinear&);
  void (*quantized_linear)(const QuantizedLinear&, float* scratch, int64_t begin, int64_t end);
  // Dequantizes the blocks or rows [begin, end) of a weight with `num` values.
  void (*dequantize)(const Quantized&, int64_t num, void* out, Dtype, int64_t begin, int64_t end);
  void (*adamw)(const AdamW&, int64_t begin, int64_t end);
  double (*sum_of_squares)(const void*, Dtype, int64_t begin, int64_t end);
  const Bf16Kernels* bf16;  // null: the CPU has no such instructions
};

// Returns the best table for this CPU, or the one chosen by select_kernels. An operation must call this once
// and keep the result, because tests on other threads select tables.
const Kernels& kernels();
// Returns the bfloat16 kernels of the table in use, or else the best of this CPU: weights may have been
// packed for them. Null if the CPU has none.
const Bf16Kernels* bf16_kernels();
// Whether rollout and training add values of this dtype in the same order, so that a token's values are
// bitwise equal in both. True for bfloat16 on CPUs with instructions for it.
bool has_one_order(Dtype dtype);
// Selects the kernels for `isa` ("baseline", "avx2", "avx512", "avx512_bf16", "amx"; null: the best). Returns
// false if the CPU or the build does not support it.
bool select_kernels(const char* isa);

}  // namespace rlt
