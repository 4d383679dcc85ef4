//! Configuration of rotary embeddings: plain, linearly scaled, Llama 3's, YaRN or LongRoPE, one for all
//! layers or separate ones for layers with and without a window. Frequencies are computed where the tensors
//! are; other kinds of scaling are refused here by name.

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::{ModelConfig, ModelConfigError, RopeConfig, RopeScaling};

const SUPPORTED: &str = "default, linear, llama3, yarn, longrope";
/// Kinds of scaling of Phi-3.
const SUPPORTED_BY_PHI3: &str = "default, longrope";

/// Values outside of the rotary embedding's own fields on which parsing depends.
#[derive(Clone, Copy)]
pub(super) struct Context {
    pub(super) default_theta: f64,
    pub(super) max_positions: usize,
    pub(super) rotary_dim: usize,
    /// Default of Phi-3's `original_max_position_embeddings`; `None` in other families.
    pub(super) longrope_context: Option<usize>,
}

/// Reads the rotary embedding that all layers share. transformers 4 stores it in `rope_theta` and
/// `rope_scaling`, 5 in `rope_parameters`. As in transformers a non-empty `rope_scaling` takes precedence.
pub(super) fn parse(fields: &Fields<'_>, context: Context) -> Result<RopeConfig, ModelConfigError> {
    let rope = rope_object(fields)?;
    let theta = fields.number("rope_theta")?.unwrap_or(context.default_theta);
    if BY_WINDOW.iter().any(|key| rope.get(key).is_some()) {
        // The family reads both embeddings, or refuses them.
        return Ok(RopeConfig { theta, scaling: RopeScaling::None });
    }
    rope_of(fields, &rope, theta, context)
}

/// Returns the object with the fields of the rotary embedding, of a model or of its tower.
pub(super) fn rope_object<'f>(fields: &'f Fields<'_>) -> Result<Fields<'f>, ModelConfigError> {
    let is_old = fields.get("rope_scaling").and_then(Value::as_object).is_some_and(|rope| !rope.is_empty());
    fields.object(if is_old { "rope_scaling" } else { "rope_parameters" })
}

/// Refuses separate embeddings by layer type in a family that has one for all.
pub(super) fn refuse_by_window(fields: &Fields<'_>) -> Result<(), ModelConfigError> {
    let rope = rope_object(fields)?;
    match BY_WINDOW.into_iter().find(|key| rope.get(key).is_some()) {
        Some(layered) => Err(rope.unsupported(layered, "one set of rope parameters for all layers")),
        None => Ok(()),
    }
}

/// Field of the fraction of a head's dimensions that are rotated.
const PARTIAL: &str = "partial_rotary_factor";
/// Keys of `rope_parameters` for layers without and with a window, where their embeddings differ.
const BY_WINDOW: [&str; 2] = ["full_attention", "sliding_attention"];

/// Reads separate embeddings for layers with full attention and with a window. transformers 4 stores the
/// latter's base wavelength in the field `local` if the family has one; its default is `default_local`.
///
/// transformers 5.17 reads neither a top-level `original_max_position_embeddings` nor partly rotated heads
/// where embeddings differ by layer.
pub(super) fn by_window(
    fields: &Fields<'_>,
    config: &mut ModelConfig,
    local: Option<&str>,
    default_local: f64,
) -> Result<(), ModelConfigError> {
    let both = fields.object("rope_parameters")?;
    let is_nested = both.get(BY_WINDOW[0]).is_some();
    let global = if is_nested { both.object(BY_WINDOW[0])? } else { rope_object(fields)? };
    let sliding = both.object(BY_WINDOW[1])?;
    for rope in [&global, &sliding] {
        if rope.number(PARTIAL)?.is_some_and(|factor| factor != 1.0) {
            return Err(rope.unsupported(PARTIAL, "1.0, as heads of this family are rotated as a whole"));
        }
    }
    let context = Context {
        default_theta: default_local,
        max_positions: config.max_position_embeddings,
        rotary_dim: config.rotary_dim,
        longrope_context: None,
    };
    if let Some(first) = config.ropes.first_mut() {
        *first = rope_of(&global, &global, first.theta, context)?;
    }
    let stated_local = local.map_or(Ok(None), |local| fields.number(local))?;
    config.ropes.push(rope_of(&sliding, &sliding, stated_local.unwrap_or(default_local), context)?);
    config.layer_ropes = config.layer_windows.iter().map(|window| Some(window.is_some().into())).collect();
    Ok(())
}

