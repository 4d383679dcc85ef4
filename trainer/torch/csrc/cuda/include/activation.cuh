// The activation functions of gates, and their derivatives.
#pragma once
#include "device.cuh"

namespace rlt {

// Computes activation 0: x sigmoid(x), 1: GELU by tanh, 2: GELU by the error function.
__device__ inline float activated(float x, int32_t activation) {
  if (activation == 0) return x / (1.0f + expf(-x));
  if (activation == 2) return x * 0.5f * (1.0f + erff(x * 0.70710678118654752f));
  const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  // Equals x (1 + tanh(inner)) / 2. If the exponential overflows, the factor is 1.
  return x * (1.0f - 1.0f / (expf(2.0f * inner) + 1.0f));
}

struct Activated {
  float value, slope;
};

// Computes activation 0 or 1 with its derivative.
__device__ inline Activated activated_with_slope(float x, int32_t activation) {
  if (activation == 0) {
    const float sigmoid = 1.0f / (1.0f + expf(-x)), value = x * sigmoid;
    return {value, sigmoid + value * (1.0f - sigmoid)};
  }
  const float inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
  const float rest = 2.0f / (expf(2.0f * inner) + 1.0f), half = 1.0f - 0.5f * rest;  // rest: 1 - tanh(inner)
  const float slope_of_inner = 0.7978845608028654f * (1.0f + 3.0f * 0.044715f * x * x);
  return {x * half, half + 0.5f * x * (rest * (2.0f - rest)) * slope_of_inner};
}

}  // namespace rlt
