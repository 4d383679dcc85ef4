// Changes of single words of device memory by the host. The number of changes is read on the device, so that
// one captured launch serves every step. The cost is the launch latency.
#include "include/device.cuh"

namespace rlt {

struct ChangesArguments {
  const int32_t* changes;
  int32_t* state;
  int64_t capacity, words;
};

__device__ inline void apply_change(const ChangesArguments& a) {
  const int64_t count = a.changes[0] < a.capacity ? a.changes[0] : a.capacity;
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += int64_t(gridDim.x) * blockDim.x) {
    const int64_t named = a.changes[1 + 2 * i], value = a.changes[2 + 2 * i];
    const int64_t at = named < 0 ? -1 - named : named;
    if (at >= a.words) continue;
    if (named >= 0)
      a.state[at] = int32_t(value);
    else if (value >= 0 && value < a.words)
      a.state[at] = a.state[value];
  }
}

RLT_KERNEL(apply_changes, ChangesArguments, apply_change, 256)

}  // namespace rlt
