//! Matches failures to the rules of `spec.runPolicy.failurePolicy`: the first matching rule decides.

use rlt_api::failure::{FailureCause, rule_name};
use rlt_api::spec::{
    ExitCodesOperator, ExitCodesSpec, FailureAction, FailurePolicySpec, FailureReason, FailureRuleSpec,
};
use rlt_api::status::RLTrainingJobStatus;

use super::failure::Failure;

/// Rule that decides about a failure.
#[derive(Clone, Copy, Debug)]
pub(in crate::decide) struct MatchedRule<'a> {
    policy: &'a FailurePolicySpec,
    idx: usize,
    rule: &'a FailureRuleSpec,
}

/// Returns the first rule that matches a failure; `None` if `spec.runPolicy.retries` decides.
pub(in crate::decide) fn first_match<'a>(
    policy: Option<&'a FailurePolicySpec>,
    failure: &Failure,
) -> Option<MatchedRule<'a>> {
    // A deadline that has passed cannot be extended, so no rule applies.
    let policy = policy.filter(|_| failure.cause != FailureCause::DeadlineExceeded)?;
    let mut rules = policy.rules.iter().enumerate();
    let (idx, rule) = rules.find(|(_, rule)| matches(rule, failure))?;
    Some(MatchedRule { policy, idx, rule })
}

fn matches(rule: &FailureRuleSpec, failure: &Failure) -> bool {
    let has_code = |codes: &ExitCodesSpec| {
        failure.exit_code.is_some_and(|code| match codes.operator {
            ExitCodesOperator::In => codes.values.contains(&code),
            ExitCodesOperator::NotIn => !codes.values.contains(&code),
        })
    };
    let has_reason = |reason: &FailureReason| failure.reasons.contains(&reason.name());
    rule.on_exit_codes.as_ref().is_none_or(has_code)
        && (rule.on_reasons.is_empty() || rule.on_reasons.iter().any(has_reason))
        && (rule.on_causes.is_empty() || rule.on_causes.contains(&failure.cause))
}

impl MatchedRule<'_> {
    /// Name and action of the rule, as in a status.
    pub(in crate::decide) fn title(&self) -> String {
        format!("{}: {:?}", rule_name(self.idx, self.rule), self.rule.action)
    }

    /// Whether the next workers prefer other nodes.
    pub(in crate::decide) fn avoids_node(&self) -> bool {
        self.rule.avoid_node
    }

    /// Counts a failure that this rule decides.
    pub(in crate::decide) fn count(&self, status: &mut RLTrainingJobStatus) {
        if self.rule.action == FailureAction::Restart {
            *status.policy_restarts_used.get_or_insert_default() += 1;
        }
    }

    /// Returns the reason why the job ends; `None` if it continues. The failure is already counted. `unheard`
    /// restarts are added to `maxRestarts`, unless that is 0.
    pub(in crate::decide) fn forbids(&self, status: &RLTrainingJobStatus, unheard: u32) -> Option<String> {
        let (title, limit) = (self.title(), self.policy.max_restarts);
        let by_rule = format!("by spec.runPolicy.failurePolicy, {title}");
        let used = status.policy_restarts_used.unwrap_or(0);
        match self.rule.action {
            FailureAction::Ignore => None,
            FailureAction::FailJob => Some(by_rule),
            FailureAction::Restart => {
                let is_used_up = used > limit.saturating_add(unheard.min(limit));
                is_used_up.then(|| format!("{by_rule}, of whose maxRestarts of {limit} none is left"))
            }
        }
    }
}
