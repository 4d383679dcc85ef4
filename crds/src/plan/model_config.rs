//! A decoder's shape, as its Hugging Face `config.json` states it: the one reading that memory plan, trainer
//! and export share.
//!
//! Families differ in data here, never in code elsewhere: biases, the places of norms, the norm's offset, the
//! activation, windows, rotary embeddings and projections that share a tensor are fields. A family is one
//! file of `families/` that sets them. What is not implemented is refused by name; nothing that would change
//! a number is skipped. Never here: files, tensors, tokenizers.

mod bounds;
mod experts;
mod families;
mod fields;
mod head;
mod latent;
mod new_tower;
mod norms;
mod parse;
mod quantization;
mod rope;
mod routing;
mod shapes;
mod tower;
mod unknown;
mod vision;
mod windows;
mod write;

use crate::spec::ArchitectureSpec;
pub use crate::spec::ModelFamily as Family;
pub use experts::{ExpertForm, ExpertNames, Experts, SharedBlock, is_expert_weight, stored_ranges};
pub use head::{OutputHead, SCORE_BIAS, SCORE_WEIGHT};
pub use latent::{LATENT_NORM_EPS, LatentAttention};
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

/// The function on the gate of the feed-forward block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HiddenActivation {
    /// `silu`, also written `swish`.
    Silu,
    /// `gelu_pytorch_tanh`: the tanh approximation of GELU.
    GeluTanh,
    /// `gelu`: the exact GELU by the error function.
    Gelu,
}

/// Everything that decides which numbers a decoder computes, besides its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Which family's names and defaults the checkpoint follows.
    pub family: Family,
    /// Rows of the embedding; token ids are below it.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the feed-forward block of a layer without experts.
    pub intermediate_size: usize,
    /// What layers have in place of that block; `None` where all of them have it.
    pub experts: Option<Experts>,
    /// Number of decoder layers.
    pub num_layers: usize,
    /// Number of query heads.
    pub num_heads: usize,
    /// Number of key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of one head, even; need not be `hidden_size / num_heads`.
    pub head_dim: usize,
    /// Latent attention; `None` where heads have keys and values of their own. With it `num_kv_heads` is
    /// `num_heads`, and `head_dim` the width of a head of queries and keys.
    pub latent: Option<LatentAttention>,
    /// Longest sequence the model was made for, in tokens.
    pub max_position_embeddings: usize,
    /// What every norm computes.
    pub norm_kind: NormKind,
    /// Added to the mean square in every RMS norm, and to the variance in every layer norm.
    pub rms_norm_eps: f64,
    /// The rotary embeddings that layers use, each once.
    pub ropes: Vec<RopeConfig>,
    /// One entry a layer: which of `ropes` turns its queries and keys; `None` turns nothing (NoPE).
    pub layer_ropes: Vec<Option<usize>>,
    /// How many dims of a head the rotary embedding turns, its first ones; even.
    pub rotary_dim: usize,
    /// Which of these dims it turns together.
    pub rope_pairing: RopePairing,
    /// The gate's function.
    pub hidden_activation: HiddenActivation,
    /// One entry a layer: how many tokens a query sees, itself included; `None` sees all before it.
    pub layer_windows: Vec<Option<usize>>,
    /// Whether query, key and value projections have a bias.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub output_bias: bool,
    /// Whether gate, up and down projections have a bias.
    pub mlp_bias: bool,
    /// Which projections share a tensor.
    pub fused_projections: FusedProjections,
    /// Whether the feed-forward block reads what attention reads, and both are added to the residual stream
    /// at once.
    pub parallel_blocks: bool,
    /// Where norms stand around attention and feed-forward block.
    pub block_norms: BlockNorms,
    /// The norm that queries and keys pass before the rotary embedding.
    pub qk_norm: QkNorm,
    /// What is added to a norm's stored weight: 1 for Gemma, 0 elsewhere.
    pub norm_offset: f64,
    /// What embeddings are multiplied by, rounded to the compute dtype.
    pub embedding_scale: f64,
    /// What queries are multiplied by before the softmax; `head_dim^-0.5` unless the family says otherwise.
    pub attention_scale: f64,
    /// The c of c tanh(s / c), which scores s count as; `None` where they count as they are.
    pub attention_softcap: Option<f64>,
    /// Whether each query head has a learned score that has no key and no value.
    pub attention_sinks: bool,
    /// What the output of attention and feed-forward block is multiplied by before the residual sum.
    pub residual_scale: f64,
    /// What logits are multiplied by.
    pub logit_scale: f64,
    /// The same of logits, behind their scale.
    pub logit_softcap: Option<f64>,
    /// Whether checkpoints may have layers behind the last one, which predict further tokens and are not
    /// loaded.
    pub has_prediction_layers: bool,
    /// How linear layers are quantized; `None` where none is.
    pub quantization: Option<Quantization>,
    /// The vision tower beside the decoder; `None` where a model reads text alone.
    pub vision: Option<VisionConfig>,
    /// What is computed from the hidden state of a token.
    pub head: OutputHead,
    /// Whether the head is the embedding itself.
    pub tie_word_embeddings: bool,
    /// Standard deviation of freshly made weights.
    pub initializer_range: f64,
    /// The token that starts a sequence.
    pub bos_token_id: Option<u32>,
    /// The token that fills; transformers gives its embedding row no gradient.
    pub pad_token_id: Option<u32>,
    /// The tokens that end a sequence.
    pub eos_token_ids: Vec<u32>,
}

