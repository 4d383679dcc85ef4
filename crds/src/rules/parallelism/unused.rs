//! Rules against degrees of a role or a pass that the job does not have.

use crate::rules::algorithm::{cel_estimator, estimator, with_critic};
use crate::rules::{Check, Rule, cel_learns_from, cel_list, cel_samples_nothing, learns_from};
use crate::spec::LearnsFrom;

/// Whether jobs of a kind never read log-probs of a reference policy.
fn is_without_reference(from: LearnsFrom) -> bool {
    matches!(from, LearnsFrom::Demonstrations | LearnsFrom::ScoredPairs | LearnsFrom::Steps)
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec",
        at: "workers.mesh.referenceDpShard",
        reads: &["workers.mesh.referenceDpShard", "model.lora", "algorithm.kind"],
        message: "without a frozen reference there is nothing to share: remove referenceDpShard with model.lora, SFT, \
                  RewardModel and ProcessReward",
        cel: || {
            let none = cel_learns_from("self.algorithm", is_without_reference);
            format!("!has(self.workers.mesh.referenceDpShard) || (!has(self.model.lora) && !({none}))")
        },
        holds: Check::Spec(|spec| {
            let has_frozen = spec.model.lora.is_none() && !is_without_reference(learns_from(spec));
            spec.workers.mesh.reference_dp_shard.is_none() || has_frozen
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "workers.mesh.criticDpShard",
        reads: &[
            "workers.mesh.criticDpShard",
            "model.lora",
            "algorithm.advantage.estimator",
            "algorithm.kind",
        ],
        message: "criticDpShard needs a critic with weights of its own: an estimator that reads values, such as Gae, and no \
                  model.lora",
        cel: || {
            let estimator = cel_estimator("self.algorithm");
            format!(
                "!has(self.workers.mesh.criticDpShard) || \
                 (!has(self.model.lora) && {estimator} in {})",
                cel_list(&with_critic())
            )
        },
        holds: Check::Spec(|spec| {
            let has_own = spec.model.lora.is_none() && with_critic().contains(&estimator(spec));
            spec.workers.mesh.critic_dp_shard.is_none() || has_own
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "workers.mesh.logprobSp",
        reads: &["workers.mesh.logprobSp", "algorithm.kind"],
        message: "SFT computes no log-probs without gradients: remove logprobSp",
        cel: || {
            let is_supervised = cel_learns_from("self.algorithm", |from| from == LearnsFrom::Demonstrations);
            format!("!({is_supervised}) || !has(self.workers.mesh.logprobSp)")
        },
        holds: Check::Spec(|spec| {
            spec.workers.mesh.logprob_sp.is_none() || learns_from(spec) != LearnsFrom::Demonstrations
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "workers.mesh.referenceSp",
        reads: &["workers.mesh.referenceSp", "algorithm.kind"],
        message: "SFT, RewardModel and ProcessReward read no reference: remove referenceSp",
        cel: || {
            let none = cel_learns_from("self.algorithm", is_without_reference);
            format!("!has(self.workers.mesh.referenceSp) || !({none})")
        },
        holds: Check::Spec(|spec| {
            spec.workers.mesh.reference_sp.is_none() || !is_without_reference(learns_from(spec))
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "workers.mesh.criticSp",
        reads: &["workers.mesh.criticSp", "algorithm.advantage.estimator", "algorithm.kind"],
        message: "criticSp is used only with an estimator that reads a critic's values, such as Gae, which PPO includes",
        cel: || {
            let estimator = cel_estimator("self.algorithm");
            format!("!has(self.workers.mesh.criticSp) || {estimator} in {}", cel_list(&with_critic()))
        },
        holds: Check::Spec(|spec| {
            spec.workers.mesh.critic_sp.is_none() || with_critic().contains(&estimator(spec))
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "workers.mesh.rolloutTp",
        reads: &["workers.mesh.rolloutTp", "algorithm.kind", "rewards.functions"],
        message: "training on a data set without reward functions samples nothing: remove rolloutTp",
        cel: || {
            format!(
                "self.workers.mesh.rolloutTp == 1 || self.rewards.functions.size() > 0 || !({})",
                cel_samples_nothing("self.algorithm")
            )
        },
        holds: Check::Spec(|spec| {
            spec.workers.mesh.rollout_tp == 1
                || spec.algorithm.kind.samples()
                || !spec.rewards.functions.is_empty()
        }),
        allowed: None,
    },
];
