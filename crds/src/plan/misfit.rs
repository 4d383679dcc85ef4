//! Why a model cannot be trained as a job asks; each error names the field, the value and what is
//! expected. When it applies is decided in `model_check`.

use super::model_config::{Family, ModelConfigError};

/// Why a model cannot be trained as the job asks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// More ranks share a tensor or layer of the model than it can be sharded over.
    #[error("{field}: {degree} ranks cannot share {shared}: expected {expected}")]
    Degree {
        /// The field that asks for it.
        field: &'static str,
        /// Ranks that would share it.
        degree: u32,
        /// The part of the model that they would share, with its sizes.
        shared: String,
        /// The degrees that fit.
        expected: String,
    },
    /// Ranks exchange rows of experts on CPUs alone.
    #[error(
        "spec.workers.mesh.ep: ranks with GPUs do not exchange rows of experts yet: expected 1 on GPUs, got {ep}"
    )]
    ExpertParallelOnGpu {
        /// Ranks that would have different experts.
        ep: u32,
    },
    /// Some parts of models run on CPUs alone.
    #[error(
        "spec.workers.device: {family:?} has {part}, which have no kernels for GPUs yet: expected Cpu, got Cuda"
    )]
    PartOnGpu {
        /// The model's family.
        family: Family,
        /// Which part.
        part: &'static str,
    },
    /// transformers could not load what would be exported.
    #[error(
        "spec.algorithm: {family:?} has no classifiers in transformers, as which a reward model is exported: \
         expected an algorithm that trains a policy, got a reward model"
    )]
    NoClassifier {
        /// The model's family.
        family: Family,
    },
    /// Settings that quantized weights do not support.
    #[error("{field}: the model's linear layers have 4 or 8 bits: expected {expected}, got {got}")]
    Quantized {
        /// The field that asks for more.
        field: &'static str,
        /// The supported values.
        expected: &'static str,
        /// The actual value.
        got: String,
    },
    /// The rollout cannot have the adapter beside its base.
    #[error(
        "spec.model.lora.merge: with the adapter beside its base the rollout does not sample from {part}: \
         expected true, got false"
    )]
    UnmergedAdapter {
        /// Which part of the job.
        part: &'static str,
    },
    /// More layers are to stay gathered than the model has.
    #[error(
        "spec.training.unshardedLayers: the model has {num_layers} layers: expected 1 to {num_layers}, got {got}"
    )]
    UnshardedLayers {
        /// How many are asked for.
        got: u32,
        /// How many there are.
        num_layers: usize,
    },
    /// Settings that models with a vision tower do not support.
    #[error("{field}: {family:?} has a vision tower: expected {expected}, got {got}")]
    Vision {
        /// The field that asks for more.
        field: &'static str,
        /// The model's family.
        family: Family,
        /// The supported values.
        expected: &'static str,
        /// The actual value.
        got: String,
    },
    /// A vision tower is to be adapted or trained where there is none.
    #[error("{field}: {family:?} has no vision tower: expected {expected}, got {got}")]
    NoTower {
        /// The field.
        field: &'static str,
        /// The model's family.
        family: Family,
        /// The value that fits.
        expected: &'static str,
        /// The actual value.
        got: String,
    },
    /// The job and the model's files disagree on its quantization.
    #[error("spec.model.quantization: {0}")]
    Quantization(ModelConfigError),
    /// A loss of routers is asked for where there are none.
    #[error(
        "spec.training.routerAuxLossCoef: {family:?} has no experts whose router it could balance: expected 0, got \
         {got}"
    )]
    NoRouters {
        /// The model's family.
        family: Family,
        /// The coefficient, as text.
        got: String,
    },
    /// Sequences would be longer than the model's rotary embedding has one set of frequencies for.
    #[error(
        "spec.data.maxPromptTokens and spec.rollout.maxCompletionTokens: sequences of {got} tokens need \
         the long factors of the model's LongRoPE, which are not supported: expected at most {longest} \
         together, or spec.rollout.maxModelTokens: {longest}"
    )]
    TooLong {
        /// Tokens of the longest sequence.
        got: u64,
        /// As many as have the short factors.
        longest: u64,
    },
}
