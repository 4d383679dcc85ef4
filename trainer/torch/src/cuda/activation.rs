//! The gated activation of a fused projection, as one kernel launch.

use super::kernels::Kernels;
use super::module::Shape;
use crate::{Activation, Error};
use std::ffi::c_void;
use tch::Tensor;

/// The operation of [`gated_activation_packed`](crate::gated_activation_packed), into a given tensor.
#[derive(Clone, Copy, Debug)]
pub struct SwiGlu<'a> {
    /// `[rows, 2 * width]`, the gate first; f32, bf16 or f16.
    pub gate_up: &'a Tensor,
    /// Activation function of the gate.
    pub activation: Activation,
    /// `[rows, width]` of the same dtype.
    pub out: &'a Tensor,
}

#[repr(C)]
struct Arguments {
    gate_up: *const c_void,
    out: *mut c_void,
    width: i64,
    activation: i32,
}

impl SwiGlu<'_> {
    /// Launches the kernel.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        const THREADS: usize = 256;
        const PER_THREAD: usize = 8;
        let operands = kernels.operands("swiglu");
        let kind = self.out.kind();
        let [rows, width] = operands.sizes("out", self.out)?;
        let arguments = Arguments {
            gate_up: operands.address("gate_up", self.gate_up, kind, &[rows, 2 * width])?,
            out: operands.address("out", self.out, kind, &[rows, width])?,
            width,
            activation: self.activation as i32,
        };
        let parts = (width as usize).div_ceil(THREADS * PER_THREAD);
        let name = operands.kernel("swiglu", kind)?;
        kernels.launch(&name, Shape::blocks([rows as usize, parts, 1], THREADS as u32), &arguments)
    }
}
