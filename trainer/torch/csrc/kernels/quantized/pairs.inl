// y = x W^T + bias in bfloat16 with a 4-bit or 8-bit W, by AVX512_BF16. 32 values of an output are multiplied
// by as many inputs of a row, two in each of 16 lanes. The sums of the lanes are added at the end.

constexpr int OUTPUTS = 4;  // unpacked together
// Largest number of rows that are multiplied by values as these are unpacked. For more rows the unpacked
// values are kept in the first-level cache.
constexpr int ROWS_UNPACKED_FOR = 4;
constexpr int ROWS_TOGETHER = 6;
// Number of rows that are multiplied by the same unpacked outputs. Their inputs fit the second-level cache.
constexpr int64_t QUANTIZED_ROW_BLOCK = 256;

static int64_t row_len(const QuantizedBf16Linear& a) { return num_steps(a.in) * STEP; }
static int64_t pair_inputs(const QuantizedBf16Linear& a) { return a.num_rows * row_len(a); }
// Reorders each row of x like the unpacked values, and pads it with zeros.
static void pack_pair_inputs(const QuantizedBf16Linear& a) {
  const bool is_four_bit = a.weight.format == Quantized::Format::FourBit;
  uint16_t* out = a.inputs;
  for (int64_t row = 0; row < a.num_rows; ++row)
    for (int64_t k = 0; k < a.in; k += STEP, out += STEP) {
      uint32_t pairs[STEP / 2];
      pairs_of_step(a.x + row * a.in + k, a.in - k, is_four_bit, pairs);
      for (int64_t c = 0; c < 4; ++c)
        for (int64_t p = 0; p < 16; ++p)
          __builtin_memcpy(out + 32 * c + 2 * p, &pairs[is_four_bit ? 4 * p + PLACE_OF_CODE[c] : 16 * c + p], 4);
    }
}

static inline __m512bh numbers_at(const uint16_t* p) { return (__m512bh)_mm512_loadu_si512(p); }

template <int ROWS>
static inline void store_outputs(const QuantizedBf16Linear& a, const vf sums[ROWS][OUTPUTS], int64_t row, int64_t first) {
  const int64_t width = lesser(OUTPUTS, a.out - first);
  for (int m = 0; m < ROWS; ++m) {
    alignas(16) float totals[OUTPUTS];
    sums_of(sums[m], totals);
    if (a.bias)
      for (int64_t n = 0; n < width; ++n) totals[n] += a.bias[first + n];
    const __m128i numbers = (__m128i)_mm_cvtneps_pbh(_mm_load_ps(totals));
    _mm_mask_storeu_epi16(a.y + (row + m) * a.out + first, __mmask8((1u << width) - 1u), numbers);
  }
}

// Multiplies ROWS rows by OUTPUTS outputs, which are unpacked for these rows only.
template <int ROWS>
static inline void multiply_unpacking(const QuantizedBf16Linear& a, const float* scales, int64_t row, int64_t first) {
  vf sums[ROWS][OUTPUTS] = {};
  for (int64_t s = 0; s < num_steps(a.in); ++s) {
    const uint16_t* x = a.inputs + row * row_len(a) + s * STEP;
    unpack<OUTPUTS>(a, {scales, first, s}, [&](int64_t n, int64_t lot, __m512i numbers) __attribute__((always_inline)) {
      for (int m = 0; m < ROWS; ++m)
        sums[m][n] = (vf)_mm512_dpbf16_ps((__m512)sums[m][n], numbers_at(x + m * row_len(a) + 32 * lot), (__m512bh)numbers);
    });
  }
  store_outputs<ROWS>(a, sums, row, first);
}

