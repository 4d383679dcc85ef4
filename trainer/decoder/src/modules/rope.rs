//! Rotary position embeddings: frequencies from the configuration, cosines and sines for given positions, and
//! the order of a head's dims while they are rotated.
//!
//! All arithmetic is libtorch's in f32, operation by operation as in transformers' `modeling_rope_utils`,
//! because a last-bit difference in a frequency grows with the position.
//!
//! The two dims of a pair are half a head apart while they are rotated. Families whose pairs are adjacent
//! have their queries and keys reordered first; the rollout on GPUs reorders the rows of their weights
//! instead, when it packs them. Scores do not change, and one kernel serves every family.

use std::f64::consts::TAU;

use rlt_models::{ModelConfig, RopeConfig, RopePairing, RopeScaling};
use tch::{Device, Kind, Tensor};

/// Cosines and sines for the packed tokens.
#[derive(Debug)]
pub struct RopeTables {
    /// A table for each rotary embedding of the model.
    tables: Vec<Table>,
    /// Order of a head's dims during rotation, as in [`Ropes`].
    dim_order: Option<Tensor>,
}

/// Cosines and sines of one rotary embedding, in the compute dtype.
#[derive(Debug)]
struct Table {
    /// Cosines, [tokens, head_dim], the two halves alike.
    cos_td: Tensor,
    /// Sines, [tokens, head_dim], the two halves alike.
    sin_td: Tensor,
}

impl RopeTables {
    /// Rotates heads `x_thd` [tokens, heads, head_dim] by the embedding `rope_idx`; `None` leaves them as
    /// they are. If pairs are not half a head apart, the result has its dims in another order; attention
    /// scores do not change, because queries and keys have the same order.
    pub(crate) fn rotate(&self, x_thd: Tensor, rope_idx: Option<usize>) -> Tensor {
        let Some(Table { cos_td, sin_td }) = rope_idx.and_then(|idx| self.tables.get(idx)) else {
            return x_thd;
        };
        let in_order = match &self.dim_order {
            Some(order) => x_thd.index_select(-1, order),
            None => x_thd,
        };
        rlt_torch::apply_rope(&in_order, cos_td, sin_td)
    }
}

/// The rotary embeddings of a model.
#[derive(Debug)]
pub struct Ropes {
    /// Frequencies of each rotary embedding in the configuration.
    frequencies: Vec<Frequencies>,
    /// The dim of a head at each position during rotation, i64 [head_dim]; `None` for the stored order.
    dim_order: Option<Tensor>,
    /// Axis of positions (time, height or width) that rotates each pair, i64 [head_dim / 2]; `None` if
    /// positions have one axis.
    axes: Option<Tensor>,
}

/// The frequencies of a head's pairs.
#[derive(Debug)]
pub struct Frequencies {
    /// Angle per position in radians, f32 [head_dim / 2]; 0 for pairs that are not rotated.
    pub per_pair: Tensor,
    /// Factor of cosines and sines (YaRN's attention scaling).
    pub attention_factor: f64,
}

impl Ropes {
    pub(crate) fn new(config: &ModelConfig, device: Device) -> Self {
        let frequencies = config.ropes.iter().map(|rope| Frequencies::new(config, rope, device));
        let dim_order = dim_order(config).map(|order| Tensor::from_slice(&order).to_device(device));
        let axes = config.vision.as_ref().map(|vision| {
            let axes: Vec<i64> = vision.rope_axes().into_iter().map(|axis| axis as i64).collect();
            Tensor::from_slice(&axes).to_device(device)
        });
        Self { frequencies: frequencies.collect(), dim_order, axes }
    }

    /// The frequencies of each rotary embedding.
    pub fn frequencies(&self) -> &[Frequencies] {
        &self.frequencies
    }

    /// The dim of a head at each position during rotation, i64 [head_dim]; `None` for the stored order.
    pub fn dim_order(&self) -> Option<&Tensor> {
        self.dim_order.as_ref()
    }

    /// Axis of positions that rotates each pair, i64 [head_dim / 2]; `None` if positions have one axis.
    pub fn axes(&self) -> Option<&Tensor> {
        self.axes.as_ref()
    }