/// Writes `rope_parameters` as [`by_window`] reads it.
pub(super) fn write_by_window(config: &ModelConfig, document: &mut Value) {
    let both = BY_WINDOW.into_iter().zip(&config.ropes);
    let both: Map<String, Value> = both.map(|(key, rope)| (key.to_owned(), parameters(rope))).collect();
    document["rope_parameters"] = both.into();
}

fn rope_of(
    fields: &Fields<'_>,
    rope: &Fields<'_>,
    default_theta: f64,
    context: Context,
) -> Result<RopeConfig, ModelConfigError> {
    let theta = rope.number("rope_theta")?.unwrap_or(default_theta);
    if theta <= 0.0 {
        return Err(fields.invalid("rope_theta", "a number above 0"));
    }
    Ok(RopeConfig { theta, scaling: scaling(fields, rope, context)? })
}

fn scaling(
    fields: &Fields<'_>,
    rope: &Fields<'_>,
    context: Context,
) -> Result<RopeScaling, ModelConfigError> {
    let key = if rope.get("rope_type").is_some() { "rope_type" } else { "type" };
    let kind = rope.text(key)?.unwrap_or("default");
    if context.longrope_context.is_some() {
        return match kind {
            "default" => Ok(RopeScaling::None),
            // Phi-3 was published with `su` and `yarn`, which transformers reads as LongRoPE.
            "longrope" | "su" | "yarn" => long_rope(fields, rope, context),
            _ => Err(rope.unsupported(key, SUPPORTED_BY_PHI3)),
        };
    }
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: positive(rope, "factor")? }),
        "llama3" => llama3(rope, original_context(fields, rope, context)?),
        "yarn" => yarn(rope, original_context(fields, rope, context)?),
        "longrope" => long_rope(fields, rope, context),
        _ => Err(rope.unsupported(key, SUPPORTED)),
    }
}

fn long_rope(
    fields: &Fields<'_>,
    rope: &Fields<'_>,
    context: Context,
) -> Result<RopeScaling, ModelConfigError> {
    let factors = |field: &str| {
        let expected = format!("a list of {} numbers above 0, one a pair of dims", context.rotary_dim / 2);
        let list = rope.list(field)?.ok_or_else(|| rope.missing(field))?;
        let factors: Vec<f64> =
            list.iter().filter_map(Value::as_f64).filter(|factor| *factor > 0.0).collect();
        let fits = factors.len() == list.len() && factors.len() == context.rotary_dim / 2;
        if fits { Ok(factors) } else { Err(rope.invalid(field, &expected)) }
    };
    let original = original_context(fields, rope, context)?;
    let stretch = match rope.number("factor")? {
        Some(factor) => factor,
        None => context.max_positions as f64 / original,
    };
    let sharpened = if stretch <= 1.0 { 1.0 } else { (1.0 + stretch.ln() / original.ln()).sqrt() };
    Ok(RopeScaling::LongRope {
        short_factors: factors("short_factor")?,
        long_factors: factors("long_factor")?,
        attention_factor: rope.number("attention_factor")?.unwrap_or(sharpened),
        original_max_position_embeddings: original,
    })
}

/// Formats a rotary embedding as transformers 5 does.
pub(super) fn parameters(rope: &RopeConfig) -> Value {
    let mut parameters = scaling_json(&rope.scaling);
    if parameters.is_null() {
        parameters = json!({"rope_type": "default"});
    }
    parameters["rope_theta"] = json!(rope.theta);
    parameters
}

/// Formats the scaling of frequencies as transformers 4 does; null where there is none.
pub(super) fn scaling_json(scaling: &RopeScaling) -> Value {
    match scaling {
        RopeScaling::None => Value::Null,
        RopeScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": *original_max_position_embeddings as u64,
        }),
        RopeScaling::Yarn {
            factor,
            attention_factor,
            beta_fast,
            beta_slow,
            truncate,
            scale_all_dims,
            original_max_position_embeddings,
        } => {
            let mut yarn = json!({
            "rope_type": "yarn",
            "factor": factor,
            "attention_factor": attention_factor,
            "beta_fast": beta_fast,
            "beta_slow": beta_slow,
            "truncate": truncate,
            "original_max_position_embeddings": *original_max_position_embeddings as u64,
            });
            if let Some(scale) = scale_all_dims {
                yarn["mscale_all_dim"] = json!(scale);
            }
            yarn
        }
        RopeScaling::LongRope {
            short_factors,
            long_factors,
            attention_factor,
            original_max_position_embeddings,
        } => json!({
            "rope_type": "longrope",
            "short_factor": short_factors,
            "long_factor": long_factors,
            "attention_factor": attention_factor,
            "original_max_position_embeddings": *original_max_position_embeddings as u64,
        }),
    }
}

