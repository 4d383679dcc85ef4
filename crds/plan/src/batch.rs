//! Batch arithmetic: the sizes of one step, as `rlctl plan` and the status show them.

use rlt_api::resolved::{ResolvedSpec, TrainingLength};
use rlt_api::spec::DataSource;
use serde::Serialize;

/// Sizes of one step. Counts of samples and tokens assume that no sample is filtered out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchPlan {
    /// Prompts of one step; demonstrations in supervised training, pairs in preference training.
    pub prompts_per_step: u64,
    /// Completions of each prompt; 1 in supervised training, 2 where a data set has the pairs.
    pub samples_per_prompt: u64,
    /// Sequences of one step, over all ranks.
    pub samples_per_step: u64,
    /// Sequences of one optimizer update.
    pub samples_per_update: u64,
    /// Optimizer updates of one step.
    pub updates_per_step: u64,
    /// Longest sequence in tokens: prompt and completion.
    pub max_sequence_tokens: u64,
    /// Most tokens of one step.
    pub max_tokens_per_step: u64,
    /// Most forward and backward passes of one update, if every sequence has the maximal length.
    pub max_micro_batches_per_update: u64,
    /// Most forward passes without gradients to score a step once, if every sequence has the maximal length.
    pub max_logprob_passes_per_step: u64,
    /// Most sequences that one rank decodes at the same time, see [`concurrent_sequences`].
    pub concurrent_sequences: u64,
    /// Steps of the whole training; `None` when it depends on the size of a data set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_steps: Option<u64>,
    /// Supervised steps before the first step of the algorithm.
    pub cold_start_steps: u64,
}

impl BatchPlan {
    pub(super) fn new(spec: &ResolvedSpec) -> Self {
        let (training, rollout) = (&spec.training, &spec.rollout);
        let prompts_per_step = u64::from(training.prompts_per_step);
        let of_row = spec.algorithm.kind.learns_from().completions_of_row();
        let samples_per_prompt = of_row.unwrap_or(u64::from(rollout.samples_per_prompt));
        let samples_per_update = u64::from(training.prompts_per_update) * samples_per_prompt;
        let samples_per_step = prompts_per_step * samples_per_prompt;
        let max_sequence_tokens = spec.max_sequence_tokens();
        let mesh = &spec.workers.mesh;
        let passes = |num_prompts: u64, budget: TokenBudget| {
            FullPass::new(spec, num_prompts, samples_per_prompt, budget).num_passes
        };
        Self {
            prompts_per_step,
            samples_per_prompt,
            samples_per_step,
            samples_per_update,
            updates_per_step: prompts_per_step / u64::from(training.prompts_per_update)
                * u64::from(training.epochs_per_batch),
            max_sequence_tokens,
            max_tokens_per_step: samples_per_step * max_sequence_tokens,
            max_micro_batches_per_update: passes(
                training.prompts_per_update.into(),
                TokenBudget { tokens: training.max_tokens_per_micro_batch, sp: mesh.sp },
            ),
            max_logprob_passes_per_step: passes(
                prompts_per_step,
                TokenBudget { tokens: training.max_logprob_tokens, sp: mesh.sp_of_logprobs() },
            ),
            concurrent_sequences: concurrent_sequences(spec),
            num_steps: num_steps(spec),
            cold_start_steps: spec
                .algorithm
                .cold_start
                .as_ref()
                .map_or(0, |cold_start| cold_start.steps.into()),
        }
    }
}

/// Returns the most sequences that one rank, or its rollout tensor-parallel group, decodes at the same time:
/// its samples of one step, limited by `rollout.maxConcurrentSequences`. An evaluation of more sequences
/// takes more time, not more memory.
pub fn concurrent_sequences(spec: &ResolvedSpec) -> u64 {
    let samples = u64::from(spec.rollout.samples_per_prompt);
    let own = share(spec, spec.training.prompts_per_step.into()).saturating_mul(samples);
    own.clamp(1, spec.rollout.max_concurrent_sequences.into())
}

/// Returns how many of `num_prompts` prompts the busiest sequence-parallel group of `sp` ranks processes.
pub(super) fn scored_share(spec: &ResolvedSpec, num_prompts: u64, sp: u32) -> u64 {
    num_prompts.div_ceil((spec.workers.num_ranks() / (sp * spec.workers.mesh.tp)).max(1).into())
}

/// Returns for how many of `num_prompts` prompts the busiest rank or rollout tensor-parallel group samples.
pub(super) fn share(spec: &ResolvedSpec, num_prompts: u64) -> u64 {
    num_prompts.div_ceil((spec.workers.num_ranks() / spec.workers.mesh.rollout_tp).into())
}

