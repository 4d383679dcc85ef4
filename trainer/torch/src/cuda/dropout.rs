//! Dropout masks that are drawn on the device.

use super::kernels::Kernels;
use super::module::Shape;
use crate::Error;
use crate::error::or_panic;
use std::ffi::c_void;
use tch::Tensor;

/// Number of elements per block.
const CHUNK: usize = 2048;

/// A mask of zeros and `keep`. Element `i` is zero if draw `first_idx + i` of SplitMix64 from `key` on,
/// mapped to [-1, 1), is below `threshold`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropoutMask {
    /// Seed of the draws.
    pub key: u64,
    /// Index of the first element's draw.
    pub first_idx: u64,
    /// Bound below which a draw becomes zero: `2 p - 1` for the dropout probability `p`.
    pub threshold: f32,
    /// Value of all other elements, rounded to the mask's dtype.
    pub keep: f32,
}

#[repr(C)]
struct Arguments {
    out: *mut c_void,
    key: u64,
    first_idx: u64,
    count: i64,
    threshold: f32,
    keep: f32,
}

impl DropoutMask {
    /// Launches one block per 2048 elements of `out`, a dense tensor of f32, bf16 or f16 of any shape.
    ///
    /// # Errors
    /// When the dtype or the device of `out` does not fit.
    pub fn launch(&self, kernels: &Kernels, out: &Tensor) -> Result<(), Error> {
        let operands = kernels.operands("a dropout mask");
        let count = out.numel();
        let arguments = Arguments {
            out: operands.address("out", out, out.kind(), &out.size())?,
            key: self.key,
            first_idx: self.first_idx,
            count: count as i64,
            threshold: self.threshold,
            keep: self.keep,
        };
        let name = operands.kernel("dropout_mask", out.kind())?;
        kernels.launch(&name, Shape::blocks([count.div_ceil(CHUNK), 1, 1], 256), &arguments)
    }

    /// Makes a mask with the shape, dtype and GPU of `like`.
    ///
    /// # Panics
    /// When `like` is not on a GPU with our kernels, or memory does not suffice.
    pub fn like(&self, like: &Tensor) -> Tensor {
        let made = || {
            let tch::Device::Cuda(index) = like.device() else {
                let (expected, got) = ("a tensor on a GPU".into(), format!("{:?}", like.device()));
                return Err(Error::Argument { act: "a dropout mask", expected, got });
            };
            let out = Tensor::f_empty(like.size(), (like.kind(), like.device()))
                .map_err(|source| Error::Libtorch { act: "a dropout mask", message: source.to_string() })?;
            self.launch(&Kernels::load(index)?, &out)?;
            Ok(out)
        };
        or_panic(made())
    }
}
