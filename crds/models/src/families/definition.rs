//! Description of a family, and what several families have in common.

use serde_json::Value;

use super::super::fields::Fields;
use super::super::{ModelConfig, ModelConfigError};

/// Description of a family, one constant in its file.
pub(crate) struct Definition {
    /// Class name in `architectures`.
    pub(crate) architecture: &'static str,
    /// Class name of the sequence classifier with the same body.
    pub(crate) classifier: &'static str,
    /// `model_type` of the configuration.
    pub(crate) model_type: &'static str,
    /// Whether transformers has classifiers with this body.
    pub(crate) has_classifier: bool,
    /// Whether layers may have a sliding window.
    pub(crate) has_windows: bool,
    /// Values of fields that `config.json` omits.
    pub(crate) defaults: Defaults,
    /// Sets how every model of the family differs from Llama, whatever its configuration says.
    pub(crate) shape: fn(&mut ModelConfig),
    /// Reads the fields that only some families' configurations have.
    pub(crate) read: fn(&Fields<'_>, &mut ModelConfig) -> Result<(), ModelConfigError>,
    /// Writes the fields that `read` reads.
    pub(crate) write: fn(&ModelConfig, &mut Value),
}

/// Values that a family's configuration class assumes for absent fields.
#[derive(Clone, Copy)]
pub(crate) struct Defaults {
    /// Number of key and value heads; `None`: as many as query heads.
    pub(crate) num_kv_heads: Option<usize>,
    /// Width of a head; `None`: hidden size divided by heads.
    pub(crate) head_dim: Option<usize>,
    pub(crate) max_positions: usize,
    pub(crate) rms_norm_eps: f64,
    pub(crate) rope_theta: f64,
    /// Rotated fraction of a head; `None` in families that rotate whole heads.
    pub(crate) partial_rotary_factor: Option<f64>,
    /// `original_max_position_embeddings` of Phi-3, whose only scaling is LongRoPE; `None` elsewhere.
    pub(crate) longrope_context: Option<usize>,
    /// Activation function of the gate.
    pub(crate) activation: &'static str,
    /// Field of the activation function, `hidden_act` or `hidden_activation`.
    pub(crate) activation_field: &'static str,
    pub(crate) tie_word_embeddings: bool,
    pub(crate) bos: Option<u32>,
    pub(crate) eos: &'static [u32],
    pub(crate) pad: Option<u32>,
}

impl Defaults {
    /// Defaults of Llama.
    pub(crate) const LLAMA: Self = Self {
        num_kv_heads: None,
        head_dim: None,
        max_positions: 2048,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        partial_rotary_factor: None,
        longrope_context: None,
        activation: "silu",
        activation_field: "hidden_act",
        tie_word_embeddings: false,
        bos: Some(1),
        eos: &[2],
        pad: None,
    };
}

/// A [`Definition::shape`] without differences from Llama.
pub(super) fn nothing(_: &mut ModelConfig) {}

/// Reads `attention_bias`, for the query, key, value and output projections.
pub(super) fn read_attention_bias(
    fields: &Fields<'_>,
    config: &mut ModelConfig,
) -> Result<(), ModelConfigError> {
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    (config.qkv_bias, config.output_bias) = (bias, bias);
    Ok(())
}

pub(super) fn write_attention_bias(config: &ModelConfig, document: &mut Value) {
    document["attention_bias"] = config.qkv_bias.into();
}
