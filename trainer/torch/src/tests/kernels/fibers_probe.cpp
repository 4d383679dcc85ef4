// Kernels that are right, that lack a barrier, and whose threads do not all reach one: what the fibers make of them.
#include "fibers.h"

extern "C" void rlt_fibers_seed(uint64_t seed);

static int seen[256];

template <bool HAS_BARRIER>
static void neighbours(void*) {
  __shared__ int shown[64];
  shown[threadIdx.x] = int(blockIdx.x * 64 + threadIdx.x);
  if (HAS_BARRIER) __syncthreads();
  seen[blockIdx.x * 64 + threadIdx.x] = shown[threadIdx.x ^ 1];
  if (HAS_BARRIER) __syncthreads();
}

static void divergent(void*) {
  if (threadIdx.x < 32) __syncthreads();
}

static int right(void (*kernel)(void*), uint64_t seed) {
  const unsigned grid[3] = {4, 1, 1}, block[3] = {64, 1, 1};
  rlt_fibers_seed(seed);
  fibers::run(grid, block, 0, kernel, nullptr);
  int count = 0;
  for (int i = 0; i < 256; ++i) count += seen[i] == (i ^ 1);
  return count;
}

int main(int argc, char**) {
  const unsigned grid[3] = {1, 1, 1}, block[3] = {64, 1, 1};
  if (argc > 1) fibers::run(grid, block, 0, divergent, nullptr);
  for (uint64_t seed = 1; seed <= 5; ++seed)
    std::printf("%d %s\n", right(neighbours<true>, seed), right(neighbours<false>, seed) < 256 ? "wrong" : "right");
}
