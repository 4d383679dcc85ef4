// Common code of bfloat16 products with a 4-bit or 8-bit W, for AMX and AVX512_BF16. W is unpacked in steps
// of STEP inputs, with each value rounded once. x is reordered accordingly, once per product.
//
// Each output adds its inputs in one order, whatever the number of rows or threads. So the result of a row is
// bitwise equal in any batch. Values below 2^-126 in magnitude count as zero, as in every product by these
// instructions.
//
// With 4 bits each 16-bit lane of a step holds four codes. Lot c of 32 inputs has its codes at bit 4c of
// every lane. One lookup finds the values of 32 codes in the tables of two blocks.

constexpr int64_t STEP = 128;  // inputs of four lots
// Offset of the input whose code is at bit 4c of a lane. The first of two codes is in the upper half of a
// byte.
constexpr int64_t PLACE_OF_CODE[4] = {1, 0, 3, 2};

static inline int64_t num_steps(int64_t in) { return (in + STEP - 1) / STEP; }

static bool bf16_fits(const Quantized& q, int64_t in) {
  return q.format == Quantized::Format::Int8 || (q.block % (STEP / 2) == 0 && in % q.block == 0);
}

// Returns the scales of `num` consecutive blocks; dequantizes nested scales to `scratch`.
static const float* scales_of(const Quantized& q, int64_t first, int64_t num, float* scratch) {
  if (q.scales) return q.scales + first;
  for (int64_t i = 0; i < num;) {
    const int64_t block = first + i, of_same = Quantized::SCALE_BLOCK - block % Quantized::SCALE_BLOCK;
    const int64_t width = lesser(W, lesser(num - i, of_same));
    const __mmask16 lanes = __mmask16((1u << width) - 1u);
    const __m512i codes = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(lanes, q.scale_codes + block));
    vf product = (vf)_mm512_i32gather_ps(codes, q.scale_table, 4);
    product *= splat(q.scale_scales[block / Quantized::SCALE_BLOCK]);
    round_here(product);
    _mm512_mask_storeu_ps(scratch + i, lanes, (__m512)(product + splat(q.scale_offset)));
    i += width;
  }
  return scratch;
}

// A step of OUTPUTS outputs, from `first` on. The last output is repeated for outputs after it.
struct Step {
  const float* scales;  // with 4 bits: scales from those of output `first` on
  int64_t first, idx;
};

// Unpacks a step of 4-bit codes. Calls `put(output, lot, numbers)` with the 32 values of each lot of each
// output.
template <int OUTPUTS, bool HALF_FIRST, class Put>
__attribute__((always_inline)) static inline void unpack_four_bits(const QuantizedBf16Linear& a, const Step& of, Put put) {
  const Quantized& q = a.weight;
  const uint32_t block = uint32_t(q.block), k = uint32_t(of.idx * STEP);
  const int64_t blocks_a_row = uint32_t(a.in) / block, row_bytes = a.in / 2;
  // The last step may lack its second half: the values there are zero, and so is x.
  const bool is_whole = k + STEP <= a.in;
  const int64_t lower = k / block, upper = is_whole ? (k + uint32_t(STEP / 2)) / block : lower;
  const vf table = load(q.table), table_of_upper = is_whole ? table : vf{};
  const __m512i low_bits = _mm512_set1_epi16(15);
  const __m512i of_upper = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
  const uint8_t* codes = q.codes + of.first * row_bytes + k / 2;
  const float* scale = of.scales;
#pragma GCC unroll 4
  for (int64_t n = 0; n < OUTPUTS; ++n) {
    vf one = table * splat(scale[lower]), other = table_of_upper * splat(scale[upper]);
    if (HALF_FIRST) one = round_to_half(one), other = round_to_half(other);
    const __m512i numbers = narrow_pair(one, other),
                  words = _mm512_maskz_loadu_epi64(is_whole ? 0xff : 0x0f, codes);
    __builtin_prefetch(codes + OUTPUTS * row_bytes);
    const auto pick = [&](__m512i shifted) {
      const __m512i places = _mm512_ternarylogic_epi64(shifted, low_bits, of_upper, 0xea);  // (shifted & 15) | 16
      return _mm512_permutexvar_epi16(places, numbers);
    };
    put(n, 0, pick(words));
    put(n, 1, pick(_mm512_srli_epi16(words, 4)));
    put(n, 2, pick(_mm512_srli_epi16(words, 8)));
    put(n, 3, pick(_mm512_srli_epi16(words, 12)));
    if (of.first + n + 1 < a.out) codes += row_bytes, scale += blocks_a_row;
  }
}

// Unpacks a step of 8-bit codes, which keep the order of the inputs. Each value is rounded once, to bfloat16.
template <int OUTPUTS, bool IS_WHOLE, class Put>
__attribute__((always_inline)) static inline void unpack_int8(const QuantizedBf16Linear& a, const Step& of, Put put) {
  const int64_t k = of.idx * STEP, present = a.in - k;
#pragma GCC unroll 4
  for (int64_t n = 0; n < OUTPUTS; ++n) {
    const int64_t output = lesser(of.first + n, a.out - 1);
    const int8_t* codes = reinterpret_cast<const int8_t*>(a.weight.codes) + output * a.in + k;
    const vf scale = splat(a.weight.scales[output]);
    const auto numbers = [&](int64_t at) {
      const int64_t num = greater(0, lesser(W, present - at));
      const vf whole = IS_WHOLE ? load_int8(codes + at)
                                : (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
                                      _mm_maskz_loadu_epi8(__mmask16((1u << num) - 1u), codes + at)));
      return whole * scale * splat(ONE_127TH);
    };
    __builtin_prefetch(codes + OUTPUTS * a.in);
    __builtin_prefetch(codes + OUTPUTS * a.in + 64);
#pragma GCC unroll 4
    for (int64_t lot = 0; lot < 4; ++lot) put(n, lot, narrow_pair(numbers(32 * lot), numbers(32 * lot + W)));
  }
}
template <int OUTPUTS, class Put>
__attribute__((always_inline)) static inline void unpack(const QuantizedBf16Linear& a, const Step& of, Put put) {
  if (a.weight.format == Quantized::Format::FourBit)
    a.weight.rounds[0] == 2 ? unpack_four_bits<OUTPUTS, true>(a, of, put) : unpack_four_bits<OUTPUTS, false>(a, of, put);
  else
    (of.idx + 1) * STEP <= a.in ? unpack_int8<OUTPUTS, true>(a, of, put) : unpack_int8<OUTPUTS, false>(a, of, put);
}

// Packs the pairs of a step of x in the order in which `pack_tile_inputs` reads them.
static inline void pairs_of_step(const uint16_t* x, int64_t present, bool is_four_bit, uint32_t pairs[STEP / 2]) {
  // Pairs the values 0 and 4, 1 and 5, and so on, of each eight.
  const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
  for (int64_t k = 0; k < STEP; k += 32) {
    const int64_t num = greater(0, lesser(32, present - k));
    __m512i numbers = _mm512_maskz_loadu_epi16(__mmask32((uint64_t(1) << num) - 1u), x + k);
    if (is_four_bit) numbers = _mm512_shuffle_epi8(numbers, order);
    _mm512_storeu_si512(pairs + k / 2, numbers);
  }
}
