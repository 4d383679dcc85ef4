//! Rules against degrees of a role or a pass that the job does not have.

use crate::conflicts::{CRITIC_SHARDS, REFERENCE_SHARDS};
use crate::rules::algorithm::{cel_estimator, estimator, with_critic};
use crate::rules::{Check, Rule, cel_learns_from, cel_list, cel_samples_nothing, conflict, learns_from};
use crate::spec::LearnsFrom;

pub(super) const RULES: &[Rule] = &[
    conflict(REFERENCE_SHARDS),
    conflict(CRITIC_SHARDS),
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
            let none = cel_learns_from("self.algorithm", LearnsFrom::never_reads_reference);
            format!("!has(self.workers.mesh.referenceSp) || !({none})")
        },
        holds: Check::Spec(|spec| {
            spec.workers.mesh.reference_sp.is_none() || !learns_from(spec).never_reads_reference()
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
