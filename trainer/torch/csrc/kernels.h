// The boundary between tensor code and arithmetic: plain pointers and sizes, one table of kernels per
// instruction set. No torch header is included here or in kernels/: these files are compiled several times
// with different instruction sets, and an inline function of a shared header compiled for a newer CPU must
// never win at link time.
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
  void* logits;  // [rows, vocabulary], overwritten by what the cap makes of them, then by the gradient
  int64_t row_stride, vocabulary;
  const int64_t* targets;
  float inv_temperature;
  float softcap;  // logits z count as softcap tanh(z / softcap); 0: as they are
  float *max, *log_sum, *logprob, *entropy;  // [rows]; max in units of logits / temperature
  const float *grad_logprob, *grad_entropy;  // [rows]
};

struct Attention {
  Dtype dtype;
  const void *q, *k, *v;
  int64_t q_t, q_h, k_t, k_h, v_t, v_h;              // strides of token and head
  int64_t num_tokens, heads, kv_heads, dim, window;  // window 0: none
  float scale;
  bool aligned;        // stretches of keys end at multiples of their length, also in a window
  float softcap;       // scores s count as softcap tanh(s / softcap); 0: as they are
  const float* sinks;  // [H], a score of each head that has no key and no value; null: none
  void* out;           // [T, H, D] contiguous
  float* lse;          // [T, H], sinks included
  const void* grad_out;
  int64_t g_t, g_h;
  void* grad_q;           // [T, H, D] contiguous
  void *grad_k, *grad_v;  // [T, K, D] of dtype, or [parts, T, K, D] of float when parts > 1
  int64_t parts;
};

// Tokens [begin, end) of the stream.
struct Span {
  int64_t begin, end;
  int64_t len() const { return end - begin; }
};

// One unit of work: the query heads [group_begin, group_end) that share kv_head, over a segment (the trunk)
// and segments that continue it (the branches), whose queries see the whole trunk and then themselves.
struct AttentionItem {
  Span trunk;
  bool trunk_queries;  // false: another item answers the trunk's own queries
  const Span* branches;
  int64_t num_branches;
  int64_t longest;  // tokens of the trunk with its longest branch
  int64_t kv_head, group_begin, group_end, part;
};

struct PagedAttention {
  Dtype dtype;
  const void* q;
  int64_t q_b, q_h;
  const void *k_cache, *v_cache;  // [num_blocks, block_size, K, D] contiguous
  int64_t block_size, heads, kv_heads, dim, window;
  float scale;
  bool as_packed;                      // sums in the order of Attention; bfloat16 and AVX-512 alone
  float softcap;                       // as of Attention
  const float* sinks;                  // as of Attention
  const int32_t* const* block_tables;  // one row per query
  const int32_t* context_lens;
  void* out;  // [B, H, D] contiguous
};

// y = x W^T + bias, W packed as [panels][in][PANEL] with zeros behind the last output.
struct LinearPanels {
  static constexpr int64_t PANEL = 32;
  const float *x, *panels, *bias;  // bias null: none
  int64_t num_rows, in, out, x_row;
  float* y;  // [num_rows, out] contiguous
};

// A weight [out, in] of 4 or 8 bits, row by row. Of 4 bits two codes are a byte, the first in its upper half,
// and `block` numbers share a scale; of 8 bits those of a row do.
struct Quantized {
  enum class Format : int32_t { FourBit = 0, Int8 = 1 };
  Format format;
  int32_t rounds[2];  // what a number is rounded to, one after the other: 0 nothing, 1 bfloat16, 2 float16
  const uint8_t* codes;
  const float* table;  // [16], the numbers of 4 bits
  int64_t block;
  const float* scales;         // one a block or row; null where they are 8 bits themselves:
  const uint8_t* scale_codes;  // one a block
  const float* scale_table;    // [256]
  const float* scale_scales;   // one for each SCALE_BLOCK of them
  float scale_offset;
  static constexpr int64_t SCALE_BLOCK = 256;
};

