//! Changes of single words of device memory by the host: many of them by one copy and one kernel launch.

use super::kernels::Kernels;
use super::module::Shape;
use crate::Error;
use crate::ffi::{raw, rlt_pinned_like, tensor_from};
use std::ffi::c_void;
use tch::{Device, Kind, Tensor};

/// Number of blocks of a launch. A captured graph fixes the grid, so the threads stride over any number of
/// changes.
const BLOCKS: usize = 32;
const THREADS: u32 = 256;

/// Changes single words of `state`. `changes` contains their number n and n pairs: `(i, value)` writes the
/// value to word i, `(-1 - i, j)` copies word j to word i. No word is written twice, and no word that is
/// copied from is written. A pair with a word outside `state` changes nothing.
#[derive(Clone, Copy, Debug)]
pub struct ApplyUpdates<'a> {
    /// Number of changes and their pairs, i32 `[at least 1 + 2 n]`.
    pub changes: &'a Tensor,
    /// Words to change, i32 `[words]`.
    pub state: &'a Tensor,
}

#[repr(C)]
struct Arguments {
    changes: *const c_void,
    state: *mut c_void,
    capacity: i64,
    words: i64,
}

impl ApplyUpdates<'_> {
    /// Launches the kernel.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("apply_changes");
        let [length] = operands.sizes("changes", self.changes)?;
        let [words] = operands.sizes("state", self.state)?;
        operands.require(length >= 1, "the number of changes first", length)?;
        let arguments = Arguments {
            changes: operands.address("changes", self.changes, Kind::Int, &[length])?,
            state: operands.address("state", self.state, Kind::Int, &[words])?,
            capacity: (length - 1) / 2,
            words,
        };
        kernels.launch("apply_changes", Shape::blocks([BLOCKS, 1, 1], THREADS), &arguments)
    }
}

/// Allocates an uninitialised tensor of `size` in pinned host memory, which a device can access directly.
///
/// # Errors
/// When pinned memory does not suffice.
pub fn pinned(size: &[i64], kind: Kind) -> Result<Tensor, Error> {
    // Only the shape and dtype of this tensor are read.
    let like = Tensor::empty(size, (kind, Device::Cpu));
    tensor_from("reserving pinned memory", |out| {
        // SAFETY: a borrowed tensor and a place for the result.
        unsafe { rlt_pinned_like(raw(&like), out) }
    })
}
