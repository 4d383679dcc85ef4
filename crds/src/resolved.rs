//! Specification with every default filled in, in types that cannot hold a contradiction.
//!
//! [`crate::validate`] is the only constructor, so code that gets a resolved specification checks nothing
//! again. Serialized, it is a manifest that resolves to itself. This module has only defaults; rules are in
//! `rules`.

mod algorithm;
mod choices;
mod head;
mod model;
mod training;

use serde::Serialize;

pub use algorithm::*;
pub use choices::Choices;
pub use head::OutputHead;
pub use model::*;
pub use training::*;

pub use crate::presets::Preset;

use crate::spec::{
    AlgorithmKind, CheckpointSpec, DataSpec, RLTrainingJobSpec, RewardsSpec, RolloutSpec, RunPolicySpec,
    TrackingSpec, WorkersSpec,
};

/// Specification in which every default is filled in.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedSpec {
    /// Model, tokenizer and adapter.
    pub model: ResolvedModel,
    /// Data sets; [`DataSpec::source`] tells generated data from files.
    pub data: DataSpec,
    /// Reward functions, the preset's penalty on length included.
    pub rewards: RewardsSpec,
    /// Algorithm, with the preset's values filled in.
    pub algorithm: ResolvedAlgorithm,
    /// Sampling of completions.
    pub rollout: RolloutSpec,
    /// Batches, optimizer and length of the training.
    pub training: ResolvedTraining,
    /// Checkpoints and exports.
    pub checkpoint: CheckpointSpec,
    /// Destinations of metrics.
    pub tracking: TrackingSpec,
    /// Workers; fields that are still `None` depend on the machine.
    pub workers: WorkersSpec,
    /// Time limits and retries.
    pub run_policy: RunPolicySpec,
    /// Controller that reconciles the job; `None` for the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
}

impl ResolvedSpec {
    /// Fills in every default. Returns `None` if the rules that `validate` checks first do not hold.
    pub(crate) fn resolve(spec: &RLTrainingJobSpec) -> Option<Self> {
        let preset = spec.algorithm.defaults(spec.rollout.max_completion_tokens);
        let mut rewards = spec.rewards.clone();
        rewards.overlong = rewards.overlong.or(preset.overlong.clone());
        Some(Self {
            model: ResolvedModel::resolve(&spec.model)?,
            data: spec.data.clone(),
            rewards,
            algorithm: ResolvedAlgorithm::resolve(&spec.algorithm, &preset, &spec.rollout, &spec.model),
            rollout: spec.rollout.clone(),
            training: ResolvedTraining::resolve(spec, &preset),
            checkpoint: spec.checkpoint.clone(),
            tracking: spec.tracking.clone(),
            workers: spec.workers.clone(),
            run_policy: spec.run_policy.clone(),
            managed_by: spec.managed_by.clone(),
        })
    }

    /// Whether the job samples completions, for training or for rewards of held-out rows.
    pub fn samples(&self) -> bool {
        samples(self.algorithm.kind, &self.rewards, &self.data)
    }

    /// Longest sequence of the training in tokens: prompt and completion.
    pub fn max_sequence_tokens(&self) -> u64 {
        self.rollout.longest_sequence(&self.data)
    }

    /// Returns the tokens of prompt and completion with which a rollout group is largest:
    /// `data.maxPromptTokens` and `rollout.maxCompletionTokens`, if `rollout.maxModelTokens` allows both.
    pub fn largest_group(&self) -> (u64, u64) {
        let longest = self.max_sequence_tokens();
        let completion = u64::from(self.rollout.max_completion_tokens).min(longest - 1);
        (u64::from(self.data.max_prompt_tokens).min(longest - completion), completion)
    }
}

/// Whether a job samples completions, for training or for rewards of held-out rows.
pub(crate) fn samples(kind: AlgorithmKind, rewards: &RewardsSpec, data: &DataSpec) -> bool {
    kind.samples() || (!rewards.functions.is_empty() && data.has_held_out())
}
