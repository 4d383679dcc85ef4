// A register-tiled product for small blocks in cache: C[M, N] (+)= A[M, K] B[K, N]. A may have any two
// strides, so A^T needs no copy. Rows of B and C are contiguous, and N is a multiple of the vector width.

#if defined(__AVX512F__)
constexpr int TILE_M = 6, TILE_N = 4;
#else
constexpr int TILE_M = 4, TILE_N = 2;
#endif

template <int MR, int NR, bool ACCUMULATE>
static inline void gemm_tile(int64_t depth, const float* a, int64_t a_row, int64_t a_col, const float* b,
                             int64_t b_row, float* c, int64_t c_row) {
  vf acc[MR][NR];
  for (int m = 0; m < MR; ++m)
    for (int n = 0; n < NR; ++n) acc[m][n] = ACCUMULATE ? load(c + m * c_row + n * W) : vf{};
  for (int64_t k = 0; k < depth; ++k) {
    vf bk[NR];
    for (int n = 0; n < NR; ++n) bk[n] = load(b + k * b_row + n * W);
    for (int m = 0; m < MR; ++m) {
      const vf am = splat(a[m * a_row + k * a_col]);
      for (int n = 0; n < NR; ++n) acc[m][n] += am * bk[n];
    }
  }
  for (int m = 0; m < MR; ++m)
    for (int n = 0; n < NR; ++n) store(c + m * c_row + n * W, acc[m][n]);
}

template <int NR, bool ACCUMULATE, int MR = TILE_M>
static inline void gemm_rows(int64_t rows, int64_t depth, const float* a, int64_t a_row, int64_t a_col,
                             const float* b, int64_t b_row, float* c, int64_t c_row) {
  if constexpr (MR > 0) {
    if (rows == MR)
      gemm_tile<MR, NR, ACCUMULATE>(depth, a, a_row, a_col, b, b_row, c, c_row);
    else
      gemm_rows<NR, ACCUMULATE, MR - 1>(rows, depth, a, a_row, a_col, b, b_row, c, c_row);
  }
}

template <bool ACCUMULATE, int NR = TILE_N>
static inline void gemm_columns(int64_t vectors_n, int64_t M, int64_t K, const float* a, int64_t a_row,
                                int64_t a_col, const float* b, int64_t b_row, float* c, int64_t c_row) {
  if constexpr (NR > 0) {
    if (vectors_n == NR) {
      for (int64_t m = 0; m < M; m += TILE_M)
        gemm_rows<NR, ACCUMULATE>(lesser(TILE_M, M - m), K, a + m * a_row, a_row, a_col, b, b_row,
                                  c + m * c_row, c_row);
    } else {
      gemm_columns<ACCUMULATE, NR - 1>(vectors_n, M, K, a, a_row, a_col, b, b_row, c, c_row);
    }
  }
}

template <bool ACCUMULATE>
static void gemm(int64_t M, int64_t N, int64_t K, const float* a, int64_t a_row, int64_t a_col,
                 const float* b, int64_t b_row, float* c, int64_t c_row) {
  for (int64_t n = 0; n < N; n += TILE_N * W)
    gemm_columns<ACCUMULATE>(lesser(TILE_N, (N - n) / W), M, K, a, a_row, a_col, b + n, b_row, c + n, c_row);
}
