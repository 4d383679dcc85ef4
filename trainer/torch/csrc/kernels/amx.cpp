// Products in bfloat16 by AMX. build.rs passes the compiler flags, and dispatch.cpp selects the kernels at
// run time. A CPU with AMX uses the avx512 kernels for everything else.
#include "../kernels.h"

#include <cstddef>
#include "intrinsics.h"

namespace rlt {
namespace amx {
namespace {
#include "simd.h"
#include "quantized/numbers.inl"
#include "tiles.inl"
#include "bf16/panels.inl"
#include "bf16/tiles.inl"
#include "quantized/steps.inl"
#include "quantized/tiles.inl"
}  // namespace

extern const Bf16Kernels TABLE;
const Bf16Kernels TABLE = {pack_panels, dense_items,      dense_scratch, dense_product, bf16_fits,
                           tile_inputs, pack_tile_inputs, tile_items,    tile_scratch,  quantized_tiles};
}  // namespace amx
}  // namespace rlt
