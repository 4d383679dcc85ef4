//! Gemma 2: Gemma 1 with additional norms after the blocks, softcapped attention scores and logits, and a
//! window in every other layer.

use serde_json::{Value, json};

use super::super::super::fields::Fields;
use super::super::super::windows::{by_layer_types, window, write_layer_types};
use super::super::super::{BlockNorms, ModelConfig, ModelConfigError};
use super::super::{Defaults, Definition, read_attention_bias, write_attention_bias};
use super::gemma;

pub(in crate::families) const GEMMA2: Definition = Definition {
    architecture: "Gemma2ForCausalLM",
    classifier: "Gemma2ForSequenceClassification",
    model_type: "gemma2",
    has_classifier: true,
    has_windows: true,
    defaults: Defaults { num_kv_heads: Some(4), activation_field: "hidden_activation", ..gemma::DEFAULTS },
    shape: |config| {
        gemma::shape(config);
        config.block_norms = BlockNorms::AROUND;
        [config.attention_softcap, config.logit_softcap] = CAPS;
    },
    read: |fields, config| {
        read_scores(fields, config, CAPS)?;
        read_attention_bias(fields, config)?;
        let window = window(fields, Some(4096))?;
        let slides = |layer_idx: usize| layer_idx.is_multiple_of(2);
        config.layer_windows = by_layer_types(fields, config.num_layers, window, slides)?;
        Ok(())
    },
    write: |config, document| {
        write_attention_bias(config, document);
        write_layer_types(config, document);
        write_scores(config, document);
    },
};

/// Default softcaps of attention scores and of logits.
const CAPS: [Option<f64>; 2] = [Some(50.0), Some(30.0)];

/// Reads the scale of attention scores and the softcaps of scores and logits, in Gemma 2 and 3.
pub(super) fn read_scores(
    fields: &Fields<'_>,
    config: &mut ModelConfig,
    [of_scores, of_logits]: [Option<f64>; 2],
) -> Result<(), ModelConfigError> {
    let scalar = positive(fields, "query_pre_attn_scalar", Some(256.0))?;
    config.attention_scale = scalar.map_or(config.attention_scale, |scalar| scalar.powf(-0.5));
    config.attention_softcap = positive(fields, "attn_logit_softcapping", of_scores)?;
    config.logit_softcap = positive(fields, "final_logit_softcapping", of_logits)?;
    Ok(())
}

/// Reads a number above 0; null disables, absent means `default`.
fn positive(fields: &Fields<'_>, field: &str, default: Option<f64>) -> Result<Option<f64>, ModelConfigError> {
    let stated = fields.number(field)?;
    if stated.is_some_and(|number| number <= 0.0) {
        return Err(fields.invalid(field, "a number above 0"));
    }
    Ok(if fields.get(field).is_some() { stated } else { default })
}

pub(super) fn write_scores(config: &ModelConfig, document: &mut Value) {
    document["hidden_activation"] = document["hidden_act"].clone();
    // transformers wants an integer; taking the square root and back gives a float next to it.
    document["query_pre_attn_scalar"] = json!(config.attention_scale.powi(-2).round() as u64);
    document["attn_logit_softcapping"] = json!(config.attention_softcap);
    document["final_logit_softcapping"] = json!(config.logit_softcap);
}
