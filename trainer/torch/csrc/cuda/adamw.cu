// Decoupled AdamW over all parameters of a table, in the order of operations of kernels/optim.inl. Bound by
// the memory traffic of 28 bytes per element with f32 gradients (26 with bf16), and 2 more if a copy is
// written.
#include "include/device.cuh"

namespace rlt {

// A row of the table: 9 words, laid out by `AdamWTable` in Rust.
struct AdamWTensor {
  float* param;
  const void* grad;
  float *m, *v;
  bf16* copy;  // or null
  int64_t count, first_block;
  double rate_factor, weight_decay;
};

struct AdamWArguments {
  const AdamWTensor* table;
  const float* device_scale;  // or null
  double learning_rate, beta1, beta2, epsilon, grad_scale, bias1, bias2_sqrt;
  int32_t num_tensors;
};

constexpr int ADAMW_CHUNK = 4096;

template <class G>
__device__ inline void adamw(const AdamWArguments& a) {
  const AdamWTensor tensor = row_of_block(a.table, a.num_tensors);
  const float device_scale = a.device_scale == nullptr ? 1.0f : *a.device_scale;
  if (!(fabsf(device_scale) < INFINITE)) return;
  const double rate = a.learning_rate * tensor.rate_factor;
  const float decay = float(1.0 - rate * tensor.weight_decay), step = float(rate / a.bias1);
  const float to_grad = float(1.0 - a.beta1), b2 = float(a.beta2), to_square = float(1.0 - a.beta2);
  const float bias2 = float(a.bias2_sqrt), epsilon = float(a.epsilon), scale = float(a.grad_scale) * device_scale;
  const int64_t begin = (int64_t(blockIdx.x) - tensor.first_block) * ADAMW_CHUNK;
  const int64_t end = begin + ADAMW_CHUNK < tensor.count ? begin + ADAMW_CHUNK : tensor.count;
  const auto update = [&](float& param, float grad, float& m, float& v) {
    const float g = grad * scale;
    m = m + to_grad * (g - m);
    v = v * b2 + to_square * g * g;
    param = param * decay - step * m / (sqrtf(v) / bias2 + epsilon);
  };
  const auto run = [&](auto width) {
    constexpr int N = decltype(width)::value;
    for (int64_t i = begin + int64_t(threadIdx.x) * N; i < end; i += int64_t(blockDim.x) * N) {
      Vec<float, N> param = load<float, N>(tensor.param + i), m = load<float, N>(tensor.m + i),
                    v = load<float, N>(tensor.v + i);
      const Vec<G, N> grad = load<G, N>(static_cast<const G*>(tensor.grad) + i);
      Vec<bf16, N> copy;
      RLT_UNROLL
      for (int k = 0; k < N; ++k) {
        update(param.at[k], to_float(grad.at[k]), m.at[k], v.at[k]);
        copy.at[k] = from_float<bf16>(param.at[k]);
      }
      store<float, N>(tensor.param + i, param);
      store<float, N>(tensor.m + i, m);
      store<float, N>(tensor.v + i, v);
      if (tensor.copy != nullptr) store<bf16, N>(tensor.copy + i, copy);
    }
  };
  const uintptr_t addresses = uintptr_t(tensor.param) | uintptr_t(tensor.grad) | uintptr_t(tensor.m) |
                              uintptr_t(tensor.v) | uintptr_t(tensor.copy);
  if (addresses % 16 == 0 && tensor.count % 4 == 0)
    run(Width<4>());
  else
    run(Width<1>());
}

RLT_KERNELS(adamw, AdamWArguments, adamw, 256)

}  // namespace rlt
