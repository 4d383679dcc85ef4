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
    match activation {
        HiddenActivation::Silu => rlt_torch::gated_activation(gate, up, Activation::Silu),
        HiddenActivation::GeluTanh => rlt_torch::gated_activation(gate, up, Activation::GeluTanh),
        // Rare enough that no kernel is worth having.
        HiddenActivation::Gelu => gate.gelu("none") * up,
    }
}
