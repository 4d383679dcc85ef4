//! Rotary embeddings as configured: plain, linearly scaled or Llama 3's. Frequencies are computed where the
//! tensors are; other kinds of scaling are refused here by name.

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
}

const SUPPORTED: &str = "default, linear, llama3";

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
        "llama3" => {
            let original = rope.number("original_max_position_embeddings")?;
            let scaling = RopeScaling::Llama3 {
                factor: positive(rope, "factor")?,
                low_freq_factor: positive(rope, "low_freq_factor")?,
                high_freq_factor: positive(rope, "high_freq_factor")?,
                original_max_position_embeddings: original.unwrap_or(max_positions as f64),
            };
            let RopeScaling::Llama3 { low_freq_factor, high_freq_factor, .. } = scaling else {
                return Ok(scaling);
            };
            if high_freq_factor <= low_freq_factor {
                return Err(rope.invalid("high_freq_factor", "more than low_freq_factor"));
            }
            Ok(scaling)
        }
        _ => Err(rope.unsupported(key, SUPPORTED)),
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
