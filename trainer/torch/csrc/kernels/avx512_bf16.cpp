// Products in bfloat16 by AVX512_BF16, for CPUs without AMX. build.rs passes the compiler flags, and
// dispatch.cpp selects the kernels at run time. Such a CPU uses the avx512 kernels for everything else.
#include "../kernels.h"

#include <cstddef>
#include "intrinsics.h"

namespace rlt {
namespace avx512_bf16 {
namespace {
#include "simd.h"
#include "quantized/numbers.inl"
#include "bf16/panels.inl"
#include "bf16/pairs.inl"
#include "quantized/steps.inl"
#include "quantized/pairs.inl"
}  // namespace

extern const Bf16Kernels TABLE;
const Bf16Kernels TABLE = {pack_panels, dense_items,      dense_scratch, dense_product, bf16_fits,
                           pair_inputs, pack_pair_inputs, pair_items,    pair_scratch,  quantized_pairs};
}  // namespace avx512_bf16
}  // namespace rlt
