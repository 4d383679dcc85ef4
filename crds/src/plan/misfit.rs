//! Reasons why a model cannot be trained as a job asks; each error names the field, the value and what is
//! expected. `model_check` decides when they apply.

use super::model_config::{Family, ModelConfigError};

/// Reason why a model cannot be trained as the job asks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// A parallelism degree does not divide the tensors or layers of the model.
    #[error("{field}: {degree} ranks cannot share {shared}: expected {expected}")]
    Degree {
        /// Field that sets the degree.
        field: &'static str,
        /// Requested degree: ranks that would share the tensors.
        degree: u32,
        /// Part of the model that the ranks would share, with its sizes.
        shared: String,
        /// Degrees that fit the model.
        expected: String,
    },
    /// Expert parallelism was requested on GPUs; it is implemented on CPUs only.
    #[error(
        "spec.workers.mesh.ep: ranks with GPUs do not exchange rows of experts yet: expected 1 on GPUs, got {ep}"
    )]
    ExpertParallelOnGpu {
        /// Requested expert-parallel degree.
        ep: u32,
    },
    /// The model has a part that has no GPU kernels.
    #[error(
        "spec.workers.device: {family:?} has {part}, which have no kernels for GPUs yet: expected Cpu, got Cuda"
    )]
    PartOnGpu {
        /// The model's family.
        family: Family,
        /// The part without GPU kernels.
        part: &'static str,
    },
    /// The heads are wider than those that the rollout's attention kernel for GPUs reads.
    #[error(
        "spec.workers.device: the heads of {family:?} are {head_dim} wide, and the rollout on GPUs reads heads of \
         at most 256: expected Cpu, got Cuda"
    )]
    HeadOnGpu {
        /// The model's family.
        family: Family,
        /// Width of a head.
        head_dim: usize,
    },
    /// The family has no classifier class in transformers, so a reward model could not be exported.
    #[error(
        "spec.algorithm: {family:?} has no classifiers in transformers, as which a reward model is exported: \
         expected an algorithm that trains a policy, got a reward model"
    )]
    NoClassifier {
        /// The model's family.
        family: Family,
    },
    /// A setting is not supported with quantized weights.
    #[error("{field}: the model's linear layers have 4 or 8 bits: expected {expected}, got {got}")]
    Quantized {
        /// Field with the unsupported value.
        field: &'static str,
        /// The supported values.
        expected: &'static str,
        /// The actual value.
        got: String,
    },
    /// The rollout cannot use an unmerged adapter with this job.
    #[error(
        "spec.model.lora.merge: with the adapter beside its base the rollout does not sample from {part}: \
         expected true, got false"
    )]
    UnmergedAdapter {
        /// Part of the job that rules it out.
        part: &'static str,
    },
    /// `unshardedLayers` exceeds the number of layers of the model.
    #[error(
        "spec.training.unshardedLayers: the model has {num_layers} layers: expected 1 to {num_layers}, got {got}"
    )]
    UnshardedLayers {
        /// Requested number of unsharded layers.
        got: u32,
        /// Number of layers of the model.
        num_layers: usize,
    },
    /// A setting is not supported for models with a vision tower.
    #[error("{field}: {family:?} has a vision tower: expected {expected}, got {got}")]
    Vision {
        /// Field with the unsupported value.
        field: &'static str,
        /// The model's family.
        family: Family,
        /// The supported values.
        expected: &'static str,
        /// The actual value.
        got: String,
    },
    /// The job adapts or trains a vision tower, and the model has none.
    #[error("{field}: {family:?} has no vision tower: expected {expected}, got {got}")]
    NoTower {
        /// Field that asks for the vision tower.
        field: &'static str,
        /// The model's family.
        family: Family,
        /// The value that fits.
        expected: &'static str,
        /// The actual value.
        got: String,
    },
    /// The job's quantization contradicts that of the model's files.
    #[error("spec.model.quantization: {0}")]
    Quantization(ModelConfigError),
    /// A router loss was requested for a model without experts.
    #[error(
        "spec.training.routerAuxLossCoef: {family:?} has no experts whose router it could balance: expected 0, got \
         {got}"
    )]
    NoRouters {
        /// The model's family.
        family: Family,
        /// Requested coefficient, as text.
        got: String,
    },
    /// Sequences can exceed the length for which the model's rotary embedding has one set of frequencies.
    #[error(
        "spec.data.maxPromptTokens and spec.rollout.maxCompletionTokens: sequences of {got} tokens need \
         the long factors of the model's LongRoPE, which are not supported: expected at most {longest} \
         together, or spec.rollout.maxModelTokens: {longest}"
    )]
    TooLong {
        /// Length of the longest sequence in tokens.
        got: u64,
        /// Longest sequence in tokens that uses the short factors.
        longest: u64,
    },
}
