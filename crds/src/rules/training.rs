//! The rules of `spec.rollout` and `spec.training`: batch arithmetic and budgets.

use super::{Check, Rule, cel_updates_once, divisors, updates_once};
use crate::spec::{RLTrainingJobSpec, ScheduleKind};

/// Longest sequence in tokens.
fn longest(spec: &RLTrainingJobSpec) -> u64 {
    spec.rollout.longest_sequence(&spec.data)
}

/// Whether `tokens`, a number in CEL, hold the longest sequence, in CEL: prompt and completion, or no more
/// than `rollout.maxModelTokens`.
fn cel_is_longest_within(tokens: &str) -> String {
    let limit = "self.rollout.maxModelTokens";
    format!(
        "({tokens} >= self.data.maxPromptTokens + self.rollout.maxCompletionTokens || \
         (has({limit}) && {tokens} >= {limit}))"
    )
}

fn at_least_longest(spec: &RLTrainingJobSpec) -> String {
    format!("at least {}", longest(spec))
}

/// Whether passes of `tokens` on each of `sp` workers hold the longest sequence.
fn holds_longest(spec: &RLTrainingJobSpec, tokens: Option<u32>, sp: u32) -> bool {
    tokens.is_none_or(|tokens| u64::from(tokens) * u64::from(sp) >= longest(spec))
}

/// The least number of workers that share passes of a role: `own` of the actor, or the critic's, where it has
/// its own.
fn least_sp(spec: &RLTrainingJobSpec, own: u32) -> u32 {
    spec.workers.mesh.critic_sp.map_or(own, |critic| critic.min(own))
}

