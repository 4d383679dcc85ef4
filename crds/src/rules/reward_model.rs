//! The rules of kinds that train a reward model.

use super::{Check, Rule, cel_list};
use crate::spec::AlgorithmKind;

fn kinds() -> Vec<AlgorithmKind> {
    AlgorithmKind::ALL.into_iter().filter(|kind| kind.trains_reward_model()).collect()
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec.algorithm",
        at: "rewardModel",
        reads: &["rewardModel", "kind"],
        message: "rewardModel is used only by the kind RewardModel",
        cel: || "!has(self.rewardModel) || self.kind == 'RewardModel'".into(),
        holds: Check::Spec(|spec| {
            spec.algorithm.reward_model.is_none() || spec.algorithm.kind == AlgorithmKind::RewardModel
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "rewards.functions",
        reads: &["rewards.functions", "algorithm.kind"],
        message: "a reward model samples no completions that functions could judge: remove rewards.functions",
        cel: || {
            format!("self.rewards.functions.size() == 0 || !(self.algorithm.kind in {})", cel_list(&kinds()))
        },
        holds: Check::Spec(|spec| {
            spec.rewards.functions.is_empty() || !spec.algorithm.kind.trains_reward_model()
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "model.lora.dropout",
        reads: &["model.lora.dropout", "algorithm.kind"],
        message: "a reward model is trained without dropout: its scores are computed before their gradient",
        cel: || {
            format!(
                "!(self.algorithm.kind in {}) || !has(self.model.lora) || self.model.lora.dropout == 0.0",
                cel_list(&kinds())
            )
        },
        holds: Check::Spec(|spec| {
            let dropout = spec.model.lora.as_ref().map_or(0.0, |lora| lora.dropout);
            dropout == 0.0 || !spec.algorithm.kind.trains_reward_model()
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
                "!(self.algorithm.kind in {}) || !has(self.model.lora) || !has(self.model.lora.adapterPath)",
                cel_list(&kinds())
            )
        },
        holds: Check::Spec(|spec| {
            let has_path = spec.model.lora.as_ref().is_some_and(|lora| lora.adapter_path.is_some());
            !has_path || !spec.algorithm.kind.trains_reward_model()
        }),
        allowed: None,
    },
];
