// 4-bit and 8-bit weights: dequantized, or multiplied by few rows and unpacked in registers. Formats,
// roundings and the order of roundings equal those of kernels/quantized/linear.inl bitwise. Up to three
// weights with the same inputs write adjacent outputs, as in a fused projection. Dequantizing is bound by one
// write of the values, a product of few rows by one read of the codes.
//
// A block of a product computes a few outputs of one weight, and its warps divide the inputs. The order of a
// sum does not depend on the number of rows.
#include "include/dynamic_map.cuh"

namespace rlt {

// A weight [outputs, in], or some of its rows.
struct QuantizedPart {
  const uint8_t* codes;  // 4 bits: two codes per byte, the first in its upper half; 8 bits: int8
  const float* scales;   // one per block, or per row with 8 bits; null if scales are nested
  const uint8_t* scale_codes;
  const float* scale_scales;  // one per QUANTIZED_SCALE_BLOCK scales
  const float* scale_offset;
  const int32_t* rows;  // stored row of each output, or -1 for zeros; null: all rows as stored
  int64_t outputs;
};

constexpr int QUANTIZED_PARTS = 3, QUANTIZED_CHUNK = 8, QUANTIZED_THREADS = 128, QUANTIZED_OUTPUTS = 4;
constexpr int64_t QUANTIZED_SCALE_BLOCK = 256;
// W = q * scale / 127, multiplied by the inverse as in bitsandbytes.
constexpr float ONE_127TH = 7.874015718698502e-3f;

struct QuantizedArguments {
  QuantizedPart parts[QUANTIZED_PARTS];
  const void* x;     // [num_rows, in]
  const void* bias;  // [outputs of all parts], or null
  void* out;         // rows of out_row values; dequantized: [outputs of all parts, in]
  int64_t num_rows, in, out_row, block;
  int32_t is_int8;
  int32_t rounds;    // dtype to which values are rounded before T: 0 none, 1 bf16, 2 f16
  int32_t is_whole;  // whether QUANTIZED_CHUNK values of a row share a scale and an aligned load
  float table[16];
};

// A part, an item within it, and the number of outputs of all parts before it.
struct QuantizedPlace {
  int part;
  int64_t item, before;
};

// Finds the part that contains an item of `outputs` outputs.
__device__ inline QuantizedPlace quantized_place(const QuantizedArguments& a, int64_t item, int outputs) {
  QuantizedPlace place = {0, item, 0};
  RLT_UNROLL
  for (int part = 0; part + 1 < QUANTIZED_PARTS; ++part) {
    const int64_t items = (a.parts[part].outputs + outputs - 1) / outputs;
    if (place.part != part || place.item < items) continue;
    place.part = part + 1, place.item -= items, place.before += a.parts[part].outputs;
  }
  return place;
}

__device__ inline float quantized_scale(const QuantizedPart& w, int64_t block) {
  if (w.scales != nullptr) return w.scales[block];
  // The product is rounded before the addition.
  return __fmul_rn(DYNAMIC_MAP[w.scale_codes[block]], w.scale_scales[block / QUANTIZED_SCALE_BLOCK]) +
         *w.scale_offset;
}

template <class T>
__device__ inline float quantized_number(const QuantizedArguments& a, float unrounded) {
  if (a.rounds == 1) unrounded = rounded<bf16>(unrounded);
  if (a.rounds == 2) unrounded = rounded<f16>(unrounded);
  return rounded<T>(unrounded);
}

// Returns the value at offset `at` of the weight, in row-major order.
template <class T>
__device__ inline float quantized_at(const QuantizedArguments& a, const QuantizedPart& w, const float* table,
                                     int64_t row, int64_t at) {
  if (a.is_int8) return quantized_number<T>(a, float(int8_t(w.codes[at])) * w.scales[row] * ONE_127TH);
  const uint8_t pair = w.codes[at / 2];
  return quantized_number<T>(a, table[at % 2 == 0 ? pair >> 4 : pair & 15] * quantized_scale(w, at / a.block));
}

// Unpacks a chunk of a row from input k on. Values past the end of the row, or of a row that is not stored,
// are zero.
template <class T>
__device__ inline void quantized_chunk(const QuantizedArguments& a, const QuantizedPart& w, const float* table,
                                       int64_t row, int64_t k, float numbers[QUANTIZED_CHUNK]) {
  const int64_t at = row * a.in + k;
  if (row < 0 || !a.is_whole) {
    RLT_UNROLL
    for (int i = 0; i < QUANTIZED_CHUNK; ++i)
      numbers[i] = row < 0 || k + i >= a.in ? 0.0f : quantized_at<T>(a, w, table, row, at + i);
  } else if (a.is_int8) {
    const int8_t* from = reinterpret_cast<const int8_t*>(w.codes) + at;
    const Vec<int8_t, QUANTIZED_CHUNK> codes = load<int8_t, QUANTIZED_CHUNK>(from);
    const float scale = w.scales[row];
    RLT_UNROLL
    for (int i = 0; i < QUANTIZED_CHUNK; ++i)
      numbers[i] = quantized_number<T>(a, float(codes.at[i]) * scale * ONE_127TH);
  } else {
    const Vec<uint8_t, QUANTIZED_CHUNK / 2> pairs = load<uint8_t, QUANTIZED_CHUNK / 2>(w.codes + at / 2);
    const float scale = quantized_scale(w, at / a.block);
    RLT_UNROLL
    for (int i = 0; i < QUANTIZED_CHUNK; i += 2) {
      numbers[i] = quantized_number<T>(a, table[pairs.at[i / 2] >> 4] * scale);
      numbers[i + 1] = quantized_number<T>(a, table[pairs.at[i / 2] & 15] * scale);
    }
  }
}

// The sixteen values are in sixteen banks of shared memory, so lanes can look up different ones at once.
__device__ inline void load_quantized_table(const QuantizedArguments& a, float* table) {
  if (threadIdx.x < 16) table[threadIdx.x] = a.table[threadIdx.x];
  __syncthreads();
}

// Each block dequantizes values of one row, QUANTIZED_CHUNK per thread.
template <class T>
__device__ inline void dequantize(const QuantizedArguments& a) {
  __shared__ float table[16];
  load_quantized_table(a, table);
  const QuantizedPlace place = quantized_place(a, blockIdx.x, 1);
  const QuantizedPart& w = a.parts[place.part];
  const int64_t k = (int64_t(blockIdx.y) * blockDim.x + threadIdx.x) * QUANTIZED_CHUNK;
  if (k >= a.in) return;
  float numbers[QUANTIZED_CHUNK];
  quantized_chunk<T>(a, w, table, w.rows == nullptr ? place.item : w.rows[place.item], k, numbers);
  T* out = static_cast<T*>(a.out) + int64_t(blockIdx.x) * a.in + k;
  constexpr int N = WIDE<T> < QUANTIZED_CHUNK ? WIDE<T> : QUANTIZED_CHUNK;
  RLT_UNROLL
  for (int first = 0; first < QUANTIZED_CHUNK; first += N) {
    Vec<T, N> part;
    RLT_UNROLL
    for (int i = 0; i < N; ++i) part.at[i] = from_float<T>(numbers[first + i]);
    if (a.is_whole) {
      store<T, N>(out + first, part);
      continue;
    }
    RLT_UNROLL
    for (int i = 0; i < N; ++i)
      if (k + first + i < a.in) out[first + i] = part.at[i];
  }
}

template <class T>
__device__ inline void load_inputs(const QuantizedArguments& a, const T* row, int64_t k, float x[QUANTIZED_CHUNK]) {
  constexpr int N = WIDE<T> < QUANTIZED_CHUNK ? WIDE<T> : QUANTIZED_CHUNK;
  RLT_UNROLL
  for (int first = 0; first < QUANTIZED_CHUNK; first += N) {
    if (a.is_whole) {
      const Vec<T, N> part = load<T, N>(row + k + first);
      RLT_UNROLL
      for (int i = 0; i < N; ++i) x[first + i] = to_float(part.at[i]);
      continue;
    }
    RLT_UNROLL
    for (int i = 0; i < N; ++i) x[first + i] = k + first + i < a.in ? to_float(row[k + first + i]) : 0.0f;
  }
}

// Adds the products of ROWS rows, from `row` on, and QUANTIZED_OUTPUTS outputs over this thread's inputs. The
// last row or output is repeated for those past the end.
template <class T, int ROWS>
__device__ inline void quantized_sums(const QuantizedArguments& a, const QuantizedPlace& place, const float* table,
                                      int64_t row, float sums[ROWS][QUANTIZED_OUTPUTS]) {
  const QuantizedPart& w = a.parts[place.part];
  int64_t stored[QUANTIZED_OUTPUTS];
  RLT_UNROLL
  for (int n = 0; n < QUANTIZED_OUTPUTS; ++n) {
    const int64_t output = place.item * QUANTIZED_OUTPUTS + n, last = w.outputs - 1;
    stored[n] = output < last ? output : last;
    if (w.rows != nullptr) stored[n] = w.rows[stored[n]];
  }
  for (int64_t k = int64_t(threadIdx.x) * QUANTIZED_CHUNK; k < a.in; k += QUANTIZED_THREADS * QUANTIZED_CHUNK) {
    float numbers[QUANTIZED_OUTPUTS][QUANTIZED_CHUNK];
    RLT_UNROLL
    for (int n = 0; n < QUANTIZED_OUTPUTS; ++n) quantized_chunk<T>(a, w, table, stored[n], k, numbers[n]);
    RLT_UNROLL
    for (int m = 0; m < ROWS; ++m) {
      float x[QUANTIZED_CHUNK];
      const int64_t own = row + m < a.num_rows ? row + m : a.num_rows - 1;
      load_inputs(a, static_cast<const T*>(a.x) + own * a.in, k, x);
      RLT_UNROLL
      for (int n = 0; n < QUANTIZED_OUTPUTS; ++n)
        RLT_UNROLL
        for (int i = 0; i < QUANTIZED_CHUNK; ++i) sums[m][n] += x[i] * numbers[n][i];
    }
  }
}

template <class T, int ROWS>
__device__ inline void quantized_linear(const QuantizedArguments& a) {
  constexpr int WARPS = QUANTIZED_THREADS / 32;
  __shared__ float table[16], of_warp[WARPS][ROWS][QUANTIZED_OUTPUTS];
  load_quantized_table(a, table);
  const QuantizedPlace place = quantized_place(a, blockIdx.x, QUANTIZED_OUTPUTS);
  const int64_t row = int64_t(blockIdx.y) * ROWS;
  float sums[ROWS][QUANTIZED_OUTPUTS] = {};
  quantized_sums<T, ROWS>(a, place, table, row, sums);
  RLT_UNROLL
  for (int m = 0; m < ROWS; ++m)
    RLT_UNROLL
    for (int n = 0; n < QUANTIZED_OUTPUTS; ++n) {
      const float sum = warp_reduce(sums[m][n], Sum());
      if (lane_idx() == 0) of_warp[warp_idx()][m][n] = sum;
    }
  __syncthreads();
  const int m = int(threadIdx.x) / QUANTIZED_OUTPUTS, n = int(threadIdx.x) % QUANTIZED_OUTPUTS;
  const int64_t output = place.item * QUANTIZED_OUTPUTS + n;
  if (m >= ROWS || row + m >= a.num_rows || output >= a.parts[place.part].outputs) return;
  float sum = 0.0f;
  RLT_UNROLL
  for (int warp = 0; warp < WARPS; ++warp) sum += of_warp[warp][m][n];
  const int64_t column = place.before + output;
  if (a.bias != nullptr) sum += to_float(static_cast<const T*>(a.bias)[column]);
  static_cast<T*>(a.out)[(row + m) * a.out_row + column] = from_float<T>(sum);
}

template <class T>
__device__ inline void quantized_linear_of_1(const QuantizedArguments& a) {
  quantized_linear<T, 1>(a);
}
template <class T>
__device__ inline void quantized_linear_of_2(const QuantizedArguments& a) {
  quantized_linear<T, 2>(a);
}
template <class T>
__device__ inline void quantized_linear_of_4(const QuantizedArguments& a) {
  quantized_linear<T, 4>(a);
}
template <class T>
__device__ inline void quantized_linear_of_8(const QuantizedArguments& a) {
  quantized_linear<T, 8>(a);
}

RLT_KERNELS(dequantize, QuantizedArguments, dequantize, 128)
RLT_KERNELS(quantized_linear_r1, QuantizedArguments, quantized_linear_of_1, 128, 4)
RLT_KERNELS(quantized_linear_r2, QuantizedArguments, quantized_linear_of_2, 128, 4)
RLT_KERNELS(quantized_linear_r4, QuantizedArguments, quantized_linear_of_4, 128, 4)
RLT_KERNELS(quantized_linear_r8, QuantizedArguments, quantized_linear_of_8, 128, 3)

}  // namespace rlt