fn llama3(rope: &Fields<'_>, original: f64) -> Result<RopeScaling, ModelConfigError> {
    let (low_freq_factor, high_freq_factor) =
        (positive(rope, "low_freq_factor")?, positive(rope, "high_freq_factor")?);
    if high_freq_factor <= low_freq_factor {
        return Err(rope.invalid("high_freq_factor", "more than low_freq_factor"));
    }
    Ok(RopeScaling::Llama3 {
        factor: positive(rope, "factor")?,
        low_freq_factor,
        high_freq_factor,
        original_max_position_embeddings: original,
    })
}

fn yarn(rope: &Fields<'_>, original: f64) -> Result<RopeScaling, ModelConfigError> {
    let factor = positive(rope, "factor")?;
    let sharpness = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
    let attention_factor = match (rope.number("attention_factor")?, scales(rope)?) {
        (Some(stated), _) => stated,
        (None, Some((scale, scale_all_dims))) => sharpness(scale) / sharpness(scale_all_dims),
        (None, None) => sharpness(1.0),
    };
    // As in transformers, zero counts as absent.
    let turns =
        |field: &str, default: f64| Ok(rope.number(field)?.filter(|turns| *turns != 0.0).unwrap_or(default));
    Ok(RopeScaling::Yarn {
        factor,
        attention_factor,
        beta_fast: turns("beta_fast", 32.0)?,
        beta_slow: turns("beta_slow", 1.0)?,
        truncate: rope.flag("truncate")?.unwrap_or(true),
        scale_all_dims: rope.number("mscale_all_dim")?.filter(|scale| *scale != 0.0),
        original_max_position_embeddings: original,
    })
}

/// Reads DeepSeek's `mscale` and `mscale_all_dim`, which apply only together and only if not zero.
fn scales(rope: &Fields<'_>) -> Result<Option<(f64, f64)>, ModelConfigError> {
    let scale = rope.number("mscale")?.filter(|scale| *scale != 0.0);
    Ok(scale.zip(rope.number("mscale_all_dim")?.filter(|scale| *scale != 0.0)))
}

/// Reads the context length in tokens before scaling. As in transformers, a top-level field has priority over
/// the one in `rope_scaling`; the default is `max_position_embeddings`. Phi-3 has a default at the top level,
/// so that the one in `rope_scaling` never applies.
fn original_context(
    fields: &Fields<'_>,
    rope: &Fields<'_>,
    context: Context,
) -> Result<f64, ModelConfigError> {
    const FIELD: &str = "original_max_position_embeddings";
    let num_places = if context.longrope_context.is_some() { 1 } else { 2 };
    for stated in [fields, rope].into_iter().take(num_places) {
        match stated.number(FIELD)? {
            Some(original) if original > 1.0 => return Ok(original),
            Some(_) => return Err(stated.invalid(FIELD, "a number above 1")),
            None => {}
        }
    }
    Ok(context.longrope_context.unwrap_or(context.max_positions) as f64)
}

fn positive(rope: &Fields<'_>, field: &str) -> Result<f64, ModelConfigError> {
    match rope.number(field)? {
        Some(value) if value > 0.0 => Ok(value),
        Some(_) => Err(rope.invalid(field, "a number above 0")),
        None => Err(rope.missing(field)),
    }
}

/// Reads the number of rotated dimensions of a head: the fraction `partial_rotary_factor`, which is either at
/// the top level or among the fields of the rotary embedding. Families without a `default` rotate full heads:
/// for them transformers ignores the field, or computes tables of a wrong size.
pub(super) fn rotary_dim(
    fields: &Fields<'_>,
    head_dim: usize,
    default: Option<f64>,
) -> Result<usize, ModelConfigError> {
    let rope = rope_object(fields)?;
    let factor = rope.number(PARTIAL)?.or(fields.number(PARTIAL)?).or(default).unwrap_or(1.0);
    let place = if rope.get(PARTIAL).is_some() { &rope } else { fields };
    if default.is_none() && factor != 1.0 {
        return Err(place.unsupported(PARTIAL, "1.0, as heads of this family are rotated as a whole"));
    }
    let dims = (head_dim as f64 * factor) as usize;
    if !(factor > 0.0 && factor <= 1.0) || dims == 0 || !dims.is_multiple_of(2) {
        let expected = format!("above 0 and at most 1, an even number of the head's {head_dim} dims");
        return Err(place.invalid(PARTIAL, &expected));
    }
    Ok(dims)
}
