//! Shape of a decoder, as its Hugging Face `config.json` states it: the one parser that memory plan, trainer
//! and export share.
//!
//! Families differ in data here, never in code elsewhere: biases, positions of norms, the norm's offset, the
//! activation, windows, rotary embeddings and fused projections are fields. A family is one file of
//! `families/` that sets them. What is not implemented is refused by name; no field that would change a
//! computed value is ignored. Never here: files, tensors, tokenizers.

mod bounds;
mod experts;
mod families;
mod fields;
mod head;
mod latent;
mod multimodal;
mod norms;
mod parse;
mod quantization;
mod rope;
mod routing;
mod shapes;
mod text_model;
mod unknown;
mod windows;
mod write;

use super::model_files::ModelFile;
use crate::spec::ArchitectureSpec;
pub use crate::spec::ModelFamily as Family;
pub use experts::{ExpertForm, ExpertNames, Experts, SharedBlock, is_expert_weight, stored_ranges};
pub use head::{OutputHead, SCORE_BIAS, SCORE_WEIGHT};
pub use latent::{LATENT_NORM_EPS, LatentAttention};
use multimodal::{new_tower, tower, vision};
pub use new_tower::{VISION_TOKENS, VisionTokens};
pub use norms::{BlockNorms, NormKind, QkNorm};
pub use quantization::{BLOCK_SIZES, Quantization, QuantizedPart, QuantizedSize, QuantizedTensor};
pub use rope::{RopeConfig, RopePairing, RopeScaling};
pub use routing::{ExpertGroups, RouterScores, Routing};
pub use shapes::{
    FusedProjections, ParameterCount, ParameterShape, ProductRows, ProjectionShape, TensorShape,
};
pub use tower::{TowerNames, VisionBlocks};
pub use vision::{TOWER, VisionConfig};

/// Activation function of the feed-forward block's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenActivation {
    /// `silu`, also written `swish`.
    Silu,
    /// `gelu_pytorch_tanh`: the tanh approximation of GELU.
    GeluTanh,
    /// `gelu`: the exact GELU by the error function.
    Gelu,
}

