//! Rotary position embeddings: frequencies from the configuration, cosines and sines for given positions.
//!
//! All arithmetic is libtorch's in f32, operation by operation as in transformers' `modeling_rope_utils`,
//! because a last-bit difference in a frequency grows with the position.

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
    scaled(&inverse, config).to_device(device)
}

fn scaled(inverse: &Tensor, config: &ModelConfig) -> Tensor {
    match config.rope_scaling {
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
        RopeScaling::Yarn {
            factor,
            beta_fast,
            beta_slow,
            truncate,
            original_max_position_embeddings: context,
            ..
        } => {
            let pair_of = |turns| pair_with_turns(config, turns, context);
            let (low, high) = (pair_of(beta_fast), pair_of(beta_slow));
            let (low, high) = if truncate { (low.floor(), high.ceil()) } else { (low, high) };
            let (low, high) = (low.max(0.0), high.min(config.head_dim as f64 - 1.0));
            // A ramp of no width would divide by zero.
            let high = if low == high { high + 0.001 } else { high };
            let pairs = Tensor::arange(config.head_dim as i64 / 2, (Kind::Float, Device::Cpu));
            let stretch = ((pairs - low) / (high - low)).clamp(0.0, 1.0);
            let stretched = (inverse.reciprocal() * factor).reciprocal();
            stretched * &stretch + inverse * (1.0 - &stretch)
        }
    }
}

/// The pair of dims, as a real number, that makes this many turns over `context` tokens.
fn pair_with_turns(config: &ModelConfig, turns: f64, context: f64) -> f64 {
    config.head_dim as f64 * (context / (turns * TAU)).ln() / (2.0 * config.rope_theta.ln())
}

/// Cosines and sines at `position_ids` (i64 [tokens]) for frequencies f32 [head_dim / 2], times
/// `factor`.
pub(crate) fn rope_at(
    inverse_frequencies: &Tensor,
    position_ids: &Tensor,
    factor: f64,
    compute: Kind,
) -> Rope {
    let angles = position_ids.to_kind(Kind::Float).unsqueeze(-1) * inverse_frequencies.unsqueeze(0);
    let angles = Tensor::cat(&[&angles, &angles], -1);
    Rope {
        cos_td: (angles.cos() * factor).to_kind(compute),
        sin_td: (angles.sin() * factor).to_kind(compute),
    }
}
