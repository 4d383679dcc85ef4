// y = x W^T + bias in bfloat16 by AMX. Each output adds 32 inputs at a time.
//
//   A tile   up to 16 rows of x by 32 inputs, as they are in memory
//   B tile   32 inputs, in pairs, by 16 outputs; two of them side by side are a lot of a panel
//   C tile   as many rows by 16 outputs, float32

// Registers: tmm0 to 3 hold C, tmm4 and 5 hold A, tmm6 and 7 hold B.
static inline void configure_dense(int64_t first_rows, int64_t second_rows) {
  const int64_t rows_of[8] = {first_rows, first_rows, second_rows, second_rows, first_rows, second_rows, TILE, TILE};
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = uint16_t(rows_of[i] > 0 ? 64 : 0);
    config.rows[i] = uint8_t(rows_of[i]);
  }
  __asm__ volatile("ldtilecfg %0" ::"m"(config));
}

// Multiplies one or two groups of rows by a panel. Writes the sums as [group][half of the panel][row][16].
template <int GROUPS, bool FETCHES_AHEAD>
static inline void multiply_panel(const Bf16Linear& a, const uint16_t* x, const uint16_t* panel, float* sums) {
  const int64_t row_bytes = 2 * a.in;
  const uint16_t* second = x + TILE * a.in;
  RLT_TILE_ZERO(0);
  RLT_TILE_ZERO(1);
  if (GROUPS == 2) {
    RLT_TILE_ZERO(2);
    RLT_TILE_ZERO(3);
  }
  for (int64_t k = 0; k < a.in; k += Bf16Linear::LOT, panel += LOT_NUMBERS) {
    RLT_TILE_LOAD(6, panel, 64);
    RLT_TILE_LOAD(4, x + k, row_bytes);
    RLT_TILE_PRODUCT(0, 4, 6);
    RLT_TILE_LOAD(7, panel + HALF_NUMBERS, 64);
    RLT_TILE_PRODUCT(1, 4, 7);
    if (FETCHES_AHEAD) fetch_lot_ahead<3>(panel);
    if (GROUPS < 2) continue;
    RLT_TILE_LOAD(5, second + k, row_bytes);
    RLT_TILE_PRODUCT(2, 5, 6);
    RLT_TILE_PRODUCT(3, 5, 7);
  }
  RLT_TILE_STORE(0, sums, 64);
  RLT_TILE_STORE(1, sums + TILE * TILE, 64);
  if (GROUPS < 2) return;
  RLT_TILE_STORE(2, sums + 2 * TILE * TILE, 64);
  RLT_TILE_STORE(3, sums + 3 * TILE * TILE, 64);
}

// Stores the sums of a group of rows, from `row` on, and a panel, whose outputs begin at `first`, to y,
// rounded once.
static inline void store_panel(const Bf16Linear& a, const float* sums, int64_t row, int64_t rows, int64_t first) {
  const int64_t width = lesser(Bf16Linear::PANEL, a.out - first);
  const __mmask32 outputs = __mmask32((uint64_t(1) << width) - 1u);
  const auto bias_of = [&](int64_t at) {
    return a.bias && at < width ? load_at(a.bias + first, at, width) : vf{};
  };
  const vf low = bias_of(0), high = bias_of(W);
  for (int64_t m = 0; m < rows; ++m) {
    const __m512i numbers = narrow_pair(load(sums + m * TILE) + low, load(sums + (TILE + m) * TILE) + high);
    _mm512_mask_storeu_epi16(a.y + (row + m) * a.out + first, outputs, numbers);
  }
}

// Multiplies the rows [row, last) by the panels [begin, end), which are contiguous from `panels` on.
static inline void dense_block(const Bf16Linear& a, int64_t row, int64_t last, int64_t begin, int64_t end,
                               const uint16_t* panels, float* sums) {
  for (; row < last; row += 2 * TILE) {
    const int64_t rows[2] = {lesser(TILE, last - row), greater(0, lesser(TILE, last - row - TILE))};
    const uint16_t* x = a.x + row * a.in;
    configure_dense(rows[0], rows[1]);
    for (int64_t panel = begin; panel < end; ++panel) {
      const uint16_t* own = panels + (panel - begin) * Bf16Linear::PANEL * a.in;
      if (rows[1] > 0)
        multiply_panel<2, false>(a, x, own, sums);
      else if (a.num_rows <= TILE)
        multiply_panel<1, true>(a, x, own, sums);
      else
        multiply_panel<1, false>(a, x, own, sums);
      for (int64_t group = 0; group < 2; ++group)
        store_panel(a, sums + group * 2 * TILE * TILE, row + group * TILE, rows[group], panel * Bf16Linear::PANEL);
    }
  }
}

// Scratch memory: first the sums, then the panels.
static int64_t dense_scratch(const Bf16Linear& a) { return 4 * TILE * TILE + panel_scratch(a); }
static void dense_product(const Bf16Linear& a, float* scratch, int64_t begin, int64_t end) {
  uint16_t* own = reinterpret_cast<uint16_t*>(scratch + 4 * TILE * TILE);
  product_of_items(a, own, begin, end, [&](int64_t row, int64_t last_row, int64_t first, int64_t last, const uint16_t* panels) {
    dense_block(a, row, last_row, first, last, panels, scratch);
  });
  __asm__ volatile("tilerelease");
}
