//! The text of an explanation, and the sentences that several explanations share.

use std::fmt;

use rlt_api::status::{Condition, ConditionStatus, ConditionType, RLTrainingJobStatus};
use rlt_api::{Budget, FailureCause};
use serde::Serialize;

use super::snapshot::JobSnapshot;

/// An explanation of why a job is as it is. As JSON or YAML its field names are a contract.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    /// One sentence about the job.
    pub(crate) summary: String,
    /// The evidence for the summary, a sentence each.
    pub(crate) evidence: Vec<String>,
    /// Changes that the user can make; empty if nothing has to be done.
    pub(crate) change: Vec<String>,
}

impl Explanation {
    pub(super) fn new(summary: impl Into<String>) -> Self {
        Self { summary: summary.into(), ..Self::default() }
    }

    pub(super) fn because(mut self, evidence: impl IntoIterator<Item = String>) -> Self {
        self.evidence.extend(evidence);
        self
    }

    pub(super) fn so(mut self, change: impl Into<String>) -> Self {
        self.change.push(change.into());
        self
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.summary)?;
        self.evidence.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
        match self.change.as_slice() {
            [] => writeln!(f, "nothing is to be done"),
            changes => {
                writeln!(f, "what to change:")?;
                changes.iter().try_for_each(|line| writeln!(f, "  {line}"))
            }
        }
    }
}

/// Returns the condition of this type if it is true.
pub(super) fn when_true(status: &RLTrainingJobStatus, type_: ConditionType) -> Option<&Condition> {
    status.conditions.iter().find(|one| one.type_ == type_ && one.status == ConditionStatus::True)
}

/// Names the checkpoint from which the job continues.
pub(super) fn checkpoint(status: &RLTrainingJobStatus) -> Option<String> {
    let latest = status.checkpoints.iter().find(|one| one.latest).or(status.checkpoints.last())?;
    Some(format!("the last complete checkpoint is of step {}", latest.step))
}

/// Lists the causes for which earlier attempts ended, with the remaining retries.
pub(super) fn earlier(snapshot: &JobSnapshot, status: &RLTrainingJobStatus) -> Vec<String> {
    let counts = status.failures_by_cause.iter();
    let rule = status.last_failure.as_ref().and_then(|last| Some((last.attempt, last.rule.as_ref()?)));
    counts
        .map(|(cause, count)| format!("ended before: {count} x {cause:?}{}", budget(snapshot, *cause)))
        .chain(rule.map(|(attempt, rule)| {
            format!("after attempt {attempt} spec.runPolicy.failurePolicy decided, {rule}")
        }))
        .collect()
}

/// Formats a clause that says how many ends of an attempt for this cause the job survives.
pub(super) fn budget(snapshot: &JobSnapshot, cause: FailureCause) -> String {
    let Ok(prepared) = &snapshot.prepared else { return String::new() };
    match cause.budget(&prepared.job.spec().run_policy.retries) {
        Budget::Unlimited => ", which counts for nothing".to_owned(),
        Budget::Never => ", which is never tried again".to_owned(),
        Budget::Limited { field, limit } => {
            format!(", of {limit} that spec.runPolicy.retries.{field} allows")
        }
    }
}
