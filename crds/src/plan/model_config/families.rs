//! Model families: their class names, the defaults of their configuration classes in transformers 5, and
//! their differences from Llama. A family is a file, in this folder or in that of its maker, and a line of the
//! list in `spec/families.rs`.

mod cohere;
mod cohere2;
mod deepseek;
mod ernie4_5;
mod exaone4;
mod gemma;
mod gemma2;
mod gemma3;
mod glm;
mod glm4;
mod gpt_oss;
mod granite;
mod llama;
mod mistralai;
mod olmo2;
mod olmo3;
mod phi3;
mod qwen;
mod seed_oss;
mod smollm3;

use serde_json::Value;

use super::fields::Fields;
use super::{Family, ModelConfig, ModelConfigError};
use crate::spec::model_families;

/// Description of a family, one constant in its file.
pub(super) struct Definition {
    /// Class name in `architectures`.
    pub(super) architecture: &'static str,
    /// Class name of the sequence classifier with the same body.
    pub(super) classifier: &'static str,
    /// `model_type` of the configuration.
    pub(super) model_type: &'static str,
    /// Whether transformers has classifiers with this body.
    pub(super) has_classifier: bool,
    /// Whether layers may have a sliding window.
    pub(super) has_windows: bool,
    /// Values of fields that `config.json` omits.
    pub(super) defaults: Defaults,
    /// Sets how every model of the family differs from Llama, whatever its configuration says.
    pub(super) shape: fn(&mut ModelConfig),
    /// Reads the fields that only some families' configurations have.
    pub(super) read: fn(&Fields<'_>, &mut ModelConfig) -> Result<(), ModelConfigError>,
    /// Writes the fields that `read` reads.
    pub(super) write: fn(&ModelConfig, &mut Value),
}

/// Values that a family's configuration class assumes for absent fields.
#[derive(Clone, Copy)]
pub(super) struct Defaults {
    /// Number of key and value heads; `None`: as many as query heads.
    pub(super) num_kv_heads: Option<usize>,
    /// Width of a head; `None`: hidden size divided by heads.
    pub(super) head_dim: Option<usize>,
    pub(super) max_positions: usize,
    pub(super) rms_norm_eps: f64,
    pub(super) rope_theta: f64,
    /// Rotated fraction of a head; `None` in families that rotate whole heads.
    pub(super) partial_rotary_factor: Option<f64>,
    /// `original_max_position_embeddings` of Phi-3, whose only scaling is LongRoPE; `None` elsewhere.
    pub(super) longrope_context: Option<usize>,
    /// Activation function of the gate.
    pub(super) activation: &'static str,
    /// Field of the activation function, `hidden_act` or `hidden_activation`.
    pub(super) activation_field: &'static str,
    pub(super) tie_word_embeddings: bool,
    pub(super) bos: Option<u32>,
    pub(super) eos: &'static [u32],
    pub(super) pad: Option<u32>,
}

impl Defaults {
    /// Defaults of Llama.
    pub(super) const LLAMA: Self = Self {
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

macro_rules! table_of_definitions {
    ($($(#[$doc:meta])* $family:ident: $($definition:ident)::+,)*) => {
        /// All families, in the order in which errors list them.
        const FAMILIES: &[(Family, &Definition)] = &[$((Family::$family, &$($definition)::+)),*];
    };
}

model_families!(table_of_definitions);

impl Family {
    /// Yields all families, in the order in which errors list them.
    pub fn all() -> impl Iterator<Item = Self> {
        FAMILIES.iter().map(|(family, _)| *family)
    }

    /// Class name in `architectures`.
    pub fn architecture(self) -> &'static str {
        self.definition().architecture
    }

    /// Class name of the sequence classifier with the same body.
    pub fn classifier(self) -> &'static str {
        self.definition().classifier
    }

    /// `model_type` of the configuration.
    pub fn model_type(self) -> &'static str {
        self.definition().model_type
    }

    /// Whether transformers has classifiers with bodies of this family.
    pub fn has_classifier(self) -> bool {
        self.definition().has_classifier
    }

    /// Whether models of the family have a vision tower.
    pub fn has_vision(self) -> bool {
        matches!(self, Self::Qwen2Vl | Self::Qwen25Vl | Self::Qwen3Vl)
    }

    /// Whether layers of the family may have a sliding window.
    pub fn has_windows(self) -> bool {
        self.definition().has_windows
    }

    pub(super) fn definition(self) -> &'static Definition {
        let own = FAMILIES.iter().find(|(family, _)| *family == self);
        own.map_or(&llama::LLAMA, |(_, definition)| definition)
    }
}

/// A [`Definition::shape`] without differences from Llama.
fn nothing(_: &mut ModelConfig) {}

/// Reads `attention_bias`, for the query, key, value and output projections.
fn read_attention_bias(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<(), ModelConfigError> {
    let bias = fields.flag("attention_bias")?.unwrap_or(false);
    (config.qkv_bias, config.output_bias) = (bias, bias);
    Ok(())
}

fn write_attention_bias(config: &ModelConfig, document: &mut Value) {
    document["attention_bias"] = config.qkv_bias.into();
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_families_share_a_class_or_a_model_type() {
        let names: BTreeSet<&str> = FAMILIES
            .iter()
            .flat_map(|(_, family)| [family.architecture, family.classifier, family.model_type])
            .collect();
        assert_eq!(names.len(), 3 * FAMILIES.len(), "{names:?}");
    }
}
