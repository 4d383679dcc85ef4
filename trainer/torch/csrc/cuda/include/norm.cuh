// The arithmetic of an RMS norm, of rows and of heads.
#pragma once
#include "device.cuh"

namespace rlt {

// Returns 1 / root mean square, in double like the CPU's kernel. It avoids a division, whose slow path is a
// function call.
__device__ inline float inverse_root(float sum_of_squares, double inverse_width, double eps) {
  return float(rsqrt(double(sum_of_squares) * inverse_width + eps));
}

// Without an offset (Llama) the normalised value is rounded before the multiplication by the weight; with an
// offset (Gemma) only the product is rounded.
template <class T>
__device__ inline float normed(float x, float scale, float weight, float offset) {
  return offset == 0.0f ? rounded<T>(x * scale) * weight : x * scale * (weight + offset);
}

}  // namespace rlt
