//! The rules of `spec.rollout` and `spec.training`: batch arithmetic and budgets.

use super::{Check, Rule, divisors};
use crate::spec::{AlgorithmKind, RLTrainingJobSpec, ScheduleKind};

/// Longest sequence in tokens.
fn longest(spec: &RLTrainingJobSpec) -> u64 {
    u64::from(spec.data.max_prompt_tokens) + u64::from(spec.rollout.max_completion_tokens)
}

fn at_least_longest(spec: &RLTrainingJobSpec) -> String {
    format!("at least {}", longest(spec))
}

fn holds_longest(spec: &RLTrainingJobSpec, tokens: Option<u32>) -> bool {
    tokens.is_none_or(|tokens| u64::from(tokens) >= longest(spec))
}

/// What a pass of all workers that share its tokens holds.
fn together(spec: &RLTrainingJobSpec, tokens: Option<u32>) -> Option<u32> {
    tokens.map(|tokens| tokens.saturating_mul(spec.workers.mesh.sp))
}

fn at_least_part_of_longest(spec: &RLTrainingJobSpec) -> String {
    format!("at least {}", longest(spec).div_ceil(spec.workers.mesh.sp.into()))
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.rollout.heldOut",
        at: "samplesPerPrompt",
        reads: &["samplesPerPrompt", "temperature"],
        message: "at temperature 0 all samples are equal: samplesPerPrompt must be 1",
        cel: || "self.temperature > 0.0 || self.samplesPerPrompt == 1".into(),
        holds: Check::Spec(|spec| {
            spec.rollout.held_out.temperature > 0.0 || spec.rollout.held_out.samples_per_prompt == 1
        }),
        allowed: Some(|_| "1, or a temperature above 0".into()),
    },
    Rule {
        scope: "spec",
        at: "model.architecture.maxPositionEmbeddings",
        reads: &[
            "model.architecture.maxPositionEmbeddings",
            "data.maxPromptTokens",
            "rollout.maxCompletionTokens",
        ],
        message: "maxPositionEmbeddings must hold data.maxPromptTokens and rollout.maxCompletionTokens together",
        cel: || {
            "!has(self.model.architecture) || self.model.architecture.maxPositionEmbeddings >= \
             self.data.maxPromptTokens + self.rollout.maxCompletionTokens"
                .into()
        },
        holds: Check::Spec(|spec| {
            holds_longest(spec, spec.model.architecture.as_ref().map(|shape| shape.max_position_embeddings))
        }),
        allowed: Some(at_least_longest),
    },
    Rule {
        scope: "spec.training",
        at: "epochs",
        reads: &["epochs", "steps"],
        message: "give steps or epochs, not both",
        cel: || "!(has(self.steps) && has(self.epochs))".into(),
        holds: Check::Spec(|spec| spec.training.steps.is_none() || spec.training.epochs.is_none()),
        allowed: None,
    },
    Rule {
        scope: "spec.training",
        at: "promptsPerUpdate",
        reads: &["promptsPerUpdate", "promptsPerStep"],
        message: "promptsPerUpdate must divide promptsPerStep",
        cel: || "!has(self.promptsPerUpdate) || self.promptsPerStep % self.promptsPerUpdate == 0".into(),
        holds: Check::Spec(|spec| {
            let per_step = spec.training.prompts_per_step;
            spec.training.prompts_per_update.is_none_or(|per_update| per_step.is_multiple_of(per_update))
        }),
        allowed: Some(|spec| divisors(spec.training.prompts_per_step)),
    },
    Rule {
        scope: "spec",
        at: "training.promptsPerUpdate",
        reads: &["training.promptsPerUpdate", "training.promptsPerStep", "algorithm.kind"],
        message: "SFT makes one update a step: promptsPerUpdate must be promptsPerStep",
        cel: || {
            "self.algorithm.kind != 'SFT' || !has(self.training.promptsPerUpdate) || \
             self.training.promptsPerUpdate == self.training.promptsPerStep"
                .into()
        },
        holds: Check::Spec(|spec| {
            let given = spec.training.prompts_per_update;
            spec.algorithm.kind != AlgorithmKind::Sft
                || given.is_none_or(|prompts| prompts == spec.training.prompts_per_step)
        }),
        allowed: Some(|spec| spec.training.prompts_per_step.to_string()),
    },
    Rule {
        scope: "spec",
        at: "training.epochsPerBatch",
        reads: &["training.epochsPerBatch", "algorithm.kind"],
        message: "SFT makes one update a step: epochsPerBatch must be 1",
        cel: || "self.algorithm.kind != 'SFT' || self.training.epochsPerBatch == 1".into(),
        holds: Check::Spec(|spec| {
            spec.algorithm.kind != AlgorithmKind::Sft || spec.training.epochs_per_batch == 1
        }),
        allowed: Some(|_| "1".into()),
    },
    Rule {
        scope: "spec",
        at: "training.maxTokensPerMicroBatch",
        reads: &[
            "training.maxTokensPerMicroBatch",
            "workers.mesh.sp",
            "data.maxPromptTokens",
            "rollout.maxCompletionTokens",
        ],
        message: "maxTokensPerMicroBatch, times workers.mesh.sp, must hold data.maxPromptTokens and rollout.maxCompletionTokens \
                  together",
        cel: || {
            "!has(self.training.maxTokensPerMicroBatch) || self.training.maxTokensPerMicroBatch * self.workers.mesh.sp >= \
             self.data.maxPromptTokens + self.rollout.maxCompletionTokens"
                .into()
        },
        holds: Check::Spec(|spec| {
            holds_longest(spec, together(spec, spec.training.max_tokens_per_micro_batch))
        }),
        allowed: Some(at_least_part_of_longest),
    },
    Rule {
        scope: "spec",
        at: "training.maxLogprobTokens",
        reads: &[
            "training.maxLogprobTokens",
            "workers.mesh.sp",
            "data.maxPromptTokens",
            "rollout.maxCompletionTokens",
        ],
        message: "maxLogprobTokens, times workers.mesh.sp, must hold data.maxPromptTokens and rollout.maxCompletionTokens \
                  together",
        cel: || {
            "!has(self.training.maxLogprobTokens) || self.training.maxLogprobTokens * self.workers.mesh.sp >= \
             self.data.maxPromptTokens + self.rollout.maxCompletionTokens"
                .into()
        },
        holds: Check::Spec(|spec| holds_longest(spec, together(spec, spec.training.max_logprob_tokens))),
        allowed: Some(at_least_part_of_longest),
    },
    Rule {
        scope: "spec.training",
        at: "offload.activations",
        reads: &["offload.activations", "activationCheckpointing"],
        message: "offload.activations needs activationCheckpointing: without it layers keep more than their inputs",
        cel: || "!self.offload.activations || self.activationCheckpointing".into(),
        holds: Check::Spec(|spec| {
            !spec.training.offload.activations || spec.training.activation_checkpointing
        }),
        allowed: Some(|_| "false, or activationCheckpointing true".into()),
    },
    Rule {
        scope: "spec.training",
        at: "schedule.warmupSteps",
        reads: &["schedule.warmupSteps", "steps"],
        message: "warmupSteps must be below steps",
        cel: || "!has(self.steps) || self.schedule.warmupSteps < self.steps".into(),
        holds: Check::Spec(|spec| {
            spec.training.steps.is_none_or(|steps| spec.training.schedule.warmup_steps < steps)
        }),
        allowed: Some(|spec| {
            spec.training.steps.map_or_else(String::new, |steps| format!("0 to {}", steps.saturating_sub(1)))
        }),
    },
    Rule {
        scope: "spec.training.schedule",
        at: "minRatio",
        reads: &["minRatio", "kind"],
        message: "minRatio is not used by the schedule Constant",
        cel: || "self.kind != 'Constant' || self.minRatio == 0.0".into(),
        holds: Check::Spec(|spec| {
            let schedule = &spec.training.schedule;
            schedule.kind != ScheduleKind::Constant || schedule.min_ratio == 0.0
        }),
        allowed: Some(|_| "0, or the kind Cosine or Linear".into()),
    },
];
