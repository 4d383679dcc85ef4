// Products of rows sorted by expert: each expert's rows times its weight, [experts, out, in], and the two
// products of the backward pass. The ends of the experts' rows are read on the device, so the grid is the
// largest that any routing needs, and blocks without rows end at once. A block computes a tile [64, 64] of
// the result and loads its operands in tiles of 32 summed values to shared memory, two or three tiles ahead.
// One thread computes each sum in a fixed order, so the result of a row is bitwise equal in any batch. With
// few rows per expert the time is bound by one read of the weights of the experts that have rows.
//
// libtorch's _grouped_mm is not used: its kernel supports only bf16 with strides of 16 bytes on sm_90 and
// sm_100. In all other cases it copies the ends to the host and waits for them.
#include "include/mma.cuh"

namespace rlt {

struct GroupedArguments {
  const void *rows;    // [n, in]; with `places` the rows of tokens
  const void *other;   // weights [experts, out, in]; for the gradient of the weight, rows [n, out]
  void* out;
  const int32_t* ends;    // [experts]
  const int32_t* places;  // the (token, choice) pair at each row, or null
  int64_t n, out_width, in_width;
  int32_t experts, per_token;
};

constexpr int GROUPED_THREADS = 128;
template <class T>
constexpr int GROUPED_STAGES = sizeof(T) == 2 ? 3 : 2;

// The rows of a block: at most TILE rows of one expert.
struct RowTile {
  int expert;  // -1: no rows
  int64_t begin, end;
};

// Finds tile number `slot` among the tiles of all experts. Each warp searches by itself.
__device__ inline RowTile row_tile(const GroupedArguments& a, int64_t slot) {
  int64_t before = 0;
  for (int first = 0; first < a.experts; first += 32) {
    const int expert = first + lane_idx();
    const int64_t begin = expert > 0 && expert < a.experts ? a.ends[expert - 1] : 0;
    const int64_t end = expert < a.experts ? a.ends[expert] : begin;
    const int tiles = expert < a.experts ? int((end - begin + TILE - 1) / TILE) : 0;
    int upto = tiles;
    RLT_UNROLL
    for (int distance = 1; distance < 32; distance *= 2) {
      const int left = __shfl_up_sync(ALL_LANES, upto, unsigned(distance));
      if (lane_idx() >= distance) upto += left;
    }
    const int64_t own = slot - before - (upto - tiles);
    const bool is_mine = own >= 0 && own < tiles;
    const int found = warp_reduce(is_mine ? expert : -1, Max());
    if (found >= 0) {
      const int start = warp_reduce(is_mine ? int(begin + own * TILE) : -1, Max());
      const int behind = warp_reduce(is_mine ? int(end) : -1, Max());
      return {found, start, behind < start + TILE ? behind : start + TILE};
    }
    before += __shfl_sync(ALL_LANES, upto, 31);
  }
  return {-1, 0, 0};
}

// Copies a tile. `row_of(outer)` is a row of contiguous values, or null. Values from `inner` to `width` are
// copied; all others are zero.
template <class T, bool SUM_INNER, class RowOf>
__device__ inline void load_tile(Tile<T, SUM_INNER>& tile, int64_t inner, int64_t width, bool wide, RowOf row_of) {
  using Of = Tile<T, SUM_INNER>;
  constexpr int VECTORS = Of::INNER / WIDE<T>;
  static_assert(alignof(Of) >= 16 && Of::STRIDE * sizeof(T) % 16 == 0, "copy_16_async needs 16-byte alignment");
  RLT_UNROLL
  for (int v = int(threadIdx.x); v < Of::OUTER * VECTORS; v += GROUPED_THREADS) {
    const int outer = v / VECTORS, place = v % VECTORS * WIDE<T>;
    const T* row = row_of(outer);
    T* to = tile.at + outer * Of::STRIDE + place;
    const int64_t from = inner + place;
    if (wide && row != nullptr && from < width) {
      copy_16_async(to, row + from);
    } else {
      for (int i = 0; i < WIDE<T>; ++i) to[i] = row != nullptr && from + i < width ? row[from + i] : T{};
    }
  }
}

// Computes the sums over `depth` values. `load(stage, k)` loads the two tiles that begin at k.
template <class T, bool A_INNER, bool B_INNER, class Load>
__device__ inline WarpSums sum_tiles(Tile<T, A_INNER>* a, Tile<T, B_INNER>* b, int64_t depth, Load load) {
  constexpr int STAGES = GROUPED_STAGES<T>;
  WarpSums sums = {};
  const int64_t steps = (depth + TILE_DEPTH - 1) / TILE_DEPTH;
  RLT_UNROLL
  for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (stage < steps) load(stage, int64_t(stage) * TILE_DEPTH);
    commit_copies();
  }
  for (int64_t step = 0; step < steps; ++step) {
    wait_for_copies<STAGES - 2>();
    __syncthreads();  // this step's tiles are visible, and all threads have read the last step's
    const int64_t ahead = step + STAGES - 1;
    if (ahead < steps) load(int(ahead % STAGES), ahead * TILE_DEPTH);
    commit_copies();
    const int stage = int(step % STAGES);
    add_products(sums, a[stage], b[stage], warp_idx() / 2 * 32, warp_idx() % 2 * 32);
  }
  return sums;
}

