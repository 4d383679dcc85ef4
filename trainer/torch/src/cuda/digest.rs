//! The digest of a tensor on its device: `rlt_core::digest::digest64`.

use super::kernels::Kernels;
use super::module::Shape;
use crate::Error;
use std::ffi::c_void;
use tch::{Kind, Tensor};

/// Numbers that are digested in sequence (`rlt_core::digest::CHUNK`).
const CHUNK: usize = 4096;
/// Chunks of a block: eight threads take one.
const CHUNKS_A_BLOCK: usize = 16;

/// Digests of tensors, one word each, as `rlt_core::digest::digest64` has them of the f32 numbers; of
/// half-width numbers in pairs as they are, or of an odd number of them widened to f32.
#[derive(Clone, Copy, Debug)]
pub struct DeviceDigest<'a> {
    /// Any dense tensor of f32, bf16 or f16.
    pub tensor: &'a Tensor,
    /// i64 `[1]`, zero before the launch.
    pub out: &'a Tensor,
}

#[repr(C)]
struct Arguments {
    data: *const c_void,
    out: *mut c_void,
    /// Numbers of f32.
    count: i64,
}

impl DeviceDigest<'_> {
    /// Launches; `out` holds the digest's bits afterwards.
    ///
    /// # Errors
    /// When kinds or devices do not fit.
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
        // The last block adds the number of values, so there is one even where there is none.
        let blocks = count.div_ceil(CHUNK).max(1).div_ceil(CHUNKS_A_BLOCK);
        let name = if is_paired { "digest_f32" } else { &name };
        kernels.launch(name, Shape::blocks([blocks, 1, 1], 8 * CHUNKS_A_BLOCK as u32), &arguments)
    }
}
