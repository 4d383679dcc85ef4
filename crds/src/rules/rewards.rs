//! The rules of `spec.rewards`.

use super::{Check, Rule, cel_list, cel_samples_nothing};
use crate::spec::RewardKind;

const WITH_PATTERN: &[RewardKind] = &[RewardKind::Regex, RewardKind::Format];

pub(super) const RULES: &[Rule] = &[
    Rule {
        scope: "spec",
        at: "rewards.functions",
        reads: &["rewards.functions", "algorithm.kind"],
        message: "reinforcement learning needs at least one reward function",
        cel: || format!("self.rewards.functions.size() > 0 || {}", cel_samples_nothing("self.algorithm")),
        holds: Check::Spec(|spec| !spec.algorithm.kind.samples() || !spec.rewards.functions.is_empty()),
        allowed: None,
    },
    Rule {
        scope: "spec.rewards.functions",
        at: "",
        reads: &["[].name"],
        message: "the names of reward functions must differ",
        cel: || "self.all(one, self.exists_one(other, other.name == one.name))".into(),
        holds: Check::Spec(|spec| {
            let functions = &spec.rewards.functions;
            let is_first =
                |idx: usize| functions[..idx].iter().all(|other| other.name != functions[idx].name);
            (0..functions.len()).all(is_first)
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.rewards.functions[]",
        at: "pattern",
        reads: &["pattern", "kind"],
        message: "the kinds Regex and Format need a pattern, and no other kind reads one",
        cel: || format!("has(self.pattern) == (self.kind in {})", cel_list(WITH_PATTERN)),
        holds: Check::RewardFunction(|function| {
            function.pattern.is_some() == WITH_PATTERN.contains(&function.kind)
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.rewards.functions[]",
        at: "schema",
        reads: &["schema", "kind"],
        message: "the kind JsonSchema needs a schema, and no other kind reads one",
        cel: || "has(self.schema) == (self.kind == 'JsonSchema')".into(),
        holds: Check::RewardFunction(|function| {
            function.schema.is_some() == (function.kind == RewardKind::JsonSchema)
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.rewards.functions[]",
        at: "targetTokens",
        reads: &["targetTokens", "kind"],
        message: "the kind Length needs targetTokens, and no other kind reads it",
        cel: || "has(self.targetTokens) == (self.kind == 'Length')".into(),
        holds: Check::RewardFunction(|function| {
            function.target_tokens.is_some() == (function.kind == RewardKind::Length)
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.rewards.functions[]",
        at: "model",
        reads: &["model", "kind"],
        message: "the kind Model needs a model, and no other kind reads one",
        cel: || "has(self.model) == (self.kind == 'Model')".into(),
        holds: Check::RewardFunction(|function| {
            function.model.is_some() == (function.kind == RewardKind::Model)
        }),
        allowed: None,
    },
    Rule {
        scope: "spec.rewards.functions[].model",
        at: "",
        reads: &["path", "hub"],
        message: "exactly one of path and hub must be given",
        cel: || "has(self.path) != has(self.hub)".into(),
        holds: Check::RewardFunction(|function| {
            function.model.as_ref().is_none_or(|model| model.path.is_some() != model.hub.is_some())
        }),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "rewards.functions",
        reads: &["rewards.functions[].targetTokens", "rollout.maxCompletionTokens"],
        message: "targetTokens of every reward function must be below rollout.maxCompletionTokens",
        cel: || {
            "self.rewards.functions.all(each, !has(each.targetTokens) || \
             each.targetTokens < self.rollout.maxCompletionTokens)"
                .into()
        },
        holds: Check::Spec(|spec| {
            let limit = spec.rollout.max_completion_tokens;
            spec.rewards
                .functions
                .iter()
                .all(|function| function.target_tokens.is_none_or(|target| target < limit))
        }),
        allowed: Some(|spec| format!("targetTokens below {}", spec.rollout.max_completion_tokens)),
    },
    Rule {
        scope: "spec.rewards.clip",
        at: "min",
        reads: &["min", "max"],
        message: "min must be below max",
        cel: || "self.min < self.max".into(),
        holds: Check::Spec(|spec| spec.rewards.clip.as_ref().is_none_or(|clip| clip.min < clip.max)),
        allowed: None,
    },
    Rule {
        scope: "spec",
        at: "rewards.overlong.bufferTokens",
        reads: &["rewards.overlong.bufferTokens", "rollout.maxCompletionTokens"],
        message: "overlong.bufferTokens must not exceed rollout.maxCompletionTokens",
        cel: || {
            "!has(self.rewards.overlong) || self.rewards.overlong.bufferTokens <= self.rollout.maxCompletionTokens"
                .into()
        },
        holds: Check::Spec(|spec| {
            let limit = spec.rollout.max_completion_tokens;
            spec.rewards.overlong.as_ref().is_none_or(|overlong| overlong.buffer_tokens <= limit)
        }),
        allowed: Some(|spec| format!("1 to {}", spec.rollout.max_completion_tokens)),
    },
];
