// Common code of bfloat16 products with a weight in panels, for AMX and AVX512_BF16. A panel is PANEL outputs
// in two halves; each half consists of lots of LOT inputs in pairs.
//
// Each output adds its inputs in float32 from the first to the last, whatever the number of rows or threads,
// and whether or not W was packed before. So the result of a row is bitwise equal in decoding with few rows
// and in training with thousands. Values below 2^-126 in magnitude count as zero, as in every product by
// these instructions.

constexpr int64_t LOT_NUMBERS = Bf16Linear::PANEL * Bf16Linear::LOT;
// Number of values of a lot that belong to one half of the outputs.
constexpr int64_t HALF_NUMBERS = LOT_NUMBERS / 2;
// Distance in bytes by which a panel is prefetched when few rows read it.
constexpr int64_t PANEL_AHEAD = 8192;

// Prefetches the lot that is PANEL_AHEAD bytes ahead; past the end of the weight the hint has no effect.
// LOCALITY 3 means all caches, 2 all but the first level.
template <int LOCALITY>
static inline void fetch_lot_ahead(const uint16_t* lot) {
  const char* ahead = reinterpret_cast<const char*>(lot) + PANEL_AHEAD;
#pragma GCC unroll 32
  for (int64_t line = 0; line < 2 * LOT_NUMBERS; line += 64) __builtin_prefetch(ahead + line, 0, LOCALITY);
}

// Rounds two vectors to 32 bfloat16 values, the first vector in the lower lanes.
static inline __m512i narrow_pair(vf first, vf second) {
  return (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}

// Packs the panels [begin, end) of a weight to `to`. Outputs after the last are zero.
static void pack_panels(const Bf16Linear& a, int64_t begin, int64_t end, uint16_t* to) {
  for (int64_t panel = begin; panel < end; ++panel)
    for (int64_t k = 0; k < a.in; k += Bf16Linear::LOT)
      for (int64_t half = 0; half < 2; ++half, to += HALF_NUMBERS) {
        const int64_t first = panel * Bf16Linear::PANEL + half * W;
        const auto row = [&](int64_t n) { return reinterpret_cast<const float*>(a.weight + (first + n) * a.in + k); };
        vf pairs[W];
        for (int64_t n = 0; n < W; ++n) pairs[n] = first + n < a.out ? load(row(n)) : vf{};
        transpose(pairs);
        for (int64_t i = 0; i < W; ++i) store(reinterpret_cast<float*>(to) + i * W, pairs[i]);
      }
}

static int64_t num_panels(const Bf16Linear& a) { return (a.out + Bf16Linear::PANEL - 1) / Bf16Linear::PANEL; }
static int64_t num_row_blocks(const Bf16Linear& a) { return (a.num_rows + a.item_rows - 1) / a.item_rows; }
static int64_t dense_items(const Bf16Linear& a) {
  return (num_panels(a) + a.item_panels - 1) / a.item_panels * num_row_blocks(a);
}
// Number of floats of scratch memory for the panels of an item, if the product packs them.
static int64_t panel_scratch(const Bf16Linear& a) {
  return a.panels ? 0 : a.item_panels * Bf16Linear::PANEL * a.in / 2;
}

// Runs the items [begin, end), which are numbered by blocks of rows first, then by groups of panels.
// `multiply(row, last_row, first, last, panels)` multiplies some rows by some panels, which are contiguous
// from `panels` on. `own` has memory for the panels of an item, aligned to 64 bytes.
template <class Multiply>
static inline void product_of_items(const Bf16Linear& a, uint16_t* own, int64_t begin, int64_t end, Multiply multiply) {
  for (int64_t i = begin, packed = -1; i < end; ++i) {
    const int64_t group = i / num_row_blocks(a), row = i % num_row_blocks(a) * a.item_rows;
    const int64_t first = group * a.item_panels, last = lesser(num_panels(a), first + a.item_panels);
    if (a.panels == nullptr && group != packed) pack_panels(a, first, last, own);
    packed = group;
    multiply(row, lesser(a.num_rows, row + a.item_rows), first, last,
             a.panels ? a.panels + first * Bf16Linear::PANEL * a.in : own);
  }
}
