//! Rules of `spec.training.roles`: settings of a role that the job does not have, or that it cannot use.
//! Budgets of roles are in `budgets`.

use super::algorithm::{cel_estimator, estimator, with_critic};
use super::{Check, Rule, cel_list};

/// CEL condition that a field of `training.roles` is given.
pub(super) fn cel_has(path: &str) -> String {
    let roles = "self.training.roles";
    let ends = path.match_indices('.').map(|(end, _)| end).chain([path.len()]);
    let steps = ends.filter(|end| *end >= roles.len()).map(|end| format!("has({})", &path[..end]));
    steps.collect::<Vec<_>>().join(" && ")
}

const REFERENCE_OFFLOAD: &str = "self.training.roles.reference.offloadParameters";

pub(super) const RULES: &[Rule] = &[
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
];
