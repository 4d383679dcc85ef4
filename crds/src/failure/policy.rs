//! Rules of `spec.runPolicy.failurePolicy` as text, for plans and statuses. Another module matches rules to
//! failures.

use crate::spec::{ExitCodesOperator, FailureAction, FailurePolicySpec, FailureRuleSpec};

/// Returns the name of a rule, or its index if it has none.
pub fn rule_name(idx: usize, rule: &FailureRuleSpec) -> String {
    rule.name.clone().unwrap_or_else(|| format!("rules[{idx}]"))
}

/// Describes a rule's conditions and action in words.
pub fn rule_in_words(policy: &FailurePolicySpec, rule: &FailureRuleSpec) -> String {
    let list = |names: Vec<String>| names.join(", ");
    let codes = rule.on_exit_codes.as_ref().map(|codes| {
        let values = list(codes.values.iter().map(ToString::to_string).collect());
        match codes.operator {
            ExitCodesOperator::In => format!("exit code {values}"),
            ExitCodesOperator::NotIn => format!("exit code but {values}"),
        }
    });
    let reasons = list(rule.on_reasons.iter().map(|reason| reason.name()).collect());
    let reasons = (!reasons.is_empty()).then(|| format!("reason {reasons}"));
    let causes = list(rule.on_causes.iter().map(|cause| format!("{cause:?}")).collect());
    let causes = (!causes.is_empty()).then(|| format!("cause {causes}"));
    let when: Vec<_> = [codes, reasons, causes].into_iter().flatten().collect();
    let action = match rule.action {
        FailureAction::FailJob => "fails the job".to_owned(),
        FailureAction::Ignore => "starts again, which counts for nothing".to_owned(),
        FailureAction::Restart => format!("starts again, {} times without a checkpoint", policy.max_restarts),
    };
    let elsewhere = if rule.avoid_node { ", on other nodes first" } else { "" };
    format!("{} -> {action}{elsewhere}", when.join(" and "))
}
