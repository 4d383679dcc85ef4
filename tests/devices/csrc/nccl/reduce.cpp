// Reductions of all types.
#include "reduce.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>

namespace nccl {
namespace {

template <class Call>
void with_type(Type type, Call call) {
  switch (type) {
    case INT8: return call(int8_t());
    case UINT8: return call(uint8_t());
    case INT32: return call(int32_t());
    case UINT32: return call(uint32_t());
    case INT64: return call(int64_t());
    case UINT64: return call(uint64_t());
    case FP16: return call(c10::Half());
    case FP32: return call(float());
    case FP64: return call(double());
    case BF16: return call(c10::BFloat16());
    default: return;
  }
}

template <class T>
T reduced(Reduction reduction, T a, T b) {
  switch (reduction) {
    case PRODUCT: return T(a * b);
    case MAX: return std::max(a, b);
    case MIN: return std::min(a, b);
    default: return T(a + b);
  }
}

}  // namespace

size_t size_of(Type type) {
  size_t size = 0;
  with_type(type, [&](auto number) { size = sizeof number; });
  return size;
}

void reduce(Type type, Reduction reduction, void* into, const void* from, size_t n) {
  with_type(type, [&](auto number) {
    using T = decltype(number);
    T* a = static_cast<T*>(into);
    const T* b = static_cast<const T*>(from);
    for (size_t i = 0; i < n; ++i) a[i] = reduced(reduction, a[i], b[i]);
  });
}

void divide(Type type, void* numbers, size_t n, int by) {
  with_type(type, [&](auto number) {
    using T = decltype(number);
    T* a = static_cast<T*>(numbers);
    for (size_t i = 0; i < n; ++i) a[i] = T(a[i] / T(by));
  });
}

}  // namespace nccl
