//! Numeric building blocks of a decoder layer: the fused kernels of `rlt-torch`. They round weights to the
//! dtype of the activations first, so that a bf16 pass rounds where transformers rounds.

use rlt_models::{HiddenActivation, NormKind};
use rlt_torch::Activation;
use tch::{Kind, Tensor};

/// Root-mean-square norm over the last dim of `x`; `offset` is added to the weight.
pub(crate) fn rms_norm(x: &Tensor, weight_d: &Tensor, eps: f64, offset: f64) -> Tensor {
    rlt_torch::rms_norm(x, weight_d, eps, offset)
}

/// Mean-and-variance norm over the last dim of `x`, times the weight `[width]` or `[heads, width]`; computed
/// in f32 and rounded once.
fn layer_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Tensor {
    let width = x.size().last().copied().unwrap_or(0);
    let normed = x.to_kind(wide(x.kind())).layer_norm([width], None::<&Tensor>, None::<&Tensor>, eps, false);
    (normed * weight.to_kind(wide(x.kind()))).to_kind(x.kind())
}

/// The dtype of intermediate results: f64 for f64, else f32.
fn wide(kind: Kind) -> Kind {
    if kind == Kind::Double { kind } else { Kind::Float }
}

/// The norm of kind `kind` over the last dim of `x`; `offset` is added to the weight of an RMS norm.
pub(crate) fn norm(kind: NormKind, x: &Tensor, weight: &Tensor, eps: f64, offset: f64) -> Tensor {
    match kind {
        NormKind::Rms => rms_norm(x, weight, eps, offset),
        NormKind::Layer => layer_norm(x, weight, eps),
    }
}

/// `activation(gate) * up`.
pub(crate) fn gated_activation(gate: &Tensor, up: &Tensor, activation: HiddenActivation) -> Tensor {
    rlt_torch::gated_activation(gate, up, activation_of(activation))
}

/// GPT-OSS's activation, `(up + 1) * gate * sigmoid(1.702 gate)`, for gate and up interleaved in the last
/// dim. The gate is at most 7 and up within 7 of 0.
pub fn clamped_activation(gate_up: &Tensor) -> Tensor {
    const ALPHA: f64 = 1.702;
    const LIMIT: f64 = 7.0;
    let pairs = gate_up.unflatten(-1, [-1, 2]);
    let (gate, up) = (pairs.select(-1, 0).clamp_max(LIMIT), pairs.select(-1, 1).clamp(-LIMIT, LIMIT));
    // gate sigmoid(alpha gate) is silu(alpha gate) / alpha.
    rlt_torch::gated_activation(&(gate * ALPHA), &((up + 1.0) / ALPHA), Activation::Silu)
}

/// `activation(gate) * up` for gate and up side by side in the last dim.
pub fn gated_activation_packed(gate_up: &Tensor, activation: HiddenActivation) -> Tensor {
    if activation == HiddenActivation::Gelu {
        let halves = gate_up.chunk(2, -1);
        return gated_activation(&halves[0], &halves[1], activation);
    }
    rlt_torch::gated_activation_packed(gate_up, activation_of(activation))
}

/// The kernels' name for an activation.
pub fn activation_of(activation: HiddenActivation) -> Activation {
    match activation {
        HiddenActivation::Silu => Activation::Silu,
        HiddenActivation::GeluTanh => Activation::GeluTanh,
        HiddenActivation::Gelu => Activation::Gelu,
    }
}
