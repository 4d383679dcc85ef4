// Kernels that are right, that lack a barrier, and whose threads do not all reach one: what the fibers make of them. And
// reductions of a warp in one exchange and in five.
#include "../on_cpu/fibers.h"

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

static float at_once[64], in_steps[64];

// The order of its operands counts.
struct Weighted {
  float operator()(float a, float b) const { return a * 0.75f + b; }
};

static void reductions(void*) {
  const float own = float(threadIdx.x * 37 % 64) + 0.1f;
  at_once[threadIdx.x] = fibers::reduced(own, Weighted());
  float value = own;
  for (int distance = 16; distance > 0; distance /= 2)
    value = Weighted()(value, __shfl_xor_sync(~0u, value, distance));
  in_steps[threadIdx.x] = value;
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
  fibers::run(grid, block, 0, reductions, nullptr);
  const bool is_varied = in_steps[0] != in_steps[1] && in_steps[0] != in_steps[32];
  std::printf("%s\n", is_varied && std::memcmp(at_once, in_steps, sizeof at_once) == 0 ? "equal" : "different");
}
