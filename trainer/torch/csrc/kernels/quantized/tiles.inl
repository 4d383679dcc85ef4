// y = x W^T + bias in bfloat16 with a 4-bit or 8-bit W, by AMX. W is unpacked into tiles that stay in the
// first-level cache.
//
//   A tile   16 outputs by 32 inputs, unpacked; four of them are a step of 128 inputs
//   B tile   32 inputs, in pairs, by up to 16 rows of x
//   C tile   16 outputs by as many rows, float32

constexpr int64_t STEP_NUMBERS = 2 * TILE * STEP;  // of two unpacked tiles of outputs
// Largest number of rows of x that share one unpacking.
constexpr int64_t TILE_ROW_BLOCK = 256;

// Configures the tiles, which also zeroes them. tmm0 to 3 hold C by [rows of x][outputs], tmm4 and 5 hold A,
// tmm6 and 7 hold B.
static inline void configure_tiles(int64_t first_rows, int64_t second_rows) {
  TileConfig config;
  const int64_t rows_of[8] = {first_rows, first_rows, second_rows, second_rows, TILE, TILE, first_rows, second_rows};
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = uint16_t(4 * rows_of[i]);
    config.rows[i] = uint8_t(rows_of[i] > 0 ? TILE : 0);
  }
  __asm__ volatile("ldtilecfg %0" ::"m"(config));
}
static inline int64_t num_row_groups(int64_t rows) { return (rows + TILE - 1) / TILE; }

// Unpacks a step of 2 * TILE outputs to tiles [lot of 32 inputs][output][32].
static inline void unpack_tiles(const QuantizedBf16Linear& a, const Step& of, uint16_t* tiles) {
  unpack<2 * TILE>(a, of, [&](int64_t n, int64_t lot, __m512i numbers) {
    _mm512_store_si512(tiles + (lot * 2 * TILE + n) * 32, numbers);
  });
}

// Number of values of x packed as B tiles: for each group of up to TILE rows and every 32 inputs, [16
// pairs][rows][2].
static int64_t tile_inputs(const QuantizedBf16Linear& a) { return num_steps(a.in) * STEP * a.num_rows; }
static void pack_tile_inputs(const QuantizedBf16Linear& a) {
  const bool is_four_bit = a.weight.format == Quantized::Format::FourBit;
  for (int64_t row = 0; row < a.num_rows; ++row) {
    const int64_t start = row / TILE * TILE, rows = lesser(TILE, a.num_rows - start);
    uint16_t* out = a.inputs + start * num_steps(a.in) * STEP + 2 * (row - start);
    for (int64_t k = 0; k < a.in; k += STEP) {
      uint32_t pairs[STEP / 2];
      pairs_of_step(a.x + row * a.in + k, a.in - k, is_four_bit, pairs);
      for (int64_t c = 0; c < 4; ++c)
        for (int64_t p = 0; p < 16; ++p, out += 2 * rows)
          __builtin_memcpy(out, &pairs[is_four_bit ? 4 * p + PLACE_OF_CODE[c] : 16 * c + p], 4);
    }
  }
}

// Multiplies a step of two tiles of outputs by one or two groups of rows.
template <int GROUPS>
static inline void multiply(const uint16_t* tiles, const uint16_t* const x[2], const int64_t rows[2]) {
#pragma GCC unroll 4
  for (int64_t lot = 0; lot < 4; ++lot) {
    RLT_TILE_LOAD(6, x[0] + lot * 32 * rows[0], 4 * rows[0]);
    RLT_TILE_LOAD(4, tiles + lot * 2 * TILE * 32, 64);
    RLT_TILE_PRODUCT(0, 4, 6);
    RLT_TILE_LOAD(5, tiles + (lot * 2 + 1) * TILE * 32, 64);
    RLT_TILE_PRODUCT(1, 5, 6);
    if (GROUPS < 2) continue;
    RLT_TILE_LOAD(7, x[1] + lot * 32 * rows[1], 4 * rows[1]);
    RLT_TILE_PRODUCT(2, 4, 7);
    RLT_TILE_PRODUCT(3, 5, 7);
  }
}

// Stores the sums [TILE][rows] of a tile of outputs and a group of rows to y.
static inline void store_tile(const QuantizedBf16Linear& a, const float* sums, int64_t first, int64_t start, int64_t rows) {
  const int64_t width = lesser(TILE, a.out - first);
  if (width <= 0) return;
  const vf bias = a.bias ? load_at(a.bias + first, 0, width) : vf{};
  const __m512i places = (__m512i)(__builtin_convertvector(iota(), vi) * int32_t(rows));
  for (int64_t m = 0; m < rows; ++m) {
    const vf sum = (vf)_mm512_i32gather_ps(places, sums + m, 4) + bias;
    store_at(reinterpret_cast<bf16*>(a.y) + (start + m) * a.out + first, sum, 0, width);
  }
}

