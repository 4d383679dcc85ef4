//! Unsupported model families: names the unsupported parts that a configuration mentions.

use serde_json::Value;

use super::fields::Fields;

/// Fields that describe a part that no supported family has, with the part's name.
const PARTS: &[(&str, &str)] = &[
    ("linear_num_value_heads", "gated delta nets"),
    ("linear_attn_config", "linear attention"),
    ("mamba_d_state", "state-space layers"),
    ("mamba_num_heads", "state-space layers"),
    ("ssm_state_size", "state-space layers"),
    ("state_size", "state-space layers"),
    ("conv_L_cache", "short convolutions"),
    ("lru_width", "recurrent layers"),
    ("index_topk", "attention to an index's choice of tokens"),
    ("altup_num_inputs", "alternating updates of the residual stream"),
    ("hc_mult", "several residual streams"),
    ("vision_config", "a vision tower of its own"),
    ("audio_config", "an audio tower"),
    ("n_positions", "learned absolute positions"),
    ("alibi", "positions by ALiBi"),
    ("new_decoder_architecture", "fused attention and parallel blocks of Falcon"),
];

/// Fields that hold the configuration of a language model within that of a larger one.
const INNER: [&str; 4] = ["text_config", "llm_config", "language_config", "thinker_config"];

/// Supported types of layers.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// Names of the supported activations.
pub(super) const ACTIVATIONS: [&str; 6] =
    ["silu", "swish", "gelu", "gelu_pytorch_tanh", "gelu_new", "gelu_fast"];

/// Returns the unsupported parts with their fields, such as `gated delta nets (linear_num_value_heads)`,
/// those of a language model within a larger one included. An empty list means that every part occurs in a
/// supported family, but not in this combination.
pub(super) fn unknown_parts(fields: &Fields<'_>) -> Vec<String> {
    let mut parts = own_parts(fields);
    for name in INNER.into_iter().filter(|name| fields.get(name).is_some_and(Value::is_object)) {
        for part in fields.object(name).iter().flat_map(unknown_parts) {
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
    }
    parts
}

fn own_parts(fields: &Fields<'_>) -> Vec<String> {
    let is_there = |field: &str| {
        let absent = [Value::Null, Value::Bool(false)];
        fields.get(field).is_some_and(|value| !absent.contains(value))
    };
    let mut parts: Vec<String> = PARTS
        .iter()
        .filter(|(field, _)| is_there(field))
        .map(|(field, part)| format!("{part} (`{field}`)"))
        .collect();
    if is_there("is_encoder_decoder") {
        parts.push("an encoder (`is_encoder_decoder`)".to_owned());
    }
    for field in ["hidden_act", "hidden_activation"] {
        let name = fields.get(field).and_then(Value::as_str).filter(|name| !ACTIVATIONS.contains(name));
        parts.extend(name.map(|name| format!("the activation {name:?} (`{field}`)")));
    }
    let types = fields.get("layer_types").and_then(Value::as_array);
    let mut unknown: Vec<&str> = types.into_iter().flatten().filter_map(Value::as_str).collect();
    unknown.retain(|name| !LAYER_TYPES.contains(name));
    unknown.sort_unstable();
    unknown.dedup();
    parts.extend(unknown.iter().map(|name| format!("layers of {name:?} (`layer_types`)")));
    parts
}

/// Describes the parts as a clause that follows the name of the architecture.
pub(super) fn described(parts: &[String]) -> String {
    match parts {
        [] => "its fields name no part that is not known, but how its layers combine them is not".to_owned(),
        parts => format!("not known of it: {}", parts.join(", ")),
    }
}
