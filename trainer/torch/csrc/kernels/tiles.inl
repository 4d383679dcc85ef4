// AMX's registers: eight tiles of up to 16 rows of 64 bytes.

constexpr int64_t TILE = 16;  // rows of a tile; also float32 values, or pairs of bfloat16 values, in one row

// Tile configuration of palette 1, in the processor's byte layout.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
// Inline assembly, because the compiler's own macros do not declare that they read memory.
#define RLT_TILE_LOAD(tile, base, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(base), "r"(int64_t(stride)) : "memory")
#define RLT_TILE_STORE(tile, base, stride) \
  __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(base), "r"(int64_t(stride)) : "memory")
#define RLT_TILE_ZERO(tile) __asm__ volatile("tilezero %tmm" #tile)
#define RLT_TILE_PRODUCT(c, a, b) __asm__ volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #c)