// Number of unpacked steps in a thread's scratch memory, which also holds sums and the scales of 2 * TILE
// outputs.
static int64_t unpacked_steps(const QuantizedBf16Linear& a) { return a.num_rows <= 2 * TILE ? 2 : num_steps(a.in); }
static int64_t tile_scratch(const QuantizedBf16Linear& a) {
  const int64_t scales = a.weight.scales ? 0 : 2 * TILE * (a.in / a.weight.block);
  return unpacked_steps(a) * STEP_NUMBERS / 2 + TILE * TILE + scales;
}

// Multiplies two tiles of outputs by one or two groups of rows, from `start` on. Unpacks each step one step
// ahead, unless all are already unpacked.
template <int GROUPS>
static inline void tile_product(const QuantizedBf16Linear& a, const float* scales, int64_t first, int64_t start,
                                bool is_unpacked, float* scratch) {
  const int64_t steps = num_steps(a.in), slots = unpacked_steps(a);
  const int64_t rows[2] = {lesser(TILE, a.num_rows - start),
                           GROUPS == 2 ? lesser(TILE, a.num_rows - start - TILE) : 0};
  const uint16_t* x[2] = {a.inputs + start * steps * STEP, a.inputs + (start + TILE) * steps * STEP};
  float* sums = scratch;
  uint16_t* tiles = reinterpret_cast<uint16_t*>(scratch + TILE * TILE);
  configure_tiles(rows[0], rows[1]);
  if (!is_unpacked) unpack_tiles(a, {scales, first, 0}, tiles);
  for (int64_t s = 0; s < steps; ++s) {
    if (!is_unpacked && s + 1 < steps)
      unpack_tiles(a, {scales, first, s + 1}, tiles + (s + 1) % slots * STEP_NUMBERS);
    multiply<GROUPS>(tiles + s % slots * STEP_NUMBERS, x, rows);
    x[0] += STEP * rows[0], x[1] += STEP * rows[1];
  }
  RLT_TILE_STORE(0, sums, 4 * rows[0]);
  store_tile(a, sums, first, start, rows[0]);
  RLT_TILE_STORE(1, sums, 4 * rows[0]);
  store_tile(a, sums, first + TILE, start, rows[0]);
  if (GROUPS < 2) return;
  RLT_TILE_STORE(2, sums, 4 * rows[1]);
  store_tile(a, sums, first, start + TILE, rows[1]);
  RLT_TILE_STORE(3, sums, 4 * rows[1]);
  store_tile(a, sums, first + TILE, start + TILE, rows[1]);
}

static int64_t num_tile_outputs(const QuantizedBf16Linear& a) { return (a.out + 2 * TILE - 1) / (2 * TILE); }
static int64_t tile_items(const QuantizedBf16Linear& a) {
  return num_tile_outputs(a) * ((a.num_rows + TILE_ROW_BLOCK - 1) / TILE_ROW_BLOCK);
}

// Runs the items [begin, end), which are numbered by pairs of output tiles first, then by blocks of rows.
// `scratch` is aligned to 64 bytes.
static void quantized_tiles(const QuantizedBf16Linear& a, float* scratch, int64_t begin, int64_t end) {
  const bool is_four_bit = a.weight.format == Quantized::Format::FourBit;
  const int64_t blocks_a_row = is_four_bit ? a.in / a.weight.block : 0;
  float* own_scales = scratch + unpacked_steps(a) * STEP_NUMBERS / 2 + TILE * TILE;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t first = i % num_tile_outputs(a) * 2 * TILE, block = i / num_tile_outputs(a) * TILE_ROW_BLOCK;
    const int64_t outputs = lesser(2 * TILE, a.out - first);
    const float* scales =
        is_four_bit ? scales_of(a.weight, first * blocks_a_row, outputs * blocks_a_row, own_scales) : nullptr;
    const int64_t last = lesser(a.num_rows, block + TILE_ROW_BLOCK);
    for (int64_t start = block; start < last; start += 2 * TILE) {
      if (last - start > TILE)
        tile_product<2>(a, scales, first, start, start > block, scratch);
      else
        tile_product<1>(a, scales, first, start, start > block, scratch);
    }
  }
  __asm__ volatile("tilerelease");
}
