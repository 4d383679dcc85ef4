// State of the batch between two decoding steps. These launches process a few values per row and cost their
// latency only, except for the gather of embeddings, which is bound by one read and one write of a row per
// token.
#include "include/device.cuh"

namespace rlt {

struct EmbedArguments {
  const int32_t* tokens;
  const void* embedding;
  void* out;
  int64_t vocabulary, width;
  float scale;
};

template <class T, int N>
__device__ inline void gather_row(const EmbedArguments& a, int64_t token) {
  T* out = static_cast<T*>(a.out) + int64_t(blockIdx.x) * a.width;
  const T* row = static_cast<const T*>(a.embedding) + token * a.width;
  const bool exists = token >= 0 && token < a.vocabulary;
  for (int64_t i = int64_t(threadIdx.x) * N; i < a.width; i += int64_t(blockDim.x) * N) {
    Vec<T, N> v;
    if (exists) v = load<T, N>(row + i);
    RLT_UNROLL
    for (int k = 0; k < N; ++k) v.at[k] = from_float<T>(exists ? to_float(v.at[k]) * a.scale : 0.0f);
    store<T, N>(out + i, v);
  }
}

template <class T>
__device__ inline void embed_gather(const EmbedArguments& a) {
  const int64_t token = a.tokens[blockIdx.x];
  if (is_wide(static_cast<const T*>(a.embedding), a.width) && is_wide(static_cast<const T*>(a.out), a.width))
    gather_row<T, WIDE<T>>(a, token);
  else
    gather_row<T, 1>(a, token);
}

RLT_KERNELS(embed_gather, EmbedArguments, embed_gather, 128)

struct AdvanceArguments {
  const int32_t *drawn, *block_tables;
  int32_t *tokens, *positions, *slots, *context_lens, *steps;
  int32_t rows, max_blocks, block_size;
};

__device__ inline void advance_row(const AdvanceArguments& a) {
  const int row = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= a.rows || a.positions[row] < 0) return;
  // After images a position is less than the number of cached tokens.
  const int cached = a.context_lens[row], block = cached / a.block_size;
  const int32_t* table = a.block_tables + int64_t(row) * a.max_blocks;
  const int32_t named = block < a.max_blocks ? table[block] : -1;
  a.tokens[row] = a.drawn[row];
  a.positions[row] += 1;
  a.slots[row] = named < 0 ? -1 : named * a.block_size + cached % a.block_size;
  a.context_lens[row] = cached + 1;
  a.steps[row] += 1;
}

RLT_KERNEL(advance, AdvanceArguments, advance_row, 128)

struct MarkArguments {
  const int32_t *tokens, *rows;
  unsigned* seen;
  int64_t count;
  int32_t num_rows, words;
};

__device__ inline void mark_token(const MarkArguments& a) {
  const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= a.count) return;
  const int token = a.tokens[i], row = a.rows[i];
  if (row < 0 || row >= a.num_rows || token < 0 || token / 32 >= a.words) return;
  atomicOr(a.seen + int64_t(row) * a.words + token / 32, 1u << (token % 32));
}

RLT_KERNEL(mark_seen, MarkArguments, mark_token, 128)

}  // namespace rlt
