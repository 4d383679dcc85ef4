// The arithmetic of an RMS norm, of rows and of heads.
#pragma once
#include "device.cuh"

namespace rlt {

// 1 / root of the mean square, in double as the CPU's kernel has it; without a division, whose slow path is a call.
__device__ inline float inverse_root(float sum_of_squares, double inverse_width, double eps) {
  return float(rsqrt(double(sum_of_squares) * inverse_width + eps));
}

// Without an offset (Llama) the normed value is rounded before the weight, with one (Gemma) the product is.
template <class T>
__device__ inline float normed(float x, float scale, float weight, float offset) {
  return offset == 0.0f ? rounded<T>(x * scale) * weight : x * scale * (weight + offset);
}

}  // namespace rlt
