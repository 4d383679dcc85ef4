//! The numeric building blocks of a decoder layer: the fused kernels of `rlt-torch`, with weights cast to the
//! dtype of the activations first, so that a bf16 pass rounds where transformers rounds.

use rlt_api::plan::model_config::HiddenActivation;
use rlt_torch::Activation;
use tch::Tensor;

/// Root-mean-square norm over the last dim of `x`; `offset` is added to the weight.
pub(super) fn rms_norm(x: &Tensor, weight_d: &Tensor, eps: f64, offset: f64) -> Tensor {
    rlt_torch::rms_norm(x, &weight_d.to_kind(x.kind()), eps, offset)
}

/// `activation(gate) * up`.
pub(super) fn gated_activation(gate: &Tensor, up: &Tensor, activation: HiddenActivation) -> Tensor {
    rlt_torch::gated_activation(gate, up, activation_of(activation))
}

/// The same of gate and up side by side in the last dim.
pub(crate) fn gated_activation_packed(gate_up: &Tensor, activation: HiddenActivation) -> Tensor {
    if activation == HiddenActivation::Gelu {
        let halves = gate_up.chunk(2, -1);
        return gated_activation(&halves[0], &halves[1], activation);
    }
    rlt_torch::gated_activation_packed(gate_up, activation_of(activation))
}

/// The name of an activation among kernels.
pub(crate) fn activation_of(activation: HiddenActivation) -> Activation {
    match activation {
        HiddenActivation::Silu => Activation::Silu,
        HiddenActivation::GeluTanh => Activation::GeluTanh,
        HiddenActivation::Gelu => Activation::Gelu,
    }
}
