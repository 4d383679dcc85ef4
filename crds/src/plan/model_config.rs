//! A decoder's shape, as its Hugging Face `config.json` states it: the one reading that memory plan, trainer
//! and export share.
//!
//! Families differ in data here, never in code elsewhere: biases, norms on queries and keys, the norm's
//! offset, the activation, windows and rope scaling are fields. What is not implemented is refused by name;
//! nothing that would change a number is skipped. Never here: files, tensors, tokenizers.

mod fields;
mod parse;
mod rope;
mod shapes;
mod write;

use crate::spec::ArchitectureSpec;
pub use crate::spec::ModelFamily as Family;
pub use rope::RopeScaling;
pub use shapes::{ParameterCount, ProjectionShape, TensorShape};

impl Family {
    /// Every family, in the order in which errors list them.
    pub const ALL: [Self; 5] = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3, Self::Gemma];

    /// The class name in `architectures`.
    pub const fn architecture(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Gemma => "GemmaForCausalLM",
        }
    }

    /// The class name of the sequence classifier on the same body.
    pub const fn classifier(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForSequenceClassification",
            Self::Mistral => "MistralForSequenceClassification",
            Self::Qwen2 => "Qwen2ForSequenceClassification",
            Self::Qwen3 => "Qwen3ForSequenceClassification",
            Self::Gemma => "GemmaForSequenceClassification",
        }
    }

    /// The `model_type` of the configuration.
    pub const fn model_type(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Gemma => "gemma",
        }
    }
}

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
    /// Width of the feed-forward block.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub num_layers: usize,
    /// Number of query heads.
    pub num_heads: usize,
    /// Number of key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of one head, even; need not be `hidden_size / num_heads`.
    pub head_dim: usize,
    /// Longest sequence the model was made for, in tokens.
    pub max_position_embeddings: usize,
    /// Added to the mean square in every RMS norm.
    pub rms_norm_eps: f64,
    /// Base wavelength of the rotary embedding.
    pub rope_theta: f64,
    /// How the rotary frequencies are stretched for longer contexts.
    pub rope_scaling: RopeScaling,
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
    /// Whether each head of queries and keys passes an RMS norm before the rotary embedding.
    pub qk_norm: bool,
    /// What is added to a norm's stored weight: 1 for Gemma, 0 elsewhere.
    pub norm_offset: f64,
    /// Whether embeddings are multiplied by the square root of `hidden_size`.
    pub scale_embeddings: bool,
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
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelConfigError {
    /// The document is not a JSON object.
    #[error("model configuration: expected a JSON object, got {got}")]
    NotAnObject {
        /// The JSON type found.
        got: &'static str,
    },
    /// The model is of a family that the trainer does not run.
    #[error("model configuration: unknown architecture {got:?}, known ones are {known}")]
    UnknownArchitecture {
        /// What the configuration names.
        got: String,
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

    /// The body of a sequence classifier (`...ForSequenceClassification`) by its `config.json`: as
    /// [`Self::from_json`], and without a head for tokens of its own.
    ///
    /// # Errors
    /// [`ModelConfigError`], naming the field.
    pub fn from_classifier_json(document: &serde_json::Value) -> Result<Self, ModelConfigError> {
        parse::classifier(document)
    }

    /// The configuration of a model to be made, with the family's own biases, norms and activation;
    /// `vocab_size` and the ending tokens come from its tokenizer.
    ///
    /// # Errors
    /// [`ModelConfigError`] when the sizes do not fit together; fields are named as in `config.json`.
    pub fn from_architecture(
        spec: &ArchitectureSpec,
        vocab_size: usize,
        eos_token_ids: &[u32],
    ) -> Result<Self, ModelConfigError> {
        parse::from_architecture(spec, vocab_size, eos_token_ids)
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

    /// What queries are multiplied with before the softmax: `head_dim^-0.5`.
    pub fn attention_scale(&self) -> f64 {
        (self.head_dim as f64).powf(-0.5)
    }
}

#[cfg(test)]
mod tests;
