// Products of tiles in shared memory. Each warp computes [32, 32] of a block's result, summed in fp32. bf16
// and f16 use tensor cores (mma.sync, available from sm_80 on), f32 uses FMA, because TF32 would round its
// inputs to 11 bits.
#pragma once
#include "device.cuh"

namespace rlt {

// Size of a tile along the rows or columns of a product, and along the summed dimension.
constexpr int TILE = 64, TILE_DEPTH = 32;

// A tile [TILE, TILE_DEPTH] in shared memory, indexed by (i, k). With `SUM_INNER` values that are summed are
// adjacent. Rows are padded by 16 bytes, so that the lanes of a warp access different banks. Aligned for
// copy_16_async, which writes 16 bytes at a time.
template <class T, bool SUM_INNER>
struct alignas(16) Tile {
  static constexpr int OUTER = SUM_INNER ? TILE : TILE_DEPTH, INNER = SUM_INNER ? TILE_DEPTH : TILE;
  static constexpr int STRIDE = INNER + WIDE<T>;
  T at[OUTER * STRIDE];

  __device__ T number(int i, int k) const { return at[SUM_INNER ? i * STRIDE + k : k * STRIDE + i]; }
  // Two 16-bit values that are adjacent along the summed dimension.
  __device__ uint32_t pair(int i, int k) const {
    if (SUM_INNER) return *reinterpret_cast<const uint32_t*>(at + i * STRIDE + k);
    return uint32_t(at[k * STRIDE + i].bits) | uint32_t(at[(k + 1) * STRIDE + i].bits) << 16;
  }
};

// Computes D [16, 8] += A [16, 16] B [16, 8] by a warp. With g = lane / 4 and t = lane % 4 a lane holds
//   a: (g, 2t..2t+1), (g + 8, same), (g, 2t + 8..), (g + 8, same)    b: (2t..2t+1, g), (2t + 8.., g)
//   d: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
#if defined(__CUDA_ARCH__)
__device__ inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bf16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], f16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
// Unpacks the two 16-bit values of a register.
template <class T>
__device__ inline void halves(uint64_t registers, int idx, float* numbers) {
  const uint32_t pair = uint32_t(registers >> 32 * idx);
  numbers[0] = to_float(T{uint16_t(pair)}), numbers[1] = to_float(T{uint16_t(pair >> 16)});
}

template <class T>
__device__ inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], T) {
  // Gathers the rows and columns for this lane's sums from the lanes that hold them, two registers at a time.
  const int g = lane_idx() / 4, t = lane_idx() % 4;
  float rows[2][16], cols[2][16];
  for (int part = 0; part < 2; ++part) {
    const uint64_t* shown = fibers::show(a[2 * part] | uint64_t(a[2 * part + 1]) << 32);
    for (int i = 0; i < 4; ++i)
      for (int low = 0; low < 2; ++low) halves<T>(shown[4 * g + i], low, &rows[low][8 * part + 2 * i]);
  }
  const uint64_t* shown = fibers::show(b[0] | uint64_t(b[1]) << 32);
  for (int i = 0; i < 4; ++i)
    for (int part = 0; part < 2; ++part)
      for (int odd = 0; odd < 2; ++odd)
        halves<T>(shown[4 * (2 * t + odd) + i], part, &cols[odd][8 * part + 2 * i]);
  for (int k = 0; k < 16; ++k)
    for (int place = 0; place < 4; ++place) d[place] += rows[place / 2][k] * cols[place % 2][k];
}
#endif

// A warp's sums, [32, 32]: [r][c][p] is (row 16 r + 8 (p / 2) + g, column 8 c + 2 t + p % 2).
struct WarpSums {
  float at[2][4][4];
};

// Adds the products of one step: rows of `a` from `first_row` on, columns of `b` from `first_col` on.
template <class T, bool A_INNER, bool B_INNER>
__device__ inline void add_products(WarpSums& sums, const Tile<T, A_INNER>& a, const Tile<T, B_INNER>& b,
                                    int first_row, int first_col) {
  const int g = lane_idx() / 4, t = lane_idx() % 4;
  if constexpr (sizeof(T) == 2) {
    RLT_UNROLL
    for (int k = 0; k < TILE_DEPTH; k += 16) {
      uint32_t left[2][4], right[4][2];
      RLT_UNROLL
      for (int r = 0; r < 2; ++r)
        RLT_UNROLL
        for (int part = 0; part < 4; ++part)
          left[r][part] = a.pair(first_row + 16 * r + g + 8 * (part % 2), k + 2 * t + 8 * (part / 2));
      RLT_UNROLL
      for (int c = 0; c < 4; ++c)
        RLT_UNROLL
        for (int part = 0; part < 2; ++part) right[c][part] = b.pair(first_col + 8 * c + g, k + 2 * t + 8 * part);
      RLT_UNROLL
      for (int r = 0; r < 2; ++r)
        RLT_UNROLL
        for (int c = 0; c < 4; ++c) multiply_add(sums.at[r][c], left[r], right[c], T{});
    }
  } else {
    for (int k = 0; k < TILE_DEPTH; ++k) {
      float left[2][2], right[4][2];
      RLT_UNROLL
      for (int r = 0; r < 2; ++r)
        RLT_UNROLL
        for (int low = 0; low < 2; ++low) left[r][low] = a.number(first_row + 16 * r + 8 * low + g, k);
      RLT_UNROLL
      for (int c = 0; c < 4; ++c)
        RLT_UNROLL
        for (int odd = 0; odd < 2; ++odd) right[c][odd] = b.number(first_col + 8 * c + 2 * t + odd, k);
      RLT_UNROLL
      for (int r = 0; r < 2; ++r)
        RLT_UNROLL
        for (int c = 0; c < 4; ++c)
          RLT_UNROLL
          for (int p = 0; p < 4; ++p) sums.at[r][c][p] += left[r][p / 2] * right[c][p % 2];
    }
  }
}

}  // namespace rlt