/// Everything besides the weights that decides the values that a decoder computes.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Family whose tensor names and defaults the checkpoint follows.
    pub family: Family,
    /// Rows of the embedding; token ids are below it.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward block of a layer without experts.
    pub intermediate_size: usize,
    /// Experts that replace the feed-forward block in some or all layers; `None` in a dense model.
    pub experts: Option<Experts>,
    /// Number of decoder layers.
    pub num_layers: usize,
    /// Number of query heads.
    pub num_heads: usize,
    /// Number of key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of one head, even; need not be `hidden_size / num_heads`.
    pub head_dim: usize,
    /// Latent attention; `None` where each head has its own keys and values. With it `num_kv_heads` equals
    /// `num_heads`, and `head_dim` is the width of a query or key head.
    pub latent: Option<LatentAttention>,
    /// Longest sequence for which the model was made, in tokens.
    pub max_position_embeddings: usize,
    /// Formula of every norm.
    pub norm_kind: NormKind,
    /// Epsilon that is added to the mean square in RMS norms, and to the variance in layer norms.
    pub rms_norm_eps: f64,
    /// Distinct rotary embeddings of the layers.
    pub ropes: Vec<RopeConfig>,
    /// Index into `ropes` for each layer; `None` for a layer without rotary embedding (NoPE).
    pub layer_ropes: Vec<Option<usize>>,
    /// Number of leading dimensions of a head that are rotated; even.
    pub rotary_dim: usize,
    /// Pairing of the dimensions that are rotated together.
    pub rope_pairing: RopePairing,
    /// Activation function of the gate.
    pub hidden_activation: HiddenActivation,
    /// Number of tokens that a query attends to in each layer, itself included; `None` for full attention.
    pub layer_windows: Vec<Option<usize>>,
    /// Whether query, key and value projections have a bias.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub output_bias: bool,
    /// Whether gate, up and down projections have a bias.
    pub mlp_bias: bool,
    /// Projections that are fused into one tensor in the checkpoint.
    pub fused_projections: FusedProjections,
    /// Whether attention and feed-forward block read the same normed input, and both outputs are added to the
    /// residual stream at once.
    pub parallel_blocks: bool,
    /// Positions of norms around attention and feed-forward block.
    pub block_norms: BlockNorms,
    /// Norm of queries and keys before the rotary embedding.
    pub qk_norm: QkNorm,
    /// Offset that is added to a norm's stored weight: 1 for Gemma, 0 elsewhere.
    pub norm_offset: f64,
    /// Factor of embeddings, rounded to the compute dtype.
    pub embedding_scale: f64,
    /// Factor of queries before the softmax; `head_dim^-0.5` unless the family says otherwise.
    pub attention_scale: f64,
    /// Softcap c of attention scores s, as c tanh(s / c); `None` without a cap.
    pub attention_softcap: Option<f64>,
    /// Whether each query head has an attention sink: a learned score without key and value.
    pub attention_sinks: bool,
    /// Factor of the outputs of attention and feed-forward block before the residual sum.
    pub residual_scale: f64,
    /// Factor of the logits.
    pub logit_scale: f64,
    /// Softcap of logits, applied after `logit_scale`; `None` without a cap.
    pub logit_softcap: Option<f64>,
    /// Whether checkpoints may have layers after the last one that predict further tokens. They are not
    /// loaded.
    pub has_prediction_layers: bool,
    /// Quantization of the linear layers; `None` where none is quantized.
    pub quantization: Option<Quantization>,
    /// Vision tower in front of the decoder; `None` for a text model.
    pub vision: Option<VisionConfig>,
    /// Kind of output head.
    pub head: OutputHead,
    /// Whether the head shares the embedding's weight.
    pub tie_word_embeddings: bool,
    /// Standard deviation of newly initialized weights.
    pub initializer_range: f64,
    /// Token that starts a sequence.
    pub bos_token_id: Option<u32>,
    /// Padding token; transformers gives its embedding row no gradient.
    pub pad_token_id: Option<u32>,
    /// Tokens that end a sequence.
    pub eos_token_ids: Vec<u32>,
    /// Settings of `generation_config.json` besides the ending tokens; exports hold them unchanged.
    pub generation: serde_json::Map<String, serde_json::Value>,
}

/// Reason why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelConfigError {
    /// The document is not a JSON object.
    #[error("model configuration: expected a JSON object, got {got}")]
    NotAnObject {
        /// The JSON type found.
        got: &'static str,
    },
    /// The model is of a family that the trainer does not run.
    #[error("model configuration: unknown architecture {got:?}; {parts}; known architectures are {known}")]
    UnknownArchitecture {
        /// Architecture that the configuration names.
        got: String,
        /// Description of the parts of the model that are not supported.
        parts: String,
        /// Known class names, separated by commas.
        known: String,
    },
    /// A required field is absent.
    #[error("model configuration: field `{field}` is missing")]
    MissingField {
        /// The absent field.
        field: String,
    },
    /// A field has the wrong type or is out of range.
    #[error("model configuration: field `{field}`: expected {expected}, got {got}")]
    InvalidField {
        /// Name of the field in `config.json`.
        field: String,
        /// Values that would have been accepted.
        expected: String,
        /// The JSON value found.
        got: String,
    },
    /// A field asks for something that is not implemented and would change computed values.
    #[error("model configuration: field `{field}`: {got} is not supported, supported: {supported}")]
    Unsupported {
        /// Name of the field in `config.json`.
        field: String,
        /// The JSON value found.
        got: String,
        /// Values that are supported.
        supported: String,
    },
}

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
        let stored = OutputHead::of_classifier(document).map(|(stored, _)| stored);
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
mod latent_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vision_tests;
