//! Rules of `spec.runPolicy.failurePolicy`.

use super::super::{Check, Rule};
use crate::failure::FailureCause;
use crate::spec::{FailureAction, FailureRuleSpec, RLTrainingJobSpec};

const SCOPE: &str = "spec.runPolicy.failurePolicy.rules";

fn all(spec: &RLTrainingJobSpec, holds: fn(&FailureRuleSpec) -> bool) -> bool {
    spec.run_policy.failure_policy.iter().flat_map(|policy| &policy.rules).all(holds)
}

pub(in crate::rules) const RULES: &[Rule] = &[
    Rule {
        scope: SCOPE,
        at: "",
        reads: &["[].onExitCodes", "[].onReasons", "[].onCauses"],
        message: "a rule needs at least one of onExitCodes, onReasons and onCauses: it would match everything",
        cel: || "self.all(one, has(one.onExitCodes) || has(one.onReasons) || has(one.onCauses))".into(),
        holds: Check::Spec(|spec| {
            all(spec, |rule| {
                rule.on_exit_codes.is_some() || !rule.on_reasons.is_empty() || !rule.on_causes.is_empty()
            })
        }),
        allowed: None,
    },
    Rule {
        scope: SCOPE,
        at: "",
        reads: &["[].action", "[].avoidNode"],
        message: "avoidNode needs the action Restart or Ignore: a job that fails is given no other node",
        cel: || "self.all(one, one.action != 'FailJob' || !has(one.avoidNode) || !one.avoidNode)".into(),
        holds: Check::Spec(|spec| {
            all(spec, |rule| rule.action != FailureAction::FailJob || !rule.avoid_node)
        }),
        allowed: None,
    },
    Rule {
        scope: SCOPE,
        at: "",
        reads: &["[].onCauses"],
        message: "onCauses cannot name DeadlineExceeded: activeDeadlineSeconds ends a job whatever a rule says",
        cel: || "self.all(one, !has(one.onCauses) || !('DeadlineExceeded' in one.onCauses))".into(),
        holds: Check::Spec(|spec| {
            all(spec, |rule| !rule.on_causes.contains(&FailureCause::DeadlineExceeded))
        }),
        allowed: Some(|_| {
            let causes = FailureCause::ALL.into_iter();
            let causes = causes.filter(|cause| *cause != FailureCause::DeadlineExceeded);
            format!("of {}", causes.map(|cause| format!("{cause:?}")).collect::<Vec<_>>().join(", "))
        }),
    },
    Rule {
        scope: SCOPE,
        at: "",
        reads: &["[].name"],
        message: "the names of rules must differ",
        cel: || {
            "self.all(one, !has(one.name) || self.exists_one(other, has(other.name) && other.name == one.name))"
                .into()
        },
        holds: Check::Spec(|spec| {
            let policy = spec.run_policy.failure_policy.as_ref();
            let names: Vec<_> = policy
                .iter()
                .flat_map(|policy| &policy.rules)
                .filter_map(|rule| rule.name.as_ref())
                .collect();
            (0..names.len()).all(|idx| !names[..idx].contains(&names[idx]))
        }),
        allowed: None,
    },
];
