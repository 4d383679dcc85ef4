// Adding up, and the like, of numbers of any of NCCL's types.
#pragma once
#include <cstddef>

namespace nccl {

enum Type : int { INT8, UINT8, INT32, UINT32, INT64, UINT64, FP16, FP32, FP64, BF16, NUM_TYPES };
enum Reduction : int { SUM, PRODUCT, MAX, MIN, AVERAGE, NUM_REDUCTIONS };

size_t size_of(Type type);
// Lays `from` over `into`, number by number. A result of 16 bits is rounded each time, as NCCL does.
void reduce(Type type, Reduction reduction, void* into, const void* from, size_t n);
// Divides by the number of ranks, for the average.
void divide(Type type, void* numbers, size_t n, int by);

}  // namespace nccl
