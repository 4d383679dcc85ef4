//! The specification with every default filled in, in types that cannot hold a contradiction.
//!
//! [`crate::validate`] is the only constructor, so code that gets one checks nothing again. Serialised, a
//! resolved specification is a manifest that resolves to itself. No rules live here (see `rules`), only
//! defaults.

mod algorithm;
mod model;
mod training;

use serde::Serialize;

pub use algorithm::*;
pub use model::*;
pub use training::*;

pub use crate::presets::Preset;

use crate::spec::{
    CheckpointSpec, DataSpec, RLTrainingJobSpec, RewardsSpec, RolloutSpec, RunPolicySpec, TrackingSpec,
    WorkersSpec,
};

/// A specification in which every default is filled in.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedSpec {
    /// The model.
    pub model: ResolvedModel,
    /// The data sets; [`DataSpec::source`] distinguishes generated from read ones.
    pub data: DataSpec,
    /// The judgement, the preset's penalty on length included.
    pub rewards: RewardsSpec,
    /// The algorithm, the preset written out.
    pub algorithm: ResolvedAlgorithm,
    /// The sampling.
    pub rollout: RolloutSpec,
    /// The training.
    pub training: ResolvedTraining,
    /// The checkpoints.
    pub checkpoint: CheckpointSpec,
    /// The tracking.
    pub tracking: TrackingSpec,
    /// The workers. Fields that are still open depend on the machine.
    pub workers: WorkersSpec,
    /// The time limits.
    pub run_policy: RunPolicySpec,
    /// The controller that reconciles the job; by default the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
}

impl ResolvedSpec {
    /// Fills in every default. `None` where the rules that `validate` checks first do not hold.
    pub(crate) fn resolve(spec: &RLTrainingJobSpec) -> Option<Self> {
        let preset = spec.algorithm.defaults(spec.rollout.max_completion_tokens);
        let mut rewards = spec.rewards.clone();
        rewards.overlong = rewards.overlong.or(preset.overlong.clone());
        Some(Self {
            model: ResolvedModel::resolve(&spec.model)?,
            data: spec.data.clone(),
            rewards,
            algorithm: ResolvedAlgorithm::resolve(&spec.algorithm, &preset, &spec.rollout),
            rollout: spec.rollout.clone(),
            training: ResolvedTraining::resolve(spec, &preset),
            checkpoint: spec.checkpoint.clone(),
            tracking: spec.tracking.clone(),
            workers: spec.workers.clone(),
            run_policy: spec.run_policy.clone(),
            managed_by: spec.managed_by.clone(),
        })
    }

    /// Longest sequence of the training in tokens: prompt and completion.
    pub fn max_sequence_tokens(&self) -> u64 {
        self.rollout.longest_sequence(&self.data)
    }

    /// The prompt and the completion, in tokens, with which a rollout group is largest:
    /// `data.maxPromptTokens` and `rollout.maxCompletionTokens` where `rollout.maxModelTokens` holds both.
    pub fn largest_group(&self) -> (u64, u64) {
        let longest = self.max_sequence_tokens();
        let completion = u64::from(self.rollout.max_completion_tokens).min(longest - 1);
        (u64::from(self.data.max_prompt_tokens).min(longest - completion), completion)
    }
}
