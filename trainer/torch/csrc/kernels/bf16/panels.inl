// What products in bfloat16 with a weight in panels share, whatever multiplies: a panel is PANEL outputs in two
// halves, by lots of LOT inputs in pairs.
//
// Each output adds up its inputs in one order, from the first to the last, in float32, whatever the number of rows
// or threads and whether W was packed before: a row of few that are decoded gets the bits that it gets among
// thousands in training. Numbers below 2^-126 count as zero, as in every product by these instructions.

constexpr int64_t LOT_NUMBERS = Bf16Linear::PANEL * Bf16Linear::LOT;
// Numbers of a lot that belong to one half of the outputs.
constexpr int64_t HALF_NUMBERS = LOT_NUMBERS / 2;
// Bytes that a panel is fetched ahead of where few rows read it.
constexpr int64_t PANEL_AHEAD = 8192;

// The lot that follows in PANEL_AHEAD bytes; past the end of the weight this is a hint without effect. LOCALITY is 3 for
// all caches and 2 for all but the first.
template <int LOCALITY>
static inline void fetch_lot_ahead(const uint16_t* lot) {
  const char* ahead = reinterpret_cast<const char*>(lot) + PANEL_AHEAD;
#pragma GCC unroll 32
  for (int64_t line = 0; line < 2 * LOT_NUMBERS; line += 64) __builtin_prefetch(ahead + line, 0, LOCALITY);
}

// 32 bfloat16s of two vectors, the first in the lower lanes.
static inline __m512i narrow_pair(vf first, vf second) {
  return (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
}

// Panels [begin, end) of a weight, from `to` on. Outputs past the last are zero.
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
// Numbers of scratch for the panels of an item where they are packed here.
static int64_t panel_scratch(const Bf16Linear& a) {
  return a.panels ? 0 : a.item_panels * Bf16Linear::PANEL * a.in / 2;
}

// Items count blocks of rows first, then groups of panels. `multiply(row, last_row, first, last, panels)` has the
// product of some rows by some panels, which lie one after the other from `panels` on; `own` is room for those of an
// item, at a multiple of 64 bytes.
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
