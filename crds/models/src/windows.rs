//! Sliding windows: how many tokens the queries of each layer attend to.

use serde_json::Value;

use super::fields::Fields;
use super::{ModelConfig, ModelConfigError};

/// Window of each layer in tokens, the query included; `None` for full attention.
pub(super) type LayerWindows = Vec<Option<usize>>;

/// Returns `sliding_window` where it is present, even if null; otherwise `default`.
pub(super) fn window(fields: &Fields<'_>, default: Option<usize>) -> Result<Option<usize>, ModelConfigError> {
    let stated = fields.length("sliding_window")?;
    Ok(if fields.get("sliding_window").is_some() { stated } else { default })
}

/// Refuses a window in a family without windows, unless it covers the longest sequence. transformers ignores
/// it in a forward pass, but `generate` drops older keys and values from its cache.
pub(super) fn refuse_window(fields: &Fields<'_>, config: &ModelConfig) -> Result<(), ModelConfigError> {
    let stated = fields.get("sliding_window").and_then(Value::as_u64);
    let is_used = fields.flag("use_sliding_window")?.unwrap_or(true);
    let is_short = stated.is_some_and(|window| window < config.max_position_embeddings as u64);
    if is_short && is_used {
        return Err(fields.unsupported("sliding_window", "null, as this family has no windows"));
    }
    Ok(())
}

/// Reads the windows from `layer_types` if present; otherwise every layer for whose index `slides` returns
/// true has one.
pub(super) fn by_layer_types(
    fields: &Fields<'_>,
    num_layers: usize,
    window: Option<usize>,
    slides: impl Fn(usize) -> bool,
) -> Result<LayerWindows, ModelConfigError> {
    match fields.list("layer_types")? {
        Some(types) => of_types(fields, types, num_layers, window),
        None => Ok((0..num_layers).map(|layer_idx| window.filter(|_| slides(layer_idx))).collect()),
    }
}

fn of_types(
    fields: &Fields<'_>,
    types: &[Value],
    num_layers: usize,
    window: Option<usize>,
) -> Result<LayerWindows, ModelConfigError> {
    if types.len() != num_layers {
        return Err(fields.invalid("layer_types", &format!("{num_layers} entries, one a layer")));
    }
    let window_of = |layer_type: &Value| match layer_type.as_str() {
        Some("full_attention") => Ok(None),
        Some("sliding_attention") if window.is_some() => Ok(window),
        Some("sliding_attention") => {
            Err(fields.invalid("layer_types", "full_attention everywhere, as no sliding_window is in use"))
        }
        _ => Err(fields.unsupported("layer_types", "full_attention, sliding_attention")),
    };
    types.iter().map(window_of).collect()
}

/// Writes `sliding_window` and `layer_types`.
pub(super) fn write_layer_types(config: &ModelConfig, document: &mut Value) {
    document["sliding_window"] = config.layer_windows.iter().flatten().next().copied().into();
    let name = |window: &Option<usize>| if window.is_some() { "sliding_attention" } else { "full_attention" };
    document["layer_types"] = config.layer_windows.iter().map(name).collect();
}
