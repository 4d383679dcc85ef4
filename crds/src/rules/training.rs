//! The rules of `spec.rollout` and `spec.training`: batch arithmetic and budgets.

use super::algorithm::{cel_estimator, estimator, with_critic};
use super::{Check, Rule, cel_learns_from, cel_list, cel_preset, divisors, learns_from, preset_of};
use crate::spec::{LearnsFrom, RLTrainingJobSpec, ScheduleKind};

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

/// The least number of ranks that share passes under the actor's budget: `own` of the actor, or those of a
/// role, of which degree and budget are given, that has a degree of its own but no budget.
fn least_sp(own: u32, roles: &[(Option<u32>, Option<u32>)]) -> u32 {
    let of_roles = roles.iter().filter_map(|(degree, budget)| degree.filter(|_| budget.is_none()));
    of_roles.fold(own, u32::min)
}

/// The same in CEL; of roles the paths of degree and budget are given.
fn cel_holds_longest(tokens: &str, own: &str, roles: &[(&str, &str)]) -> String {
    let mut rule = format!("!has({tokens}) || ({}", cel_is_longest_within(&format!("{tokens} * {own}")));
    for (degree, budget) in roles {
        let of_role = cel_is_longest_within(&format!("{tokens} * {degree}"));
        rule += &format!(" && (!has({degree}) || ({}) || {of_role})", cel_has(budget));
    }
    rule + ")"
}

/// Whether a field of `training.roles` is given, in CEL.
fn cel_has(path: &str) -> String {
    let roles = "self.training.roles";
    let ends = path.match_indices('.').map(|(end, _)| end).chain([path.len()]);
    let steps = ends.filter(|end| *end >= roles.len()).map(|end| format!("has({})", &path[..end]));
    steps.collect::<Vec<_>>().join(" && ")
}

/// The budget of a role besides the actor holds the longest sequence, in CEL; `sp` ranks share its passes.
fn cel_role_holds_longest(tokens: &str, sp: &str) -> String {
    format!("!({}) || {}", cel_has(tokens), cel_is_longest_within(&format!("{tokens} * {sp}")))
}

const CEL_LOGPROB_SP: &str =
    "(has(self.workers.mesh.logprobSp) ? self.workers.mesh.logprobSp : self.workers.mesh.sp)";
const CEL_REFERENCE_SP: &str = "(has(self.workers.mesh.referenceSp) ? self.workers.mesh.referenceSp : \
      has(self.workers.mesh.logprobSp) ? self.workers.mesh.logprobSp : self.workers.mesh.sp)";
const CRITIC_SP: &str = "self.workers.mesh.criticSp";
const REFERENCE_SP: &str = "self.workers.mesh.referenceSp";
const CEL_CRITIC_SP: &str =
    "(has(self.workers.mesh.criticSp) ? self.workers.mesh.criticSp : self.workers.mesh.sp)";
const CRITIC_MICRO_BATCH: &str = "self.training.roles.critic.maxTokensPerMicroBatch";
const CRITIC_FORWARD: &str = "self.training.roles.critic.maxForwardTokens";
const REFERENCE_FORWARD: &str = "self.training.roles.reference.maxForwardTokens";
const REFERENCE_OFFLOAD: &str = "self.training.roles.reference.offloadParameters";

fn at_least_of(spec: &RLTrainingJobSpec, sp: u32) -> String {
    format!("at least {}", longest(spec).div_ceil(sp.into()))
}

/// Whether layers of a role that is trained are gathered of shards, or fetched from offload storage.
fn gathers_layers(spec: &RLTrainingJobSpec) -> bool {
    let (mesh, training) = (&spec.workers.mesh, &spec.training);
    let offload_of_critic = training.critic_role().offload.is_some_and(|offload| offload.parameters);
    mesh.dp_shard > 1 || mesh.dp_shard_of_critic() > 1 || training.offload.parameters || offload_of_critic
}

const CEL_GATHERS_LAYERS: &str = "self.workers.mesh.dpShard > 1 || \
     (has(self.workers.mesh.criticDpShard) && self.workers.mesh.criticDpShard > 1) || \
     self.training.offload.parameters || (has(self.training.roles) && has(self.training.roles.critic) && \
     has(self.training.roles.critic.offload) && self.training.roles.critic.offload.parameters)";