// y = x W^T + bias with a quantized W, which is unpacked as it is read.
struct QuantizedLinear {
  Quantized weight;
  const float* x;     // [num_rows, x_row], spread
  const float* bias;  // null: none
  int64_t num_rows, in, out, x_row;
  float* y;  // [num_rows, out] contiguous
};

// The same in bfloat16. Inputs, outputs and bias are contiguous.
struct QuantizedBf16Linear {
  Quantized weight;
  const uint16_t* x;  // [num_rows, in]
  const float* bias;  // null: none
  int64_t num_rows, in, out;
  uint16_t* inputs;  // x as the kernel reads it, `quantized_inputs` numbers
  uint16_t* y;       // [num_rows, out]
};

// y = x W^T + bias in bfloat16. `in` is a multiple of LOT; x, W, bias and y are contiguous. W is
// packed as [panels][lots][2][LOT / 2][16][2], with zeros behind the last output, before or by the product itself.
struct Bf16Linear {
  static constexpr int64_t PANEL = 32, LOT = 32;
  const uint16_t* x;       // [num_rows, in]
  const uint16_t* weight;  // [out, in]; null where `panels` has it
  const uint16_t* panels;  // null where `weight` has it
  const float* bias;       // null: none
  int64_t num_rows, in, out;
  int64_t item_rows, item_panels;  // of an item; rows are a multiple of 32 unless they are all
  uint16_t* y;                     // [num_rows, out]
};

// Products in bfloat16 by the instructions for them: AMX's tiles, or the products of pairs of AVX512_BF16.
struct Bf16Kernels {
  // Panels [begin, end) of `weight`, from `to` on.
  void (*pack_panels)(const Bf16Linear&, int64_t begin, int64_t end, uint16_t* to);
  int64_t (*items)(const Bf16Linear&);
  // Numbers of scratch that a thread needs, at a multiple of 64 bytes.
  int64_t (*scratch)(const Bf16Linear&);
  void (*product)(const Bf16Linear&, float* scratch, int64_t begin, int64_t end);
  // Whether these kernels multiply with such a weight of `in` inputs.
  bool (*fits_quantized)(const Quantized&, int64_t in);
  int64_t (*quantized_inputs)(const QuantizedBf16Linear&);
  void (*pack_quantized_inputs)(const QuantizedBf16Linear&);
  int64_t (*quantized_items)(const QuantizedBf16Linear&);
  // As `scratch`.
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
  // Numbers that a row of `in` inputs takes, spread.
  int64_t (*spread_len)(int64_t in);
  // Rows [begin, end) of x [.., in] into the order in which the product reads them.
  void (*spread_rows)(const Quantized&, const void* x, Dtype, int64_t in, float* out, int64_t begin, int64_t end);
  int64_t (*quantized_items)(const QuantizedLinear&);
  // Numbers of scratch that the product needs.
  int64_t (*quantized_scratch)(const QuantizedLinear&);
  void (*quantized_linear)(const QuantizedLinear&, float* scratch, int64_t begin, int64_t end);
  // The numbers of blocks or rows [begin, end) of a weight of `num` numbers.
  void (*dequantize)(const Quantized&, int64_t num, void* out, Dtype, int64_t begin, int64_t end);
  void (*adamw)(const AdamW&, int64_t begin, int64_t end);
  double (*sum_of_squares)(const void*, Dtype, int64_t begin, int64_t end);
  const Bf16Kernels* bf16;  // null: this CPU has none
};

// The best table this CPU runs, or the one chosen by select_kernels.
// An operation asks once: tests of other threads select tables.
const Kernels& kernels();
// Those of the table in use, or else the best of this CPU, for weights that were packed for them; null: it has none.
const Bf16Kernels* bf16_kernels();
// Whether rollout and training add up numbers of this dtype in the same order, so that a token has the same bits
// in both: in bfloat16 on CPUs with instructions for it.
bool has_one_order(Dtype dtype);
// Returns false when the CPU or the build lacks `isa` ("baseline", "avx2", "avx512", "avx512_bf16", "amx"; null: the best).
bool select_kernels(const char* isa);

}  // namespace rlt
