//! The numeric building blocks of a decoder layer.

use rlt_api::plan::model_config::HiddenActivation;
use tch::{Kind, Tensor};

/// Root-mean-square norm over the last dim, accumulated in f32, as transformers rounds it: Llama-like models round
/// to the input's dtype before the weight is multiplied in, Gemma (`offset` 1) after.
pub(super) fn rms_norm(x_td: &Tensor, weight_d: &Tensor, eps: f64, offset: f64) -> Tensor {
    let kind = x_td.kind();
    let x = x_td.to_kind(Kind::Float);
    let normed = &x * (x.square().mean_dim(-1, true, None) + eps).rsqrt();
    if offset == 0.0 {
        weight_d.to_kind(kind) * normed.to_kind(kind)
    } else {
        (normed * (weight_d.to_kind(kind).to_kind(Kind::Float) + offset)).to_kind(kind)
    }
}

/// `activation(gate) * up`.
pub(super) fn gated_activation(gate: &Tensor, up: &Tensor, activation: HiddenActivation) -> Tensor {
    match activation {
        HiddenActivation::Silu => gate.silu() * up,
        HiddenActivation::GeluTanh => gate.gelu("tanh") * up,
        HiddenActivation::Gelu => gate.gelu("none") * up,
    }
}

/// Rotates the halves of each head against each other.
pub(super) fn apply_rope(x_thd: &Tensor, cos_td: &Tensor, sin_td: &Tensor) -> Tensor {
    let halves = x_thd.chunk(2, -1);
    let rotated = Tensor::cat(&[halves[1].neg(), halves[0].shallow_clone()], -1);
    x_thd * cos_td.unsqueeze(1) + rotated * sin_td.unsqueeze(1)
}

/// Causal attention inside each sequence of a packed stream; each query head reads the key head of its group.
pub(super) fn varlen_attention(
    q_thd: &Tensor,
    k_tkd: &Tensor,
    v_tkd: &Tensor,
    cu_seqlens: &[i32],
    scale: f64,
    window: Option<i64>,
) -> Tensor {
    let segments: Vec<Tensor> = cu_seqlens
        .windows(2)
        .filter(|ends| ends[1] > ends[0])
        .map(|ends| {
            let (start, len) = (i64::from(ends[0]), i64::from(ends[1] - ends[0]));
            let part = |x: &Tensor| x.narrow(0, start, len).transpose(0, 1).unsqueeze(0);
            let mask = window.filter(|window| *window < len).map(|window| {
                Tensor::ones([len, len], (Kind::Bool, q_thd.device())).tril(0).triu(1 - window)
            });
            let causal = mask.is_none();
            Tensor::scaled_dot_product_attention(
                &part(q_thd),
                &part(k_tkd),
                &part(v_tkd),
                mask,
                0.0,
                causal,
                scale,
                true,
            )
            .squeeze_dim(0)
            .transpose(0, 1)
        })
        .collect();
    Tensor::cat(&segments, 0)
}