    /// Tables for `position_ids`: i64 [tokens], or i64 [3, tokens] for time, height and width.
    pub(crate) fn at(&self, position_ids: &Tensor, compute: Kind) -> RopeTables {
        let by_pair = |frequencies: &Frequencies| match (&self.axes, position_ids.dim()) {
            (Some(axes), 2) => frequencies.by_axes(position_ids, axes),
            _ => frequencies.angles(position_ids),
        };
        let tables = self.frequencies.iter().map(|of| of.table(&by_pair(of), compute));
        RopeTables { tables: tables.collect(), dim_order: self.dim_order.as_ref().map(Tensor::shallow_clone) }
    }

    /// A copy that shares the tensors.
    pub(crate) fn shallow_clone(&self) -> Self {
        let frequencies = self.frequencies.iter().map(|of| Frequencies {
            per_pair: of.per_pair.shallow_clone(),
            attention_factor: of.attention_factor,
        });
        Self {
            frequencies: frequencies.collect(),
            dim_order: self.dim_order.as_ref().map(Tensor::shallow_clone),
            axes: self.axes.as_ref().map(Tensor::shallow_clone),
        }
    }
}

/// The dim of a head at each position, with pairs half a head apart and rotated ones first; `None` if that is
/// the stored order.
fn dim_order(config: &ModelConfig) -> Option<Vec<i64>> {
    let (head_dim, rotary_dim) = (config.rope_head_dim() as i64, config.rotary_dim as i64);
    let turned = |pair: i64| match config.rope_pairing {
        RopePairing::Halves => (pair, pair + rotary_dim / 2),
        RopePairing::Neighbours => (2 * pair, 2 * pair + 1),
    };
    let rest = |pair: i64| (rotary_dim + 2 * pair, rotary_dim + 2 * pair + 1);
    let pairs = (0..rotary_dim / 2).map(turned).chain((0..(head_dim - rotary_dim) / 2).map(rest));
    let (first, second): (Vec<i64>, Vec<i64>) = pairs.unzip();
    let order = [first, second].concat();
    (!order.iter().copied().eq(0..head_dim)).then_some(order)
}

impl Frequencies {
    fn new(config: &ModelConfig, rope: &RopeConfig, device: Device) -> Self {
        let rotary_dim = config.rotary_dim as i64;
        let exponents =
            Tensor::arange_start_step(0, rotary_dim, 2, (Kind::Float, Device::Cpu)) / rotary_dim as f64;
        let plain = Tensor::pow_scalar(rope.theta, &exponents).reciprocal();
        let not_turned = (config.rope_head_dim() as i64 - rotary_dim) / 2;
        let per_pair = scaled(&plain, rope, config.rotary_dim as f64).constant_pad_nd([0, not_turned]);
        Self { per_pair: per_pair.to_device(device), attention_factor: rope.scaling.attention_factor() }
    }

    /// The angle of each pair at `position_ids`, i64 [tokens]: f32 [tokens, head_dim / 2].
    fn angles(&self, position_ids: &Tensor) -> Tensor {
        position_ids.to_kind(Kind::Float).unsqueeze(-1) * self.per_pair.unsqueeze(0)
    }

    /// The angle of each pair at `position_ids` of three axes, i64 [3, tokens]: f32 [tokens, head_dim / 2].
    /// The axis of each pair is in `axes`, i64 [head_dim / 2].
    fn by_axes(&self, position_ids: &Tensor, axes: &Tensor) -> Tensor {
        position_ids.to_kind(Kind::Float).index_select(0, axes).tr() * self.per_pair.unsqueeze(0)
    }

    /// Cosines and sines of `angles`, f32 [tokens, head_dim / 2].
    fn table(&self, angles: &Tensor, compute: Kind) -> Table {
        let angles = Tensor::cat(&[angles, angles], -1);
        let cos = angles.cos();
        let cos = if self.attention_factor == 1.0 { cos } else { cos * self.factors() };
        Table {
            cos_td: cos.to_kind(compute),
            sin_td: (angles.sin() * self.attention_factor).to_kind(compute),
        }
    }