/// Why a configuration was refused.
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
        /// What the configuration names.
        got: String,
        /// Which of its parts are not known.
        parts: String,
        /// Known class names, separated by commas.
        known: String,
    },
    /// A field without a default is absent.
    #[error("model configuration: field `{field}` is missing")]
    MissingField {
        /// The absent field.
        field: String,
    },
    /// A field holds another type or lies outside its range.
    #[error("model configuration: field `{field}`: expected {expected}, got {got}")]
    InvalidField {
        /// The field.
        field: String,
        /// What would have been accepted.
        expected: String,
        /// The JSON value found.
        got: String,
    },
    /// A field asks for something that is not implemented and would change the model's numbers.
    #[error("model configuration: field `{field}`: {got} is not supported, supported: {supported}")]
    Unsupported {
        /// The field.
        field: String,
        /// The JSON value found.
        got: String,
        /// What is supported.
        supported: String,
    },
}

impl ModelConfig {
    /// Reads the content of a `config.json`, in the form of transformers 4 (`rope_theta`, `rope_scaling`) or
    /// 5 (`rope_parameters`). Fields that do not change the model's numbers are not read;
    /// `attention_dropout` is one of them, because an update must see the policy that sampled.
    ///
    /// # Errors
    /// [`ModelConfigError`], naming the field.
    pub fn from_json(document: &serde_json::Value) -> Result<Self, ModelConfigError> {
        parse::parse(document)
    }

    /// The body of a classifier (`...ForSequenceClassification`, `...ForTokenClassification`) by its
    /// `config.json`: as [`Self::from_json`], and without a head of its own.
    ///
    /// # Errors
    /// [`ModelConfigError`], naming the field.
    pub fn from_classifier_json(document: &serde_json::Value) -> Result<Self, ModelConfigError> {
        parse::classifier(document)
    }

    /// A model that is trained with `head`, by the `config.json` that it starts from: a classifier's own
    /// where that has this head, else that of a model for tokens, whose head is replaced.
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

    /// The configuration of a model to be made, with the family's own biases, norms and activation;
    /// `vocab_size`, the ending tokens and those of images come from its tokenizer.
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

    /// The `config.json` that transformers 4 and 5 both read as this model, with `dtype` (`float32`,
    /// `bfloat16`, ...) as the stored type of the weights.
    pub fn to_json(&self, dtype: &str) -> serde_json::Value {
        write::to_json(self, dtype)
    }

    /// Takes the ending tokens from a `generation_config.json`, which generation in transformers obeys before
    /// `config.json`. Nothing changes where it names none.
    ///
    /// # Errors
    /// [`ModelConfigError::InvalidField`] when `eos_token_id` is neither an id nor a list of ids.
    pub fn with_generation_config(mut self, document: &serde_json::Value) -> Result<Self, ModelConfigError> {
        let ids = parse::token_ids(document, "eos_token_id")?;
        if let Some(ids) = ids {
            self.eos_token_ids = ids;
        }
        Ok(self)
    }

    /// What of the model no kernel for GPUs computes yet; `None` where nothing is.
    pub fn cpu_part(&self) -> Option<&'static str> {
        let has = |of: fn(&Experts) -> bool| self.experts.as_ref().is_some_and(of);
        let parts = [
            (self.attention_softcap.is_some(), "softcapped attention scores"),
            (self.attention_sinks, "attention sinks"),
            (self.logit_softcap.is_some(), "softcapped logits"),
            (self.norm_kind == NormKind::Layer, "layer norms"),
            (self.parallel_blocks, "feed-forward blocks beside attention"),
            (self.latent.is_some(), "latents in place of keys and values"),
            (has(|experts| experts.form == ExpertForm::Clamped), "experts with biases"),
            (has(|experts| experts.routing.groups.is_some()), "groups of experts"),
            (has(Experts::are_too_many_for_gpus), "more than 1024 experts in a layer or 32 for a token"),
        ];
        parts.into_iter().find_map(|(has, part)| has.then_some(part))
    }

    /// Longest sequence in tokens whose positions have the frequencies that the model was read with: LongRoPE
    /// has others for longer ones.
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
