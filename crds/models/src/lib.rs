//! Configurations of decoders, as Hugging Face's `config.json` has them: shapes, tensor names, and how ranks
//! shard the tensors. Memory plan, trainer and export share this one parser.
//!
//! Families differ only in data: biases, positions of norms, the norm's offset, the activation, windows,
//! rotary embeddings and fused projections are fields, which one file of `families/` sets for each family. No
//! other code depends on the family. Unsupported features are refused by name, and no field that would change
//! a computed value is ignored. This crate reads no files and knows no tensors and tokenizers.

mod config_json;
mod constants;
mod experts;
mod facts;
mod families;
mod head;
mod latent;
mod model_files;
mod multimodal;
mod parts;
mod quantization;
mod rope;
mod routing;
mod shapes;
mod windows;

pub use rlt_api::resolved::OutputHead;
use rlt_api::spec::ArchitectureSpec;
// The type of a family belongs to the API, because a manifest can choose one.
pub use rlt_api::spec::ModelFamily as Family;

use config_json::{fields, parse, text_model, write};
pub use constants::{KEPT_FEATURES_BYTES, READ_CHUNK_NUMBERS};
pub use experts::{is_expert_weight, stored_ranges};
pub use head::{HEAD_WEIGHT, SCORE_BIAS, SCORE_WEIGHT, classifier_head};
pub use latent::LATENT_NORM_EPS;
pub use model_files::{ModelFile, RefusedField};
use multimodal::{new_tower, tower, vision};
pub use new_tower::{VISION_TOKENS, VisionTokens};
pub use parts::{
    BlockNorms, ExpertForm, ExpertGroups, ExpertNames, Experts, FusedProjections, HiddenActivation,
    LatentAttention, ModelConfig, ModelConfigError, NormKind, ParameterShape, ProductRows, ProjectionShape,
    QkNorm, Quantization, RopeConfig, RopePairing, RopeScaling, RouterScores, Routing, SharedBlock, TOWER,
    TensorShape, VisionBlocks, VisionConfig,
};
pub use quantization::{QuantizedPart, QuantizedSize, QuantizedTensor};
pub use shapes::{EMBEDDING_WEIGHT, ModelSharding, ParameterCount};
pub use tower::TowerNames;

impl ModelConfig {
    /// Reads the content of a `config.json`, in the form of transformers 4 (`rope_theta`, `rope_scaling`) or
    /// 5 (`rope_parameters`). [`ModelFile::Config`] lists all fields with their treatment; those that would
    /// change computed values and are not supported are refused.
    ///
    /// # Errors
    /// [`ModelConfigError`], naming the field.
    pub fn from_json(document: &serde_json::Value) -> Result<Self, ModelConfigError> {
        match text_model::text_config(document) {
            Some(text) => {
                parse::refuse_what_changes_numbers(&fields::Fields::root(document)?)?;
                parse::parse(&text)
            }
            None => parse::parse(document),
        }
    }

    /// Returns whether [`Self::from_json`] reads only the text model of a model with a vision tower.
    pub fn leaves_tower_out(document: &serde_json::Value) -> bool {
        text_model::leaves_tower_out(document)
    }

    /// Reads the body of a classifier (`...ForSequenceClassification`, `...ForTokenClassification`) from its
    /// `config.json`, without the classifier's head.
    ///
    /// # Errors
    /// [`ModelConfigError`], naming the field.
    pub fn from_classifier_json(document: &serde_json::Value) -> Result<Self, ModelConfigError> {
        parse::classifier(document)
    }

    /// Reads the model that is trained with `head` from the `config.json` of its initial weights: a
    /// classifier's, if it has this head, or a language model's, whose head is replaced.
    ///
    /// # Errors
    /// [`ModelConfigError`], naming the field; a classifier with another head than `head` is refused.
    pub fn from_json_with_head(
        document: &serde_json::Value,
        head: OutputHead,
    ) -> Result<Self, ModelConfigError> {
        let stored = classifier_head(document).map(|(stored, _)| stored);
        let body = if stored == Some(head) { parse::classifier(document) } else { Self::from_json(document) };
        Ok(body?.with_head(head))
    }

    /// Builds the configuration of a model that is initialized from scratch, with the family's own biases,
    /// norms and activation; `vocab_size`, end tokens and image tokens come from its tokenizer.
    ///
    /// # Errors
    /// [`ModelConfigError`] when the sizes do not fit together; fields are named as in `config.json`.
    pub fn from_architecture(
        spec: &ArchitectureSpec,
        vocab_size: usize,
        eos_token_ids: &[u32],
        vision_tokens: Option<VisionTokens>,
    ) -> Result<Self, ModelConfigError> {
        parse::from_architecture(spec, vocab_size, eos_token_ids, vision_tokens)
    }

    /// Writes a `config.json` that transformers 4 and 5 both read as this model, with `dtype` (`float32`,
    /// `bfloat16`, ...) as the stored type of the weights.
    pub fn to_json(&self, dtype: &str) -> serde_json::Value {
        write::to_json(self, dtype)
    }

    /// Takes the end tokens from a `generation_config.json`, which overrides `config.json` in transformers'
    /// generation, and keeps its other settings. Where it names no end tokens, those of `config.json` stay.
    ///
    /// # Errors
    /// [`ModelConfigError::InvalidField`] when `eos_token_id` is neither an id nor a list of ids.
    pub fn with_generation_config(mut self, document: &serde_json::Value) -> Result<Self, ModelConfigError> {
        let ids = parse::token_ids(document, "eos_token_id")?;
        if let Some(ids) = ids {
            self.eos_token_ids = ids;
        }
        if let Some(settings) = document.as_object() {
            let mut settings = ModelFile::GenerationConfig.exported_fields(settings);
            settings.retain(|field, value| match field.as_str() {
                // Written from the fields of `config.json`, unless they differ.
                "bos_token_id" => value.as_u64() != self.bos_token_id.map(u64::from),
                "pad_token_id" => value.as_u64() != self.pad_token_id.map(u64::from),
                _ => true,
            });
            self.generation = settings;
        }
        Ok(self)
    }

    /// Writes a `generation_config.json` with the settings of the one that was read. Its padding and starting
    /// tokens take precedence over those of `config.json`, as in transformers.
    pub fn generation_json(&self) -> serde_json::Value {
        let mut document = serde_json::json!({
            "bos_token_id": self.bos_token_id,
            "eos_token_id": write::eos(&self.eos_token_ids),
            "pad_token_id": self.pad_token_id,
        });
        if let Some(fields) = document.as_object_mut() {
            fields.extend(self.generation.clone());
        }
        document
    }

    /// Longest sequence in tokens for which the frequencies of the rotary embeddings hold; LongRoPE uses
    /// others for longer sequences. `None` without a limit.
    pub fn longest_sequence(&self) -> Option<u64> {
        self.ropes.iter().filter_map(|rope| rope.scaling.longest_sequence()).min()
    }
}

#[cfg(test)]
mod tests;