/// Ranks that share the smallest update under the actor's budget.
fn update_sp(spec: &RLTrainingJobSpec) -> u32 {
    let critic = (spec.workers.mesh.critic_sp, spec.training.critic_role().max_tokens_per_micro_batch);
    least_sp(spec.workers.mesh.sp, &[critic])
}

/// The same of passes without gradients.
fn forward_sp(spec: &RLTrainingJobSpec) -> u32 {
    let (mesh, training) = (&spec.workers.mesh, &spec.training);
    let critic = (mesh.critic_sp, training.critic_role().max_forward_tokens);
    let reference = (mesh.reference_sp, training.reference_role().max_forward_tokens);
    least_sp(mesh.sp_of_logprobs(), &[critic, reference])
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
        message: "SFT, preference training and reward models make one update a step: promptsPerUpdate must be promptsPerStep",
        cel: || {
            format!(
                "!has(self.training.promptsPerUpdate) || !({}) || \
                 self.training.promptsPerUpdate == self.training.promptsPerStep",
                cel_learns_from("self.algorithm", LearnsFrom::updates_once)
            )
        },
        holds: Check::Spec(|spec| {
            let given = spec.training.prompts_per_update;
            !learns_from(spec).updates_once()
                || given.is_none_or(|prompts| prompts == spec.training.prompts_per_step)
        }),
        allowed: Some(|spec| spec.training.prompts_per_step.to_string()),
    },
    Rule {
        scope: "spec",
        at: "training.epochsPerBatch",
        reads: &["training.epochsPerBatch", "algorithm.kind"],
        message: "SFT, preference training and reward models make one update a step: epochsPerBatch must be 1",
        cel: || {
            format!(
                "self.training.epochsPerBatch == 1 || !({})",
                cel_learns_from("self.algorithm", LearnsFrom::updates_once)
            )
        },
        holds: Check::Spec(|spec| !learns_from(spec).updates_once() || spec.training.epochs_per_batch == 1),
        allowed: Some(|_| "1".into()),
    },
    Rule {
        scope: "spec",
        at: "training.maxTokensPerMicroBatch",
        reads: &[
            "training.maxTokensPerMicroBatch",
            "workers.mesh.sp",
            "workers.mesh.criticSp",
            "training.roles.critic.maxTokensPerMicroBatch",
            "data.maxPromptTokens",
            "rollout.maxCompletionTokens",
            "rollout.maxModelTokens",
        ],
        message: "maxTokensPerMicroBatch, times workers.mesh.sp, and criticSp where it is given, must hold data.maxPromptTokens \
                  and rollout.maxCompletionTokens together",
        cel: || {
            let sp = "self.workers.mesh.sp";
            cel_holds_longest("self.training.maxTokensPerMicroBatch", sp, &[(CRITIC_SP, CRITIC_MICRO_BATCH)])
        },
        holds: Check::Spec(|spec| {
            holds_longest(spec, spec.training.max_tokens_per_micro_batch, update_sp(spec))
        }),
        allowed: Some(|spec| at_least_of(spec, update_sp(spec))),
    },
    Rule {
        scope: "spec",
        at: "training.maxLogprobTokens",
        reads: &[
            "training.maxLogprobTokens",
            "workers.mesh.sp",
            "workers.mesh.logprobSp",
            "workers.mesh.referenceSp",
            "workers.mesh.criticSp",
            "training.roles.critic.maxForwardTokens",
            "training.roles.reference.maxForwardTokens",
            "data.maxPromptTokens",
            "rollout.maxCompletionTokens",
            "rollout.maxModelTokens",
        ],
        message: "maxLogprobTokens, times workers.mesh.logprobSp (by default sp), and criticSp and referenceSp where they are \
                  given, must hold data.maxPromptTokens and rollout.maxCompletionTokens together",
        cel: || {
            let roles = [(CRITIC_SP, CRITIC_FORWARD), (REFERENCE_SP, REFERENCE_FORWARD)];
            cel_holds_longest("self.training.maxLogprobTokens", CEL_LOGPROB_SP, &roles)
        },
        holds: Check::Spec(|spec| holds_longest(spec, spec.training.max_logprob_tokens, forward_sp(spec))),
        allowed: Some(|spec| at_least_of(spec, forward_sp(spec))),
    },
    Rule {
        scope: "spec",
        at: "training.roles.critic.maxTokensPerMicroBatch",
        reads: &[
            "training.roles.critic.maxTokensPerMicroBatch",
            "workers.mesh.sp",
            "workers.mesh.criticSp",
            "data.maxPromptTokens",
            "rollout.maxCompletionTokens",
            "rollout.maxModelTokens",
        ],
        message: "the critic's maxTokensPerMicroBatch, times workers.mesh.criticSp (by default sp), must hold data.maxPromptTokens and \
                  rollout.maxCompletionTokens together",
        cel: || cel_role_holds_longest(CRITIC_MICRO_BATCH, CEL_CRITIC_SP),
        holds: Check::Spec(|spec| {
            holds_longest(
                spec,
                spec.training.critic_role().max_tokens_per_micro_batch,
                spec.workers.mesh.sp_of_critic(),
            )
        }),
        allowed: Some(|spec| at_least_of(spec, spec.workers.mesh.sp_of_critic())),
    },
    Rule {
        scope: "spec",
        at: "training.roles.critic.maxForwardTokens",
        reads: &[
            "training.roles.critic.maxForwardTokens",
            "workers.mesh.sp",
            "workers.mesh.criticSp",
            "data.maxPromptTokens",
            "rollout.maxCompletionTokens",
            "rollout.maxModelTokens",
        ],
        message: "the critic's maxForwardTokens, times workers.mesh.criticSp (by default sp), must hold data.maxPromptTokens and \
                  rollout.maxCompletionTokens together",
        cel: || cel_role_holds_longest(CRITIC_FORWARD, CEL_CRITIC_SP),
        holds: Check::Spec(|spec| {
            holds_longest(
                spec,
                spec.training.critic_role().max_forward_tokens,
                spec.workers.mesh.sp_of_critic(),
            )
        }),
        allowed: Some(|spec| at_least_of(spec, spec.workers.mesh.sp_of_critic())),
    },
    Rule {
        scope: "spec",
        at: "training.roles.reference.maxForwardTokens",
        reads: &[
            "training.roles.reference.maxForwardTokens",
            "workers.mesh.sp",
            "workers.mesh.logprobSp",
            "workers.mesh.referenceSp",
            "data.maxPromptTokens",
            "rollout.maxCompletionTokens",
            "rollout.maxModelTokens",
        ],
        message: "the reference's maxForwardTokens, times workers.mesh.referenceSp (by default logprobSp, else sp), must hold \
                  data.maxPromptTokens and rollout.maxCompletionTokens together",
        cel: || cel_role_holds_longest(REFERENCE_FORWARD, CEL_REFERENCE_SP),
        holds: Check::Spec(|spec| {
            holds_longest(
                spec,
                spec.training.reference_role().max_forward_tokens,
                spec.workers.mesh.sp_of_reference(),
            )
        }),
        allowed: Some(|spec| at_least_of(spec, spec.workers.mesh.sp_of_reference())),
    },
    Rule {
        scope: "spec.training",
        at: "roles.critic.offload.activations",
        reads: &["roles.critic.offload.activations", "activationCheckpointing"],
        message: "the critic's offload.activations needs activationCheckpointing: without it layers keep more than their \
                  inputs",
        cel: || {
            "!has(self.roles) || !has(self.roles.critic) || !has(self.roles.critic.offload) || \
             !self.roles.critic.offload.activations || \
             (has(self.activationCheckpointing) && self.activationCheckpointing)"
                .into()
        },
        holds: Check::Spec(|spec| {
            let own = spec.training.critic_role().offload;
            own.is_none_or(|own| !own.activations) || spec.training.activation_checkpointing == Some(true)
        }),
        allowed: Some(|_| "false, or activationCheckpointing true".into()),
    },
    Rule {
        scope: "spec",
        at: "training.roles.reference.offloadParameters",
        reads: &["training.roles.reference.offloadParameters", "model.lora"],
        message: "with model.lora the reference has no weights of its own: remove its offloadParameters",
        cel: || format!("!({}) || !has(self.model.lora)", cel_has(REFERENCE_OFFLOAD)),
        holds: Check::Spec(|spec| {
            spec.training.reference_role().offload_parameters.is_none() || spec.model.lora.is_none()
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "training.roles.reference.precision",
        reads: &["training.roles.reference.precision", "model.lora"],
        message: "with model.lora the reference has no weights of its own: remove its precision",
        cel: || format!("!({}) || !has(self.model.lora)", cel_has("self.training.roles.reference.precision")),
        holds: Check::Spec(|spec| {
            spec.training.reference_role().precision.is_none() || spec.model.lora.is_none()
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "training.roles.critic.precision",
        reads: &["training.roles.critic.precision", "model.lora"],
        message: "with model.lora the critic computes with the actor's base weights: remove its precision",
        cel: || format!("!({}) || !has(self.model.lora)", cel_has("self.training.roles.critic.precision")),
        holds: Check::Spec(|spec| {
            spec.training.critic_role().precision.is_none() || spec.model.lora.is_none()
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "training.roles.critic",
        reads: &["training.roles.critic", "algorithm.advantage.estimator", "algorithm.kind"],
        message: "roles.critic is used only with an estimator that reads a critic's values, such as Gae, which PPO includes",
        cel: || {
            let (has, estimator) = (cel_has("self.training.roles.critic"), cel_estimator("self.algorithm"));
            format!("!({has}) || {estimator} in {}", cel_list(&with_critic()))
        },
        holds: Check::Spec(|spec| {
            spec.training.roles.and_then(|roles| roles.critic).is_none()
                || with_critic().contains(&estimator(spec))
        }),
        allowed: None,
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
        scope: "spec",
        at: "training.reshardAfterForward",
        reads: &[
            "training.reshardAfterForward",
            "training.unshardedLayers",
            "training.offload.parameters",
            "training.roles.critic.offload.parameters",
            "workers.mesh.dpShard",
            "workers.mesh.criticDpShard",
        ],
        message: "reshardAfterForward false and unshardedLayers need layers that are gathered: share them by \
                  workers.mesh.dpShard or criticDpShard, or move them by training.offload.parameters",
        cel: || {
            format!(
                "(self.training.reshardAfterForward && !has(self.training.unshardedLayers)) || {CEL_GATHERS_LAYERS}"
            )
        },
        holds: Check::Spec(|spec| {
            let is_default = spec.training.reshard_after_forward && spec.training.unsharded_layers.is_none();
            is_default || gathers_layers(spec)
        }),
        allowed: Some(|_| "true, without unshardedLayers".into()),
    },
    Rule {
        scope: "spec.training",
        at: "unshardedLayers",
        reads: &["unshardedLayers", "reshardAfterForward"],
        message: "with reshardAfterForward false all layers stay gathered: remove unshardedLayers",
        cel: || "self.reshardAfterForward || !has(self.unshardedLayers)".into(),
        holds: Check::Spec(|spec| {
            spec.training.reshard_after_forward || spec.training.unsharded_layers.is_none()
        }),
        allowed: None,
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
        scope: "spec",
        at: "training.schedule.minRatio",
        reads: &[
            "training.schedule.minRatio",
            "training.schedule.kind",
            "algorithm.kind",
            "algorithm.preset",
        ],
        message: "minRatio is not used by the schedule Constant",
        cel: || {
            format!(
                "self.training.schedule.minRatio == 0.0 || (has(self.training.schedule.kind) ? \
                 self.training.schedule.kind : {}) != 'Constant'",
                cel_preset("self.algorithm", |preset| preset.schedule)
            )
        },
        holds: Check::Spec(|spec| {
            let schedule = &spec.training.schedule;
            let kind = schedule.kind.unwrap_or_else(|| preset_of(spec).schedule);
            kind != ScheduleKind::Constant || schedule.min_ratio == 0.0
        }),
        allowed: Some(|_| "0, or the kind Cosine or Linear".into()),
    },
];
