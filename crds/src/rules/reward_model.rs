//! Rules of the kinds that train a reward model.

use super::{Check, Rule, cel_learns_from, conflict, learns_from};
use crate::conflicts::{REWARD_MODEL_ADAPTER, SCORED_DROPOUT};
use crate::spec::LearnsFrom;

fn cel_trains_reward_model() -> String {
    cel_learns_from("self.algorithm", LearnsFrom::trains_reward_model)
}

fn is_steps(from: LearnsFrom) -> bool {
    from == LearnsFrom::Steps
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.algorithm",
        at: "rewardModel",
        reads: &["rewardModel", "kind"],
        message: "rewardModel is used only by the kind RewardModel",
        cel: || {
            let is_used = cel_learns_from("self", |from| from == LearnsFrom::ScoredPairs);
            format!("!has(self.rewardModel) || {is_used}")
        },
        holds: Check::Spec(|spec| {
            spec.algorithm.reward_model.is_none() || learns_from(spec) == LearnsFrom::ScoredPairs
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.algorithm",
        at: "processReward",
        reads: &["processReward", "kind"],
        message: "processReward is used only by the kind ProcessReward",
        cel: || format!("!has(self.processReward) || {}", cel_learns_from("self", is_steps)),
        holds: Check::Spec(|spec| spec.algorithm.process_reward.is_none() || is_steps(learns_from(spec))),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "data.task",
        reads: &["data.task", "algorithm.kind"],
        message: "a generated task has no completions of several steps: give data.train",
        cel: || format!("!has(self.data.task) || !({})", cel_learns_from("self.algorithm", is_steps)),
        holds: Check::Spec(|spec| spec.data.task.is_none() || !is_steps(learns_from(spec))),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "rewards.functions",
        reads: &["rewards.functions", "algorithm.kind"],
        message: "a reward model samples no completions that functions could judge: remove rewards.functions",
        cel: || format!("self.rewards.functions.size() == 0 || !({})", cel_trains_reward_model()),
        holds: Check::Spec(|spec| {
            spec.rewards.functions.is_empty() || !learns_from(spec).trains_reward_model()
        }),
        allowed: None,
    },
    conflict(SCORED_DROPOUT),
    conflict(REWARD_MODEL_ADAPTER),
];