/// Largest number of tokens of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TokenBudget {
    /// Tokens of each rank.
    pub(super) tokens: u32,
    /// Sequence-parallel degree: number of ranks that share the tokens of the pass and add up their budgets.
    pub(super) sp: u32,
}

/// The fullest pass under a token budget, if every sequence has the maximal length. Shorter sequences only
/// need fewer passes. The count follows the trainer's packing: a group contains its prompt once, the last
/// token of a completion is not computed, and only a group that exceeds the budget is split. The budgets of
/// the ranks of a sequence-parallel group are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FullPass {
    /// Tokens that one rank computes in the pass.
    pub(super) tokens: u64,
    /// Most completion tokens for which one rank computes log-probs.
    pub(super) predicted: u64,
    /// Number of passes that `num_prompts` groups take.
    pub(super) num_passes: u64,
}

impl FullPass {
    pub(super) fn new(
        spec: &ResolvedSpec,
        num_prompts: u64,
        samples_per_prompt: u64,
        budget: TokenBudget,
    ) -> Self {
        let (prompt, completion) = spec.largest_group();
        let (sp, added) = (u64::from(budget.sp), completion - 1);
        let budget = u64::from(budget.tokens).saturating_mul(sp);
        let group = prompt + samples_per_prompt * added;
        let (tokens, samples, num_passes) = if group <= budget {
            let num_groups = (budget / group).min(num_prompts);
            (num_groups * group, num_groups * samples_per_prompt, num_prompts.div_ceil(num_groups))
        } else {
            let samples = (budget.saturating_sub(prompt) / added.max(1)).clamp(1, samples_per_prompt);
            (prompt + samples * added, samples, num_prompts * samples_per_prompt.div_ceil(samples))
        };
        let tokens = tokens.div_ceil(sp);
        // Each token predicts one, except the end of a prompt, which predicts the first token of each of its
        // samples.
        Self { tokens, predicted: (samples * completion).min(tokens + samples), num_passes }
    }

    /// Returns the fullest pass of all updates of the policy, and the most passes of an update. Those of a
    /// cold start are included: its batches may be larger, and each of its demonstrations has its own prompt.
    pub(super) fn of_updates(spec: &ResolvedSpec, samples_per_prompt: u64, budget: TokenBudget) -> Self {
        let (own, demonstrations) = updated_prompts(spec, budget.sp);
        let own = Self::new(spec, own, samples_per_prompt, budget);
        let Some(demonstrations) = demonstrations else { return own };
        let of_cold_start = Self::new(spec, demonstrations, 1, budget);
        Self {
            tokens: own.tokens.max(of_cold_start.tokens),
            predicted: own.predicted.max(of_cold_start.predicted),
            num_passes: own.num_passes.max(of_cold_start.num_passes),
        }
    }
}

/// Most prompts that a sequence-parallel group of `sp` ranks has in one update, and most demonstrations in
/// one update of a cold start, where there is one.
fn updated_prompts(spec: &ResolvedSpec, sp: u32) -> (u64, Option<u64>) {
    let of = |num: u32| scored_share(spec, num.into(), sp);
    let cold_start = spec.algorithm.cold_start.as_ref().filter(|cold_start| cold_start.steps > 0);
    (of(spec.training.prompts_per_update), cold_start.map(|cold_start| of(cold_start.batch_size)))
}

/// Most prompts whose tokens one rank computes in one update, cold start included.
pub(super) fn most_updated_prompts(spec: &ResolvedSpec) -> u64 {
    let (own, demonstrations) = updated_prompts(spec, 1);
    own.max(demonstrations.unwrap_or(0))
}

fn num_steps(spec: &ResolvedSpec) -> Option<u64> {
    match (spec.training.length, spec.data.source()) {
        (TrainingLength::Steps(steps), _) => Some(steps),
        (length, DataSource::Task(task)) => {
            let num_prompts = task.num_train_prompts(spec.data.max_train_prompts);
            Some(length.num_steps(num_prompts, spec.training.prompts_per_step))
        }
        (TrainingLength::Epochs(_), DataSource::Datasets) => None,
    }
}

/// Most held-out prompts that an evaluation can have: an upper bound where the number of prompts is in files.
pub(super) fn num_held_out_prompts(spec: &ResolvedSpec) -> u64 {
    let limit = spec.data.max_held_out_prompts.unwrap_or(u64::MAX);
    match spec.data.source() {
        DataSource::Task(task) => limit.min(task.num_held_out.into()),
        DataSource::Datasets => match spec.data.sets(true).len() as u64 {
            0 => 0,
            num_sets => limit.saturating_mul(num_sets),
        },
    }
}