/// The same in CEL.
fn cel_holds_longest(tokens: &str, own: &str) -> String {
    let critic = "self.workers.mesh.criticSp";
    let of_own = cel_is_longest_within(&format!("{tokens} * {own}"));
    let of_critic = cel_is_longest_within(&format!("{tokens} * {critic}"));
    format!("!has({tokens}) || ({of_own} && (!has({critic}) || {of_critic}))")
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
        scope: "spec.rollout",
        at: "maxBatchedTokens",
        reads: &["maxBatchedTokens", "maxConcurrentSequences"],
        message: "maxBatchedTokens must be at least maxConcurrentSequences: each sequence decodes one token in a pass",
        cel: || "self.maxBatchedTokens >= self.maxConcurrentSequences".into(),
        holds: Check::Spec(|spec| spec.rollout.max_batched_tokens >= spec.rollout.max_concurrent_sequences),
        allowed: Some(|spec| {
            format!("at least {}, or fewer maxConcurrentSequences", spec.rollout.max_concurrent_sequences)
        }),
    },
    Rule {
        scope: "spec",
        at: "rollout.maxModelTokens",
        reads: &["rollout.maxModelTokens", "data.maxPromptTokens"],
        message: "maxModelTokens must be above data.maxPromptTokens: the longest prompt needs room for a completion",
        cel: || {
            "!has(self.rollout.maxModelTokens) || self.rollout.maxModelTokens > self.data.maxPromptTokens"
                .into()
        },
        holds: Check::Spec(|spec| {
            spec.rollout.max_model_tokens.is_none_or(|longest| longest > spec.data.max_prompt_tokens)
        }),
        allowed: Some(|spec| format!("at least {}", u64::from(spec.data.max_prompt_tokens) + 1)),
    },
    Rule {
        scope: "spec",
        at: "model.architecture.maxPositionEmbeddings",
        reads: &[
            "model.architecture.maxPositionEmbeddings",
            "data.maxPromptTokens",
            "rollout.maxCompletionTokens",
            "rollout.maxModelTokens",
        ],
        message: "maxPositionEmbeddings must hold data.maxPromptTokens and rollout.maxCompletionTokens together",
        cel: || {
            let held = cel_is_longest_within("self.model.architecture.maxPositionEmbeddings");
            format!("!has(self.model.architecture) || {held}")
        },
        holds: Check::Spec(|spec| {
            holds_longest(
                spec,
                spec.model.architecture.as_ref().map(|shape| shape.max_position_embeddings),
                1,
            )
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
        message: "SFT and preference training make one update a step: promptsPerUpdate must be promptsPerStep",
        cel: || {
            format!(
                "!has(self.training.promptsPerUpdate) || !({}) || \
                 self.training.promptsPerUpdate == self.training.promptsPerStep",
                cel_updates_once("self.algorithm")
            )
        },
        holds: Check::Spec(|spec| {
            let given = spec.training.prompts_per_update;
            !updates_once(spec.algorithm.kind)
                || given.is_none_or(|prompts| prompts == spec.training.prompts_per_step)
        }),
        allowed: Some(|spec| spec.training.prompts_per_step.to_string()),
    },
    Rule {
        scope: "spec",
        at: "training.epochsPerBatch",
        reads: &["training.epochsPerBatch", "algorithm.kind"],
        message: "SFT and preference training make one update a step: epochsPerBatch must be 1",
        cel: || format!("self.training.epochsPerBatch == 1 || !({})", cel_updates_once("self.algorithm")),
        holds: Check::Spec(|spec| !updates_once(spec.algorithm.kind) || spec.training.epochs_per_batch == 1),
        allowed: Some(|_| "1".into()),
    },
    Rule {
        scope: "spec",
        at: "training.maxTokensPerMicroBatch",
        reads: &[
            "training.maxTokensPerMicroBatch",
            "workers.mesh.sp",
            "workers.mesh.criticSp",
            "data.maxPromptTokens",
            "rollout.maxCompletionTokens",
            "rollout.maxModelTokens",
        ],
        message: "maxTokensPerMicroBatch, times workers.mesh.sp, and criticSp where it is given, must hold data.maxPromptTokens \
                  and rollout.maxCompletionTokens together",
        cel: || cel_holds_longest("self.training.maxTokensPerMicroBatch", "self.workers.mesh.sp"),
        holds: Check::Spec(|spec| {
            let sp = least_sp(spec, spec.workers.mesh.sp);
            holds_longest(spec, spec.training.max_tokens_per_micro_batch, sp)
        }),
        allowed: Some(|spec| {
            format!("at least {}", longest(spec).div_ceil(least_sp(spec, spec.workers.mesh.sp).into()))
        }),
    },
    Rule {
        scope: "spec",
        at: "training.maxLogprobTokens",
        reads: &[
            "training.maxLogprobTokens",
            "workers.mesh.sp",
            "workers.mesh.logprobSp",
            "workers.mesh.criticSp",
            "data.maxPromptTokens",
            "rollout.maxCompletionTokens",
            "rollout.maxModelTokens",
        ],
        message: "maxLogprobTokens, times workers.mesh.logprobSp (by default sp), and criticSp where it is given, must hold \
                  data.maxPromptTokens and rollout.maxCompletionTokens together",
        cel: || {
            let own =
                "(has(self.workers.mesh.logprobSp) ? self.workers.mesh.logprobSp : self.workers.mesh.sp)";
            cel_holds_longest("self.training.maxLogprobTokens", own)
        },
        holds: Check::Spec(|spec| {
            let sp = least_sp(spec, spec.workers.mesh.sp_of_logprobs());
            holds_longest(spec, spec.training.max_logprob_tokens, sp)
        }),
        allowed: Some(|spec| {
            let sp = least_sp(spec, spec.workers.mesh.sp_of_logprobs());
            format!("at least {}", longest(spec).div_ceil(sp.into()))
        }),
    },
    Rule {
        scope: "spec.training",
        at: "offload.activations",
        reads: &["offload.activations", "activationCheckpointing"],
        message: "offload.activations needs activationCheckpointing: without it layers keep more than their inputs",
        cel: || {
            "!self.offload.activations || (has(self.activationCheckpointing) && self.activationCheckpointing)"
                .into()
        },
        holds: Check::Spec(|spec| {
            !spec.training.offload.activations || spec.training.activation_checkpointing == Some(true)
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
