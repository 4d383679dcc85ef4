//! Rules of the kinds that train a reward model.

use super::{Check, Rule, cel_learns_from, learns_from};
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
    Rule {
        scope: "spec",
        at: "model.lora.dropout",
        reads: &["model.lora.dropout", "algorithm.kind"],
        message: "preferences and reward models are learned without dropout: scores are computed before their gradient",
        cel: || {
            format!(
                "!({}) || !has(self.model.lora) || self.model.lora.dropout == 0.0",
                cel_learns_from("self.algorithm", LearnsFrom::scores_completions)
            )
        },
        holds: Check::Spec(|spec| {
            let dropout = spec.model.lora.as_ref().map_or(0.0, |lora| lora.dropout);
            dropout == 0.0 || !learns_from(spec).scores_completions()
        }),
        allowed: Some(|_| "0".into()),
    },
    Rule {
        scope: "spec",
        at: "model.lora.adapterPath",
        reads: &["model.lora.adapterPath", "algorithm.kind"],
        message: "a reward model begins with a fresh adapter: remove adapterPath",
        cel: || {
            format!(
                "!({}) || !has(self.model.lora) || !has(self.model.lora.adapterPath)",
                cel_trains_reward_model()
            )
        },
        holds: Check::Spec(|spec| {
            let has_path = spec.model.lora.as_ref().is_some_and(|lora| lora.adapter_path.is_some());
            !has_path || !learns_from(spec).trains_reward_model()
        }),
        allowed: None,
    },
];
