//! Rotary embeddings as configured: plain, linearly scaled, Llama 3's or YaRN. Frequencies are computed where
//! the tensors are; other kinds of scaling are refused here by name.

use serde_json::Value;

use super::ModelConfigError;
use super::fields::Fields;

/// How rotary frequencies are stretched for contexts longer than the pre-training ones.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// The frequencies of Su et al. (2021), unchanged.
    None,
    /// All frequencies divided by `factor` (kaiokendev's position interpolation).
    Linear {
        /// Stretch of the context.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths divided by `factor`, short ones kept, a ramp between.
    Llama3 {
        /// Stretch of long wavelengths.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are stretched whole.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context of the pre-training in tokens.
        original_max_position_embeddings: f64,
    },
    /// YaRN (Peng et al. 2023, arXiv 2309.00071): pairs of dims that turn often in the original context are
    /// kept, those that turn seldom are stretched, with a ramp between.
    Yarn {
        /// Stretch of the context.
        factor: f64,
        /// What cosines and sines are multiplied with, to keep the softmax as sharp as before.
        attention_factor: f64,
        /// Turns in the original context above which a pair is kept.
        beta_fast: f64,
        /// Turns in the original context below which a pair is stretched whole.
        beta_slow: f64,
        /// Whether the ramp's ends are rounded outward to whole pairs.
        truncate: bool,
        /// Context of the pre-training in tokens.
        original_max_position_embeddings: f64,
    },
}

impl RopeScaling {
    /// What cosines and sines are multiplied with; 1 for all but YaRN.
    pub fn attention_factor(&self) -> f64 {
        match self {
            Self::Yarn { attention_factor, .. } => *attention_factor,
            _ => 1.0,
        }
    }
}

const SUPPORTED: &str = "default, linear, llama3, yarn";

/// Base wavelength and scaling; transformers 4 keeps them in `rope_theta` and `rope_scaling`, 5 in
/// `rope_parameters`. As in transformers a non-empty `rope_scaling` wins over `rope_parameters`.
pub(super) fn parse(
    fields: &Fields<'_>,
    max_positions: usize,
) -> Result<(f64, RopeScaling), ModelConfigError> {
    let name = if has_entries(fields.get("rope_scaling")) { "rope_scaling" } else { "rope_parameters" };
    let rope = fields.object(name)?;
    if let Some(layered) = ["full_attention", "sliding_attention"].iter().find(|key| rope.get(key).is_some())
    {
        return Err(rope.unsupported(layered, "one set of rope parameters for all layers"));
    }
    refuse_partial_rotation(fields)?;
    refuse_partial_rotation(&rope)?;
    let theta = match rope.number("rope_theta")? {
        Some(theta) => theta,
        None => fields.number("rope_theta")?.unwrap_or(10_000.0),
    };
    if theta <= 0.0 {
        return Err(fields.invalid("rope_theta", "a number above 0"));
    }
    Ok((theta, scaling(&rope, max_positions)?))
}

fn scaling(rope: &Fields<'_>, max_positions: usize) -> Result<RopeScaling, ModelConfigError> {
    let key = if rope.get("rope_type").is_some() { "rope_type" } else { "type" };
    match rope.text(key)?.unwrap_or("default") {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: positive(rope, "factor")? }),
        "llama3" => llama3(rope, max_positions),
        "yarn" => yarn(rope, max_positions),
        _ => Err(rope.unsupported(key, SUPPORTED)),
    }
}

fn llama3(rope: &Fields<'_>, max_positions: usize) -> Result<RopeScaling, ModelConfigError> {
    let (low_freq_factor, high_freq_factor) =
        (positive(rope, "low_freq_factor")?, positive(rope, "high_freq_factor")?);
    if high_freq_factor <= low_freq_factor {
        return Err(rope.invalid("high_freq_factor", "more than low_freq_factor"));
    }
    Ok(RopeScaling::Llama3 {
        factor: positive(rope, "factor")?,
        low_freq_factor,
        high_freq_factor,
        original_max_position_embeddings: original_context(rope, max_positions)?,
    })
}

fn yarn(rope: &Fields<'_>, max_positions: usize) -> Result<RopeScaling, ModelConfigError> {
    let factor = positive(rope, "factor")?;
    let sharpness = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
    let attention_factor = match (rope.number("attention_factor")?, scales(rope)?) {
        (Some(stated), _) => stated,
        (None, Some((scale, scale_all_dims))) => sharpness(scale) / sharpness(scale_all_dims),
        (None, None) => sharpness(1.0),
    };
    // As in transformers a zero counts as not stated.
    let turns =
        |field: &str, default: f64| Ok(rope.number(field)?.filter(|turns| *turns != 0.0).unwrap_or(default));
    Ok(RopeScaling::Yarn {
        factor,
        attention_factor,
        beta_fast: turns("beta_fast", 32.0)?,
        beta_slow: turns("beta_slow", 1.0)?,
        truncate: rope.flag("truncate")?.unwrap_or(true),
        original_max_position_embeddings: original_context(rope, max_positions)?,
    })
}

/// DeepSeek's `mscale` and `mscale_all_dim`, which count only together and only above zero.
fn scales(rope: &Fields<'_>) -> Result<Option<(f64, f64)>, ModelConfigError> {
    let scale = rope.number("mscale")?.filter(|scale| *scale != 0.0);
    Ok(scale.zip(rope.number("mscale_all_dim")?.filter(|scale| *scale != 0.0)))
}

fn original_context(rope: &Fields<'_>, max_positions: usize) -> Result<f64, ModelConfigError> {
    match rope.get("original_max_position_embeddings") {
        None => Ok(max_positions as f64),
        Some(_) => positive(rope, "original_max_position_embeddings"),
    }
}

fn positive(rope: &Fields<'_>, field: &str) -> Result<f64, ModelConfigError> {
    match rope.number(field)? {
        Some(value) if value > 0.0 => Ok(value),
        Some(_) => Err(rope.invalid(field, "a number above 0")),
        None => Err(rope.missing(field)),
    }
}

fn refuse_partial_rotation(fields: &Fields<'_>) -> Result<(), ModelConfigError> {
    match fields.number("partial_rotary_factor")? {
        Some(factor) if factor != 1.0 => Err(fields.unsupported("partial_rotary_factor", "1.0")),
        _ => Ok(()),
    }
}

fn has_entries(value: Option<&Value>) -> bool {
    value.and_then(Value::as_object).is_some_and(|entries| !entries.is_empty())
}
