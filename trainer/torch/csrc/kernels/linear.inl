// y = x W^T + bias with W in panels of PANEL adjacent outputs per input, so that one pass over a panel serves
// every row of x. Decoding multiplies few rows, so its time is that of reading W once.
//
// Each output is one chain of multiply-adds over the inputs in order, whatever the number of rows or threads.
// So the result of a row is bitwise equal in any batch.

#if defined(__AVX512F__)
constexpr int LINEAR_ROWS = 12;  // 24 of 32 registers are accumulators
#else
constexpr int LINEAR_ROWS = 6;  // 12 of 16 registers are accumulators
#endif
constexpr int LINEAR_VECTORS = 2;
// Number of rows that are multiplied by a panel together. Their inputs fit the second-level cache.
constexpr int64_t LINEAR_BLOCK = 8 * LINEAR_ROWS;
static_assert(LinearPanels::PANEL % (LINEAR_VECTORS * W) == 0, "a panel is a whole number of tiles");

// Multiplies ROWS rows by LINEAR_VECTORS vectors of outputs, of which only the first `width` elements exist.
template <int ROWS>
static inline void linear_tile(const LinearPanels& a, const float* x, const float* panel, const float* bias,
                               float* y, int64_t width) {
  vf acc[ROWS][LINEAR_VECTORS] = {};
  for (int64_t k = 0; k < a.in; ++k) {
    const float* b = panel + k * LinearPanels::PANEL;
    // Past the end of the weight the hint has no effect.
    __builtin_prefetch(b + 32 * LinearPanels::PANEL);
    __builtin_prefetch(b + 32 * LinearPanels::PANEL + 16);
    vf bk[LINEAR_VECTORS];
    for (int n = 0; n < LINEAR_VECTORS; ++n) bk[n] = load(b + n * W);
    for (int m = 0; m < ROWS; ++m) {
      const vf xm = splat(x[m * a.x_row + k]);
      for (int n = 0; n < LINEAR_VECTORS; ++n) acc[m][n] += xm * bk[n];
    }
  }
  for (int n = 0; n < LINEAR_VECTORS; ++n) {
    if (n * W >= width) break;
    const vf offset = bias ? load_at(bias, n * W, width) : vf{};
    for (int m = 0; m < ROWS; ++m) store_at(y + m * a.out, acc[m][n] + offset, n * W, width);
  }
}

template <int ROWS = LINEAR_ROWS>
static inline void linear_rows(int64_t rows, const LinearPanels& a, const float* x, const float* panel,
                               const float* bias, float* y, int64_t width) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS)
      linear_tile<ROWS>(a, x, panel, bias, y, width);
    else
      linear_rows<ROWS - 1>(rows, a, x, panel, bias, y, width);
  }
}

// Runs the items [begin, end), which are numbered by panels first, then by blocks of rows.
static void linear_panels(const LinearPanels& a, int64_t begin, int64_t end) {
  const int64_t num_panels = (a.out + LinearPanels::PANEL - 1) / LinearPanels::PANEL;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = i / num_panels * LINEAR_BLOCK, last = lesser(a.num_rows, first + LINEAR_BLOCK);
    const int64_t panel_idx = i % num_panels;
    for (int64_t n = 0; n < LinearPanels::PANEL; n += LINEAR_VECTORS * W) {
      const int64_t out = panel_idx * LinearPanels::PANEL + n,
                    width = lesser(LINEAR_VECTORS * W, a.out - out);
      if (width <= 0) break;
      const float* panel = a.panels + panel_idx * LinearPanels::PANEL * a.in + n;
      for (int64_t m = first; m < last; m += LINEAR_ROWS)
        linear_rows(lesser(LINEAR_ROWS, last - m), a, a.x + m * a.x_row, panel,
                    a.bias ? a.bias + out : nullptr, a.y + m * a.out + out, width);
    }
  }
}

static int64_t linear_items(const LinearPanels& a) {
  return (a.out + LinearPanels::PANEL - 1) / LinearPanels::PANEL *
         ((a.num_rows + LINEAR_BLOCK - 1) / LINEAR_BLOCK);
}
