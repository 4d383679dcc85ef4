//! Digest of a tensor on its device, equal to `rlt_core::digest::digest64`.

use super::kernels::Kernels;
use super::module::Shape;
use crate::Error;
use std::ffi::c_void;
use tch::{Kind, Tensor};

/// Number of values that are digested in sequence (`rlt_core::digest::CHUNK`).
const CHUNK: usize = 4096;
/// Number of chunks per block; eight threads digest one chunk.
const CHUNKS_A_BLOCK: usize = 16;

/// Digest of a tensor, equal to `rlt_core::digest::digest64` of its f32 values. Half-width values are read in
/// pairs as one f32 bit pattern each, or, if their number is odd, widened to f32.
#[derive(Clone, Copy, Debug)]
pub struct DeviceDigest<'a> {
    /// Dense tensor of f32, bf16 or f16, of any shape.
    pub tensor: &'a Tensor,
    /// Digest, i64 `[1]`; zero before the launch.
    pub out: &'a Tensor,
}

#[repr(C)]
struct Arguments {
    data: *const c_void,
    out: *mut c_void,
    /// Number of f32 values.
    count: i64,
}

impl DeviceDigest<'_> {
    /// Launches the kernel, which writes the digest's bits to `out`.
    ///
    /// # Errors
    /// When dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("digest");
        let numel = self.tensor.numel();
        let kind = self.tensor.kind();
        let name = operands.kernel("digest", kind)?;
        let is_paired = kind != Kind::Float && numel.is_multiple_of(2);
        let count = if is_paired { numel / 2 } else { numel };
        let data = operands.address("tensor", self.tensor, kind, &self.tensor.size())?;
        operands.require(
            !is_paired || data.addr().is_multiple_of(4),
            "numbers that begin at a multiple of 4 bytes",
            data.addr(),
        )?;
        let arguments = Arguments {
            data,
            out: operands.address("out", self.out, Kind::Int64, &[1])?,
            count: count as i64,
        };
        // The last block adds the number of values, so there is one block even for no values.
        let blocks = count.div_ceil(CHUNK).max(1).div_ceil(CHUNKS_A_BLOCK);
        let name = if is_paired { "digest_f32" } else { &name };
        kernels.launch(name, Shape::blocks([blocks, 1, 1], 8 * CHUNKS_A_BLOCK as u32), &arguments)
    }
}
