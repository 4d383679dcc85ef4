//! SmolLM3: Llama without rotary embedding in every fourth layer (NoPE), which may have a sliding window
//! instead.

use serde_json::Value;

use super::super::fields::Fields;
use super::super::windows::{by_layer_types, window, write_layer_types};
use super::super::{ModelConfig, ModelConfigError};
use super::{Defaults, Definition, nothing, read_attention_bias, write_attention_bias};

pub(super) const SMOLLM3: Definition = Definition {
    architecture: "SmolLM3ForCausalLM",
    classifier: "SmolLM3ForSequenceClassification",
    model_type: "smollm3",
    has_classifier: true,
    has_windows: true,
    defaults: Defaults {
        num_kv_heads: Some(4),
        max_positions: 32_768,
        rope_theta: 2_000_000.0,
        tie_word_embeddings: true,
        bos: Some(128_000),
        eos: &[128_001],
        pad: Some(128_004),
        ..Defaults::LLAMA
    },
    shape: nothing,
    read,
    write: |config, document| {
        write_attention_bias(config, document);
        document["mlp_bias"] = config.mlp_bias.into();
        write_layer_types(config, document);
        document["use_sliding_window"] = config.layer_windows.iter().any(Option::is_some).into();
        let turned = |rope: &Option<usize>| u8::from(rope.is_some());
        document["no_rope_layers"] = config.layer_ropes.iter().map(turned).collect();
    },
};

fn read(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<(), ModelConfigError> {
    read_attention_bias(fields, config)?;
    config.mlp_bias = fields.flag("mlp_bias")?.unwrap_or(false);
    let turned = turned_layers(fields, config.num_layers)?;
    config.layer_ropes = turned.iter().map(|turned| turned.then_some(0)).collect();
    let used = fields.flag("use_sliding_window")?.unwrap_or(false);
    let window = window(fields, None)?.filter(|_| used);
    config.layer_windows = by_layer_types(fields, config.num_layers, window, |layer_idx| !turned[layer_idx])?;
    Ok(())
}

/// Reads which layers have a rotary embedding: `no_rope_layers` has a 1 for each such layer. Without it every
/// `no_rope_layer_interval`-th layer has none.
fn turned_layers(fields: &Fields<'_>, num_layers: usize) -> Result<Vec<bool>, ModelConfigError> {
    let Some(list) = fields.list("no_rope_layers")? else {
        let interval = fields.size("no_rope_layer_interval")?.unwrap_or(4);
        return Ok((1..=num_layers).map(|layer| !layer.is_multiple_of(interval)).collect());
    };
    let turned: Option<Vec<bool>> =
        list.iter().map(|entry| Value::as_u64(entry).map(|one| one != 0)).collect();
    turned.filter(|turned| turned.len() >= num_layers).ok_or_else(|| {
        fields.invalid("no_rope_layers", &format!("a list of 0 and 1, one for each of {num_layers} layers"))
    })
}