    /// Factor of each dim's cosine, f32 [head_dim]: 1 for dims that are not rotated.
    fn factors(&self) -> Tensor {
        let turned = self.per_pair.not_equal(0.0);
        let factors = Tensor::where_scalar(&turned, self.attention_factor, 1.0).to_kind(Kind::Float);
        Tensor::cat(&[&factors, &factors], -1)
    }
}

fn scaled(inverse: &Tensor, rope: &RopeConfig, rotary_dim: f64) -> Tensor {
    match &rope.scaling {
        RopeScaling::None => inverse.shallow_clone(),
        RopeScaling::Linear { factor } => inverse / *factor,
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings: context,
        } => {
            let wavelength = inverse.reciprocal() * TAU;
            let is_long = wavelength.gt(context / low_freq_factor);
            let is_short = wavelength.lt(context / high_freq_factor);
            let stretched = (inverse / *factor).where_self(&is_long, inverse);
            let ramp = (wavelength.reciprocal() * *context - *low_freq_factor)
                / (high_freq_factor - low_freq_factor);
            let between: Tensor = (1.0 - &ramp) * &stretched / *factor + &ramp * &stretched;
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
            let pair_of = |turns: f64| pair_with_turns(rope.theta, turns, *context, rotary_dim);
            let (low, high) = (pair_of(*beta_fast), pair_of(*beta_slow));
            let (low, high) = if *truncate { (low.floor(), high.ceil()) } else { (low, high) };
            let (low, high) = (low.max(0.0), high.min(rotary_dim - 1.0));
            // A ramp of no width would divide by zero.
            let high = if low == high { high + 0.001 } else { high };
            let pairs = Tensor::arange(rotary_dim as i64 / 2, (Kind::Float, Device::Cpu));
            let stretch = ((pairs - low) / (high - low)).clamp(0.0, 1.0);
            let stretched = (inverse.reciprocal() * *factor).reciprocal();
            stretched * &stretch + inverse * (1.0 - &stretch)
        }
        RopeScaling::LongRope { short_factors, .. } => {
            let factors: Vec<f32> = short_factors.iter().map(|factor| *factor as f32).collect();
            (Tensor::from_slice(&factors) * inverse.reciprocal()).reciprocal()
        }
    }
}

/// The pair of dims, as a real number, that makes `turns` rotations over `context` tokens.
fn pair_with_turns(theta: f64, turns: f64, context: f64, rotary_dim: f64) -> f64 {
    rotary_dim * (context / (turns * TAU)).ln() / (2.0 * theta.ln())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(partial: f64) -> ModelConfig {
        let document = json!({
            "architectures": ["Glm4ForCausalLM"], "vocab_size": 8, "hidden_size": 16, "intermediate_size": 8,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
            "partial_rotary_factor": partial, "pad_token_id": 0
        });
        ModelConfig::from_json(&document).unwrap()
    }

    #[test]
    fn rotated_pairs_are_half_a_head_apart() {
        assert_eq!(dim_order(&config(0.5)), Some(vec![0, 2, 4, 6, 1, 3, 5, 7]));
        assert_eq!(dim_order(&config(1.0)), Some(vec![0, 2, 4, 6, 1, 3, 5, 7]));
        let halves = |partial| ModelConfig { rope_pairing: RopePairing::Halves, ..config(partial) };
        assert_eq!(dim_order(&halves(1.0)), None);
        assert_eq!(dim_order(&halves(0.5)), Some(vec![0, 1, 4, 6, 2, 3, 5, 7]));
    }

    #[test]
    fn dims_that_are_not_rotated_are_not_scaled() {
        let mut config = config(0.5);
        config.ropes[0].scaling = RopeScaling::LongRope {
            short_factors: vec![1.0, 2.0],
            long_factors: vec![4.0, 4.0],
            attention_factor: 1.5,
            original_max_position_embeddings: 64.0,
        };
        let tables = Ropes::new(&config, Device::Cpu).at(&Tensor::from_slice(&[0i64]), Kind::Float);
        let cosines = Vec::<f32>::try_from(tables.tables[0].cos_td.view(-1)).unwrap();
        assert_eq!(cosines, [1.5, 1.5, 1.0, 1.0, 1.5, 1.5, 1.0, 1.0]);
    }
}
