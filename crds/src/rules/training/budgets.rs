//! Rules of the token budgets of each role's passes: over the ranks of a sequence-parallel group they must
//! hold the longest sequence.

use super::roles::cel_has;
use crate::rules::rollout::{cel_is_longest_within, holds_longest, longest};
use crate::rules::{Check, Rule};
use crate::spec::RLTrainingJobSpec;

/// Returns the smallest sequence-parallel degree of passes under the actor's budget. `own` is the actor's
/// degree; `roles` are degree and budget of other roles, which count if they have a degree but no budget.
fn least_sp(own: u32, roles: &[(Option<u32>, Option<u32>)]) -> u32 {
    let of_roles = roles.iter().filter_map(|(degree, budget)| degree.filter(|_| budget.is_none()));
    of_roles.fold(own, u32::min)
}

/// CEL condition that the budget `tokens` holds the longest sequence at the actor's degree `own` and at the
/// degrees of `roles`, given as paths of degree and budget.
fn cel_holds_longest(tokens: &str, own: &str, roles: &[(&str, &str)]) -> String {
    let mut rule = format!("!has({tokens}) || ({}", cel_is_longest_within(&format!("{tokens} * {own}")));
    for (degree, budget) in roles {
        let of_role = cel_is_longest_within(&format!("{tokens} * {degree}"));
        rule += &format!(" && (!has({degree}) || ({}) || {of_role})", cel_has(budget));
    }
    rule + ")"
}

/// CEL condition that the budget of a role besides the actor holds the longest sequence at the degree `sp`.
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

fn at_least_of(spec: &RLTrainingJobSpec, sp: u32) -> String {
    format!("at least {}", longest(spec).div_ceil(sp.into()))
}

/// Returns the smallest sequence-parallel degree of updates under the actor's budget.
fn update_sp(spec: &RLTrainingJobSpec) -> u32 {
    let critic = (spec.workers.mesh.critic_sp, spec.training.critic_role().max_tokens_per_micro_batch);
    least_sp(spec.workers.mesh.sp, &[critic])
}

/// Returns the smallest sequence-parallel degree of passes without gradients under the actor's budget.
fn forward_sp(spec: &RLTrainingJobSpec) -> u32 {
    let (mesh, training) = (&spec.workers.mesh, &spec.training);
    let critic = (mesh.critic_sp, training.critic_role().max_forward_tokens);
    let reference = (mesh.reference_sp, training.reference_role().max_forward_tokens);
    least_sp(mesh.sp_of_logprobs(), &[critic, reference])
}

pub(in crate::rules) const RULES: &[Rule] = &[
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
];
