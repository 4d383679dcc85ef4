// y = x W^T + bias in bfloat16 by AVX512_BF16. Its instruction adds the products of a pair of inputs to each
// of 16 sums, so each output adds two inputs at a time, the second one first.
//
// Up to 16 rows of x are packed as [pairs of inputs][rows], and each pair is broadcast. A vector of a panel
// holds one pair of inputs of 16 outputs.

constexpr int64_t PAIR_ROWS = 16;
// Largest number of rows for which both halves of a panel are multiplied at once. Fewer rows have too few
// independent sums otherwise to keep the instruction busy.
constexpr int64_t FEW_ROWS = 8;

// Number of row slots in the packed order for `rows` rows. Fewer slots use less of the first-level cache.
constexpr int64_t row_stride(int64_t rows) { return rows <= 1 ? 1 : rows <= 4 ? 4 : rows <= FEW_ROWS ? FEW_ROWS : PAIR_ROWS; }

// Packs the rows [row, row + rows) by pairs, at most PAIR_ROWS of them.
static inline void pack_rows(const Bf16Linear& a, int64_t row, int64_t rows, uint16_t* to) {
  const int64_t stride = row_stride(rows);
  const __mmask16 lanes = __mmask16((1u << stride) - 1u);
  for (int64_t k = 0; k < a.in; k += Bf16Linear::LOT) {
    vf pairs[PAIR_ROWS];
    for (int64_t m = 0; m < PAIR_ROWS; ++m)
      pairs[m] = m < rows ? load(reinterpret_cast<const float*>(a.x + (row + m) * a.in + k)) : vf{};
    transpose(pairs);
    for (int64_t i = 0; i < PAIR_ROWS; ++i, to += 2 * stride) _mm512_mask_storeu_ps(to, lanes, (__m512)pairs[i]);
  }
}

// Stores the sums of a vector of outputs to y, rounded once. Lanes after the last output are not written.
static inline void store_sums(const Bf16Linear& a, vf sums, int64_t row, int64_t first) {
  const int64_t width = lesser(W, a.out - first);
  if (width <= 0) return;
  if (a.bias) sums += load_at(a.bias + first, 0, width);
  const __mmask16 outputs = __mmask16((1u << width) - 1u);
  _mm256_mask_storeu_epi16(a.y + row * a.out + first, outputs, (__m256i)_mm512_cvtneps_pbh((__m512)sums));
}

// Multiplies ROWS rows, from `row` on, by HALVES halves of a panel, whose outputs begin at `first`.
template <int ROWS, int HALVES, bool FETCHES_AHEAD>
static inline void multiply_halves(const Bf16Linear& a, const uint16_t* x, const uint16_t* panel, int64_t row,
                                   int64_t first) {
  __m512 sums[ROWS][HALVES] = {};
  for (int64_t k = 0; k < a.in; k += Bf16Linear::LOT, panel += LOT_NUMBERS) {
    // Prefetches the panel to the second-level cache only. In the first level it would evict x, which is read
    // again for every panel: 1.4 times the time on an EPYC.
    if (FETCHES_AHEAD) fetch_lot_ahead<2>(panel);
#pragma GCC unroll 4
    for (int64_t pair = 0; pair < Bf16Linear::LOT / 2; ++pair, x += 2 * row_stride(ROWS)) {
      __m512bh weights[HALVES];
      for (int h = 0; h < HALVES; ++h)
        weights[h] = (__m512bh)_mm512_load_si512(panel + h * HALF_NUMBERS + pair * 2 * W);
#pragma GCC unroll 16
      for (int m = 0; m < ROWS; ++m) {
        int32_t inputs;
        __builtin_memcpy(&inputs, x + 2 * m, 4);
        for (int h = 0; h < HALVES; ++h)
          sums[m][h] = _mm512_dpbf16_ps(sums[m][h], (__m512bh)_mm512_set1_epi32(inputs), weights[h]);
      }
    }
  }
  for (int m = 0; m < ROWS; ++m)
    for (int h = 0; h < HALVES; ++h) store_sums(a, (vf)sums[m][h], row + m, first + h * W);
}

// Multiplies `rows` rows by one panel.
template <bool FETCHES_AHEAD, int ROWS = PAIR_ROWS>
static inline void multiply_panel(int64_t rows, const Bf16Linear& a, const uint16_t* x, const uint16_t* panel,
                                  int64_t row, int64_t first) {
  if constexpr (ROWS > 0) {
    if (rows != ROWS) return multiply_panel<FETCHES_AHEAD, ROWS - 1>(rows, a, x, panel, row, first);
    if constexpr (ROWS <= FEW_ROWS) return multiply_halves<ROWS, 2, FETCHES_AHEAD>(a, x, panel, row, first);
    multiply_halves<ROWS, 1, FETCHES_AHEAD>(a, x, panel, row, first);
    multiply_halves<ROWS, 1, false>(a, x, panel + HALF_NUMBERS, row, first + W);
  }
}

// Scratch memory: first the packed rows, then the panels.
static int64_t row_scratch(const Bf16Linear& a) { return a.in / 2 * PAIR_ROWS; }
static int64_t dense_scratch(const Bf16Linear& a) { return row_scratch(a) + panel_scratch(a); }
static void dense_product(const Bf16Linear& a, float* scratch, int64_t begin, int64_t end) {
  uint16_t* pairs = reinterpret_cast<uint16_t*>(scratch);
  int64_t packed_row = -1;
  const auto block = [&](int64_t row, int64_t last_row, int64_t first, int64_t last, const uint16_t* panels) {
    // Only the first rows prefetch: later rows find the panels of the item in the second-level cache, as all
    // rows do if the panels were just packed.
    bool fetches_ahead = a.panels != nullptr;
    for (; row < last_row; row += PAIR_ROWS, fetches_ahead = false) {
      const int64_t rows = lesser(PAIR_ROWS, last_row - row);
      // A single row is already in the packed order.
      const uint16_t* x = rows == 1 ? a.x + row * a.in : pairs;
      if (rows > 1 && row != packed_row) pack_rows(a, row, rows, pairs), packed_row = row;
      for (int64_t panel = first; panel < last; ++panel) {
        const uint16_t* own = panels + (panel - first) * Bf16Linear::PANEL * a.in;
        if (fetches_ahead)
          multiply_panel<true>(rows, a, x, own, row, panel * Bf16Linear::PANEL);
        else
          multiply_panel<false>(rows, a, x, own, row, panel * Bf16Linear::PANEL);
      }
    }
  };
  product_of_items(a, reinterpret_cast<uint16_t*>(scratch + row_scratch(a)), begin, end, block);
}