// Stores the sums of a block, whose first value belongs to `out[row][col]`; values beyond `rows` and `cols`
// are dropped.
template <class T>
__device__ inline void store_sums(const WarpSums& sums, T* out, int64_t row, int64_t rows, int64_t col, int64_t cols) {
  const int g = lane_idx() / 4, t = lane_idx() % 4;
  RLT_UNROLL
  for (int r = 0; r < 2; ++r)
    RLT_UNROLL
    for (int low = 0; low < 2; ++low) {
      const int64_t at = row + warp_idx() / 2 * 32 + 16 * r + 8 * low + g;
      RLT_UNROLL
      for (int c = 0; c < 4; ++c) {
        const int64_t first = col + warp_idx() % 2 * 32 + 8 * c + 2 * t;
        T* to = out + at * cols + first;
        if (at < rows && first < cols) to[0] = from_float<T>(sums.at[r][c][2 * low]);
        if (at < rows && first + 1 < cols) to[1] = from_float<T>(sums.at[r][c][2 * low + 1]);
      }
    }
}

// Computes out [n, out]: rows [n, in] times the weight of their expert.
template <class T>
__device__ inline void grouped_linear(const GroupedArguments& a) {
  __shared__ Tile<T, true> left[GROUPED_STAGES<T>], right[GROUPED_STAGES<T>];
  const RowTile tile = row_tile(a, blockIdx.x);
  if (tile.expert < 0) return;
  const int64_t first_col = int64_t(blockIdx.y) * TILE;
  const T* rows = static_cast<const T*>(a.rows);
  const T* weight = static_cast<const T*>(a.other) + tile.expert * a.out_width * a.in_width;
  const bool wide_rows = is_wide(rows, a.in_width), wide_weight = is_wide(weight, a.in_width);
  const auto row_of = [&](int i) -> const T* {
    const int64_t row = tile.begin + i;
    if (row >= tile.end) return nullptr;
    return rows + (a.places == nullptr ? row : a.places[row] / a.per_token) * a.in_width;
  };
  const auto col_of = [&](int i) -> const T* {
    return first_col + i < a.out_width ? weight + (first_col + i) * a.in_width : nullptr;
  };
  const WarpSums sums = sum_tiles<T>(left, right, a.in_width, [&](int stage, int64_t k) {
    load_tile(left[stage], k, a.in_width, wide_rows, row_of);
    load_tile(right[stage], k, a.in_width, wide_weight, col_of);
  });
  store_sums(sums, static_cast<T*>(a.out), tile.begin, tile.end, first_col, a.out_width);
}

// Computes the gradient of the rows, out [n, in]: rows [n, out] times the transposed weight of their expert.
template <class T>
__device__ inline void grouped_linear_dx(const GroupedArguments& a) {
  __shared__ Tile<T, true> left[GROUPED_STAGES<T>];
  __shared__ Tile<T, false> right[GROUPED_STAGES<T>];
  const RowTile tile = row_tile(a, blockIdx.x);
  if (tile.expert < 0) return;
  const int64_t first_col = int64_t(blockIdx.y) * TILE;
  const T* rows = static_cast<const T*>(a.rows);
  const T* weight = static_cast<const T*>(a.other) + tile.expert * a.out_width * a.in_width;
  const bool wide_rows = is_wide(rows, a.out_width), wide_weight = is_wide(weight, a.in_width);
  const auto row_of = [&](int i) -> const T* {
    return tile.begin + i < tile.end ? rows + (tile.begin + i) * a.out_width : nullptr;
  };
  const WarpSums sums = sum_tiles<T>(left, right, a.out_width, [&](int stage, int64_t k) {
    load_tile(left[stage], k, a.out_width, wide_rows, row_of);
    load_tile(right[stage], first_col, a.in_width, wide_weight, [&](int i) -> const T* {
      return k + i < a.out_width ? weight + (k + i) * a.in_width : nullptr;
    });
  });
  store_sums(sums, static_cast<T*>(a.out), tile.begin, tile.end, first_col, a.in_width);
}

// Computes the gradient of the weight, out [experts, out, in]: for each expert its rows of `other` [., out],
// transposed, times its rows [., in]; zeros for an expert without rows.
template <class T>
__device__ inline void grouped_linear_dw(const GroupedArguments& a) {
  __shared__ Tile<T, false> left[GROUPED_STAGES<T>], right[GROUPED_STAGES<T>];
  const int expert = int(blockIdx.z);
  const int64_t begin = expert > 0 ? a.ends[expert - 1] : 0, end = a.ends[expert];
  const int64_t first_row = int64_t(blockIdx.x) * TILE, first_col = int64_t(blockIdx.y) * TILE;
  const T *rows = static_cast<const T*>(a.rows), *grads = static_cast<const T*>(a.other);
  const bool wide_rows = is_wide(rows, a.in_width), wide_grads = is_wide(grads, a.out_width);
  const WarpSums sums = sum_tiles<T>(left, right, end - begin, [&](int stage, int64_t k) {
    load_tile(left[stage], first_row, a.out_width, wide_grads, [&](int i) -> const T* {
      return begin + k + i < end ? grads + (begin + k + i) * a.out_width : nullptr;
    });
    load_tile(right[stage], first_col, a.in_width, wide_rows, [&](int i) -> const T* {
      return begin + k + i < end ? rows + (begin + k + i) * a.in_width : nullptr;
    });
  });
  T* out = static_cast<T*>(a.out) + expert * a.out_width * a.in_width;
  store_sums(sums, out, first_row, a.out_width, first_col, a.in_width);
}

RLT_KERNELS(grouped_linear, GroupedArguments, grouped_linear, 128)
RLT_KERNELS(grouped_linear_dx, GroupedArguments, grouped_linear_dx, 128)
RLT_KERNELS(grouped_linear_dw, GroupedArguments, grouped_linear_dw, 128)

}  // namespace rlt
