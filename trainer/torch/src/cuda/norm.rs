//! Addition to the residual stream followed by RMS norm, as one kernel launch.

use super::kernels::Kernels;
use super::module::Shape;
use crate::Error;
use std::ffi::c_void;
use tch::Tensor;

/// `residual += x` and `out = rms_norm(residual)`, rounded like two separate operations:
/// [`rms_norm`](crate::rms_norm) of a sum that was rounded to the dtype.
#[derive(Clone, Copy, Debug)]
pub struct RmsNormResidual<'a> {
    /// Addend, `[rows, width]`; `None` normalises `residual` unchanged.
    pub x: Option<&'a Tensor>,
    /// Residual stream `[rows, width]`, updated in place; f32, bf16 or f16, as all tensors here.
    pub residual: &'a Tensor,
    /// Weight of the norm, `[width]`.
    pub weight: &'a Tensor,
    /// Epsilon, added to the mean square.
    pub eps: f64,
    /// Offset added to the weight: 0 for Llama, 1 for Gemma.
    pub offset: f64,
    /// Output `[rows, width]`.
    pub out: &'a Tensor,
}

#[repr(C)]
struct Arguments {
    x: *const c_void,
    residual: *mut c_void,
    weight: *const c_void,
    out: *mut c_void,
    width: i64,
    inverse_width: f64,
    eps: f64,
    offset: f32,
}

impl RmsNormResidual<'_> {
    /// Launches one block per row.
    ///
    /// # Errors
    /// When shapes, dtypes or devices do not fit.
    pub fn launch(&self, kernels: &Kernels) -> Result<(), Error> {
        let operands = kernels.operands("rms_norm_residual");
        let kind = self.residual.kind();
        let [rows, width] = operands.sizes("residual", self.residual)?;
        let shape = [rows, width];
        let arguments = Arguments {
            x: operands.address_or_null("x", self.x, kind, &shape)?,
            residual: operands.address("residual", self.residual, kind, &shape)?,
            weight: operands.address("weight", self.weight, kind, &[width])?,
            out: operands.address("out", self.out, kind, &shape)?,
            width,
            inverse_width: 1.0 / width as f64,
            eps: self.eps,
            offset: self.offset as f32,
        };
        let threads = if width <= 1024 { 128 } else { 256 };
        let name = operands.kernel("rms_norm_residual", kind)?;
        kernels.launch(&name, Shape::blocks([rows as usize, 1, 1], threads), &arguments)
    }
}
