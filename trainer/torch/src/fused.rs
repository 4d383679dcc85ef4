//! Differentiable fused row operations of a decoder layer: norm, gated activation, rotary embedding. CPUs
//! (f32 and bf16) and GPUs (also f16) have one kernel for the forward and one for the backward pass, in float
//! arithmetic; on a GPU the gradient of a norm's weight needs another sum. For other dtypes ATen computes the
//! same formula.

use crate::device_rows::launch;
use crate::error::or_panic;
use crate::ffi::{
    raw, rlt_apply_rope, rlt_gated_activation, rlt_gated_activation_packed, rlt_rms_norm, tensor_from,
};
use tch::Tensor;

/// Activation function of the gate in a gated feed-forward layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// SiLU: x * sigmoid(x).
    Silu,
    /// GELU by its tanh approximation (`gelu_pytorch_tanh`).
    GeluTanh,
    /// GELU by the error function. On CPUs libtorch computes it in two operations: it is too rare for a
    /// kernel.
    Gelu,
}

impl Activation {
    fn code(self) -> i64 {
        match self {
            Activation::Silu => 0,
            Activation::GeluTanh => 1,
            Activation::Gelu => 2,
        }
    }
}

/// Computes `x / sqrt(mean(x^2) + eps) * (weight_offset + weight)` over the last dimension, with statistics
/// in float32.
///
/// `x_td` is `[.., D]` (up to 3 dimensions without a copy, the last one contiguous), `weight_d` is `[D]` and
/// rounded to x's dtype, which the result has, too; the gradient of the weight has the weight's dtype.
/// Rounding is that of transformers: with `weight_offset` 0 (Llama) the normalised value is rounded to x's
/// dtype before it is multiplied by the weight, with 1 (Gemma) the product is.
///
/// # Panics
/// When the widths differ.
pub fn rms_norm(x_td: &Tensor, weight_d: &Tensor, eps: f64, weight_offset: f64) -> Tensor {
    or_panic(tensor_from("rms_norm", |out| {
        // SAFETY: borrowed tensors, a function of the declared type and a place for the result.
        unsafe { rlt_rms_norm(raw(x_td), raw(weight_d), eps, weight_offset, launch, out) }
    }))
}

/// Computes `activation(gate) * up`, element-wise; slices of one fused projection are read in place.
///
/// # Panics
/// When shapes or dtypes differ.
pub fn gated_activation(gate: &Tensor, up: &Tensor, activation: Activation) -> Tensor {
    if activation == Activation::Gelu {
        return gate.gelu("none") * up;
    }
    or_panic(tensor_from("gated_activation", |out| {
        // SAFETY: borrowed tensors, a function of the declared type and a place for the result.
        unsafe { rlt_gated_activation(raw(gate), raw(up), activation.code(), launch, out) }
    }))
}

/// Computes [`gated_activation`] of a fused projection `[.., 2 F]` (gate first): `[.., F]`. Its gradient is
/// one tensor `[.., 2 F]`.
///
/// # Panics
/// When the width is odd.
pub fn gated_activation_packed(gate_up: &Tensor, activation: Activation) -> Tensor {
    if let (Activation::Gelu, [gate, up]) = (activation, gate_up.chunk(2, -1).as_slice()) {
        return gate.gelu("none") * up;
    }
    or_panic(tensor_from("gated_activation_packed", |out| {
        // SAFETY: a borrowed tensor, a function of the declared type and a place for the result.
        unsafe { rlt_gated_activation_packed(raw(gate_up), activation.code(), launch, out) }
    }))
}

/// Applies rotary position embedding in rotate-half form (transformers' Llama): `x * cos + rotate_half(x) *
/// sin`.
///
/// `x_thd` is `[T, H, D]`; `cos_td`, `sin_td` are `[T, D]` with the angles repeated, or `[T, D/2]`. No
/// gradient flows to them.
///
/// # Panics
/// When shapes do not fit.
pub fn apply_rope(x_thd: &Tensor, cos_td: &Tensor, sin_td: &Tensor) -> Tensor {
    or_panic(tensor_from("apply_rope", |out| {
        // SAFETY: borrowed tensors, a function of the declared type and a place for the result.
        unsafe { rlt_apply_rope(raw(x_thd), raw(cos_td), raw(sin_td), launch, out) }
    }))
}
