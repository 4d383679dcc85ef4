//! Rules of `spec.training.roles`: settings of a role that the job does not have, or that it cannot use.
//! Budgets of roles are in `budgets`.

use crate::conflicts::{CRITIC_PRECISION_ADAPTER, REFERENCE_OFFLOAD_ADAPTER, REFERENCE_PRECISION_ADAPTER};
use crate::rules::algorithm::{cel_estimator, estimator, with_critic};
use crate::rules::{Check, Rule, cel_list, conflict};

/// CEL condition that a field of `training.roles` is given.
pub(crate) fn cel_has(path: &str) -> String {
    let roles = "self.training.roles";
    let ends = path.match_indices('.').map(|(end, _)| end).chain([path.len()]);
    let steps = ends.filter(|end| *end >= roles.len()).map(|end| format!("has({})", &path[..end]));
    steps.collect::<Vec<_>>().join(" && ")
}

pub(in crate::rules) const RULES: &[Rule] = &[
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
    conflict(REFERENCE_OFFLOAD_ADAPTER),
    conflict(REFERENCE_PRECISION_ADAPTER),
    conflict(CRITIC_PRECISION_ADAPTER),
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
];
