// Products in bfloat16 by AMX; build.rs passes the flags, dispatch.cpp decides at run time. All other kernels of such a
// CPU are those for avx512.
#include "../kernels.h"

#include <cstddef>
#include "intrinsics.h"

namespace rlt {
namespace amx {
namespace {
#include "simd.h"
#include "numbers.inl"
#include "tiles.inl"
#include "bf16_panels.inl"
#include "bf16_tiles.inl"
#include "quantized_steps.inl"
#include "quantized_tiles.inl"
}  // namespace

extern const Bf16Kernels TABLE;
const Bf16Kernels TABLE = {pack_panels, dense_items,      dense_scratch, dense_product, bf16_fits,
                           tile_inputs, pack_tile_inputs, tile_items,    tile_scratch,  quantized_tiles};
}  // namespace amx
}  // namespace rlt