// Multiplies ROWS rows by outputs that are already unpacked, [OUTPUTS][row_len].
template <int ROWS>
static inline void multiply_unpacked(const QuantizedBf16Linear& a, const uint16_t* unpacked, int64_t row, int64_t first) {
  vf sums[ROWS][OUTPUTS] = {};
  const int64_t len = row_len(a);
  const uint16_t* x = a.inputs + row * len;
  for (int64_t k = 0; k < len; k += 32) {
    __m512bh numbers[OUTPUTS];
    for (int n = 0; n < OUTPUTS; ++n) numbers[n] = numbers_at(unpacked + n * len + k);
#pragma GCC unroll 6
    for (int m = 0; m < ROWS; ++m) {
      const __m512bh inputs = numbers_at(x + m * len + k);
      for (int n = 0; n < OUTPUTS; ++n) sums[m][n] = (vf)_mm512_dpbf16_ps((__m512)sums[m][n], inputs, numbers[n]);
    }
  }
  store_outputs<ROWS>(a, sums, row, first);
}

template <int ROWS = ROWS_UNPACKED_FOR>
static inline void rows_unpacking(int64_t rows, const QuantizedBf16Linear& a, const float* scales, int64_t row, int64_t first) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS)
      multiply_unpacking<ROWS>(a, scales, row, first);
    else
      rows_unpacking<ROWS - 1>(rows, a, scales, row, first);
  }
}
template <int ROWS = ROWS_TOGETHER>
static inline void rows_unpacked(int64_t rows, const QuantizedBf16Linear& a, const uint16_t* unpacked, int64_t row, int64_t first) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS)
      multiply_unpacked<ROWS>(a, unpacked, row, first);
    else
      rows_unpacked<ROWS - 1>(rows, a, unpacked, row, first);
  }
}

static int64_t num_output_groups(const QuantizedBf16Linear& a) { return (a.out + OUTPUTS - 1) / OUTPUTS; }
static int64_t pair_items(const QuantizedBf16Linear& a) {
  return num_output_groups(a) * ((a.num_rows + QUANTIZED_ROW_BLOCK - 1) / QUANTIZED_ROW_BLOCK);
}
// Scratch memory: first the unpacked outputs, then their scales.
static int64_t pair_scratch(const QuantizedBf16Linear& a) {
  return OUTPUTS * row_len(a) / 2 + (a.weight.scales ? 0 : OUTPUTS * (a.in / a.weight.block));
}

// Runs the items [begin, end), which are numbered by groups of outputs first, then by blocks of rows.
// `scratch` is aligned to 64 bytes.
static void quantized_pairs(const QuantizedBf16Linear& a, float* scratch, int64_t begin, int64_t end) {
  const bool is_four_bit = a.weight.format == Quantized::Format::FourBit;
  const int64_t blocks_a_row = is_four_bit ? a.in / a.weight.block : 0, len = row_len(a);
  uint16_t* unpacked = reinterpret_cast<uint16_t*>(scratch);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = i % num_output_groups(a) * OUTPUTS, start = i / num_output_groups(a) * QUANTIZED_ROW_BLOCK;
    const int64_t last = lesser(a.num_rows, start + QUANTIZED_ROW_BLOCK), outputs = lesser(OUTPUTS, a.out - first);
    const float* scales = is_four_bit ? scales_of(a.weight, first * blocks_a_row, outputs * blocks_a_row,
                                                  scratch + OUTPUTS * len / 2)
                                      : nullptr;
    if (last - start <= ROWS_UNPACKED_FOR) {
      rows_unpacking(last - start, a, scales, start, first);
      continue;
    }
    for (int64_t s = 0; s < num_steps(a.in); ++s)
      unpack<OUTPUTS>(a, {scales, first, s}, [&](int64_t n, int64_t lot, __m512i numbers) __attribute__((always_inline)) {
        _mm512_storeu_si512(unpacked + n * len + s * STEP + 32 * lot, numbers);
      });
    for (int64_t row = start; row < last; row += ROWS_TOGETHER)
      rows_unpacked(lesser(ROWS_TOGETHER, last - row), a, unpacked, row, first);
  }
}
