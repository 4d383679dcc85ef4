//! Errors of adapters: attaching, reading and writing them.

use std::path::PathBuf;

use rlt_api::ExitCode;
use rlt_api::spec::{PatternError, VlmLora};

use super::names::CONFIG_FILE;
use crate::error::ModelError;

/// An adapter could not be attached, read or written.
#[derive(Debug, thiserror::Error)]
pub enum LoraError {
    /// The rank is one that no adapter can have.
    #[error("attaching an adapter: expected {expected}, got rank {got}")]
    BadRank {
        /// The ranks that are accepted.
        expected: &'static str,
        /// The rank requested.
        got: usize,
    },
    /// A pattern is not a regular expression.
    #[error("attaching an adapter: parsing the pattern {pattern:?}")]
    BadPattern {
        /// The pattern as it was given.
        pattern: String,
        /// Reason of the engine.
        source: PatternError,
    },
    /// A pattern of ranks or alphas matches no adapter, most often because of a typing error.
    #[error("attaching an adapter: {field}: the pattern {pattern:?} matches none of its modules")]
    UnusedPattern {
        /// The field that holds the pattern.
        field: &'static str,
        /// The pattern as it was given.
        pattern: String,
    },
    /// The targets match no linear layer.
    #[error(
        "attaching an adapter: no linear layer matches {targets} without {exclude}, the model has {available}"
    )]
    NoTarget {
        /// The requested targets.
        targets: String,
        /// The requested exclusions.
        exclude: String,
        /// Names of the linear layers inside a decoder layer.
        available: String,
    },
    /// A name in a list matches no module, most often because of a typing error.
    #[error(
        "attaching an adapter: the module name {name:?} matches no linear layer, the model has {available}"
    )]
    UnknownModule {
        /// The name as it was given.
        name: String,
        /// Names of the linear layers inside a decoder layer.
        available: String,
    },
    /// A target parameter is the name of no parameter of experts or routers.
    #[error(
        "attaching an adapter: targetParameters: {name:?} matches no parameter of experts, the model has {available}"
    )]
    UnknownParameter {
        /// The name as it was given.
        name: String,
        /// Names of the parameters that can have an adapter.
        available: String,
    },
    /// A setting is unavailable for adapters of experts and routers.
    #[error("attaching an adapter to parameters: {field}: expected {expected}, got {got}")]
    NotForParameters {
        /// The field of the setting.
        field: &'static str,
        /// The values that are accepted.
        expected: &'static str,
        /// The actual value.
        got: String,
    },
    /// The matrices of an adapter of experts fit the layouts of PEFT 0.18 and of later versions alike.
    #[error(
        "reading {path}: tensor {tensor} of shape {shape:?} fits the layouts of PEFT before and since 0.19: expected \
         a `peft_version` in {CONFIG_FILE} that tells them apart, got {got}", path = path.display()
    )]
    AmbiguousLayout {
        /// The file with the matrices.
        path: PathBuf,
        /// Name of the matrix A.
        tensor: String,
        /// Shape of the matrix A.
        shape: Vec<i64>,
        /// The actual `peft_version`.
        got: String,
    },
    /// The adapter is for a vision tower, and the model has none.
    #[error("attaching an adapter: vlmLora: expected Text, as the model has no vision tower, got {got:?}")]
    NoTower {
        /// The requested parts.
        got: VlmLora,
    },
    /// An entry of `modulesToSave` is the name of no module of which all weights can be trained.
    #[error(
        "attaching an adapter: modulesToSave: {name:?} is not the end of {available}, or is that of a linear layer, \
         which an adapter trains"
    )]
    UnknownModuleToSave {
        /// The name as it was given.
        name: String,
        /// Names of the modules that can be trained.
        available: String,
    },
    /// `modulesToSave` names the head, which is tied to the embedding, without the embedding.
    #[error(
        "attaching an adapter: modulesToSave: the model's head is its embedding (`tie_word_embeddings`): expected \
         \"embed_tokens\", which trains both, got \"lm_head\" alone"
    )]
    TiedHead,
    /// LoftQ was requested without quantized weights, from whose quantization error it starts.
    #[error(
        "attaching an adapter: init: Loftq starts from what quantization takes from weights: expected a model that \
         model.quantization quantizes, got {got}"
    )]
    NothingQuantized {
        /// The actual quantization.
        got: &'static str,
    },
    /// The decoder has an adapter already.
    #[error("attaching an adapter: the model has one already")]
    AlreadyAttached,
    /// The model has no adapter to save.
    #[error("saving the adapter to {dir}: the model has none", dir = dir.display())]
    NoAdapter {
        /// Folder in which it should have been saved.
        dir: PathBuf,
    },
    /// A field of `adapter_config.json` is absent, of another type, or requests something not implemented.
    #[error("reading {path}: field `{field}`: expected {expected}, got {got}", path = path.display())]
    BadConfig {
        /// Path of the `adapter_config.json`.
        path: PathBuf,
        /// The name of the field.
        field: String,
        /// The values that are accepted.
        expected: String,
        /// The actual value.
        got: String,
    },
    /// An adapter cannot be folded into quantized weights.
    #[error(
        "folding the adapter of {dir} into the model: expected weights in 16 or 32 bits, got quantized ones", dir = dir.display()
    )]
    QuantizedBase {
        /// Folder of the adapter.
        dir: PathBuf,
    },
    /// A file of the adapter could not be read or written, or a tensor in it does not fit.
    #[error(transparent)]
    Model(#[from] ModelError),
}

impl LoraError {
    /// The exit code of a process that ends with this error.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Model(error) => error.exit_code(),
            _ => ExitCode::BadConfig,
        }
    }
}
