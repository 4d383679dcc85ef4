//! Command R and R+: layer norms, parallel attention and feed-forward blocks, scaled logits, rotary embedding
//! of adjacent dimensions, and in R+ a norm of each head of queries and keys.

use serde_json::{Value, json};

use super::super::super::fields::Fields;
use super::super::super::{BlockNorms, ModelConfig, ModelConfigError, NormKind, QkNorm, RopePairing};
use super::super::{Defaults, Definition, read_attention_bias, write_attention_bias};

/// Defaults of Command R and later Command models.
pub(super) const DEFAULTS: Defaults = Defaults {
    max_positions: 8192,
    rope_theta: 500_000.0,
    tie_word_embeddings: true,
    bos: Some(5),
    eos: &[255_001],
    pad: Some(0),
    ..Defaults::LLAMA
};

pub(in crate::families) const COHERE: Definition = Definition {
    architecture: "CohereForCausalLM",
    classifier: "CohereForSequenceClassification",
    model_type: "cohere",
    has_classifier: false,
    has_windows: false,
    defaults: DEFAULTS,
    shape,
    read: |fields, config| {
        read(fields, config)?;
        let is_normed = fields.flag("use_qk_norm")?.unwrap_or(false);
        config.qk_norm = if is_normed { QkNorm::EachHead } else { QkNorm::None };
        Ok(())
    },
    write: |config, document| {
        write(config, document);
        document["use_qk_norm"] = (config.qk_norm == QkNorm::EachHead).into();
    },
};

pub(super) fn shape(config: &mut ModelConfig) {
    config.norm_kind = NormKind::Layer;
    config.block_norms = BlockNorms::ONE;
    config.parallel_blocks = true;
    config.rope_pairing = RopePairing::Neighbours;
    config.logit_scale = 0.0625;
}

pub(super) fn read(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<(), ModelConfigError> {
    read_attention_bias(fields, config)?;
    config.rms_norm_eps = fields.number("layer_norm_eps")?.unwrap_or(1e-5);
    config.logit_scale = fields.number("logit_scale")?.unwrap_or(0.0625);
    Ok(())
}

pub(super) fn write(config: &ModelConfig, document: &mut Value) {
    write_attention_bias(config, document);
    document["layer_norm_eps"] = json!(config.rms_norm_eps);
    document["logit_scale"] = json!(config.logit_scale);
}
