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

/// Reads the windows from `layer_types` if present; otherwise every layer whose index `slides` has one.
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
