//! Rotary position embeddings: frequencies from the configuration, cosines and sines for given positions.
//!
//! All arithmetic is libtorch's in f32, operation by operation as in transformers' `modeling_rope_utils`, because a
//! last-bit difference in a frequency grows with the position.

use std::f64::consts::TAU;

use rlt_api::plan::model_config::{ModelConfig, RopeScaling};
use tch::{Device, Kind, Tensor};

/// Cosines and sines for the tokens of one stream, in the compute dtype.
#[derive(Debug)]
pub struct Rope {
    /// [tokens, head_dim], the two halves alike.
    pub cos_td: Tensor,
    /// [tokens, head_dim], the two halves alike.
    pub sin_td: Tensor,
}

/// Angle per position of each pair of dims: f32 [head_dim / 2].
pub(crate) fn inverse_frequencies(config: &ModelConfig, device: Device) -> Tensor {
    let head_dim = config.head_dim as i64;
    let exponents = Tensor::arange_start_step(0, head_dim, 2, (Kind::Float, Device::Cpu)) / head_dim as f64;
    let inverse = Tensor::pow_scalar(config.rope_theta, &exponents).reciprocal();
    scaled(&inverse, config.rope_scaling).to_device(device)
}

fn scaled(inverse: &Tensor, scaling: RopeScaling) -> Tensor {
    match scaling {
        RopeScaling::None => inverse.shallow_clone(),
        RopeScaling::Linear { factor } => inverse / factor,
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings: context,
        } => {
            let wavelength = inverse.reciprocal() * TAU;
            let is_long = wavelength.gt(context / low_freq_factor);
            let is_short = wavelength.lt(context / high_freq_factor);
            let stretched = (inverse / factor).where_self(&is_long, inverse);
            let ramp =
                (wavelength.reciprocal() * context - low_freq_factor) / (high_freq_factor - low_freq_factor);
            let between: Tensor = (1.0 - &ramp) * &stretched / factor + &ramp * &stretched;
            stretched.where_self(&is_long.logical_or(&is_short), &between)
        }
    }
}

/// Cosines and sines at `position_ids` (i64 [tokens]) for frequencies f32 [head_dim / 2].
pub(crate) fn rope_at(inverse_frequencies: &Tensor, position_ids: &Tensor, compute: Kind) -> Rope {
    let angles = position_ids.to_kind(Kind::Float).unsqueeze(-1) * inverse_frequencies.unsqueeze(0);
    let angles = Tensor::cat(&[&angles, &angles], -1);
    Rope { cos_td: angles.cos().to_kind(compute), sin_td: angles.sin().to_kind(compute) }
}
