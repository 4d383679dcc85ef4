//! Counts of a job's failures, by cause and by node, and the budgets that they use up.
//!
//! Failures are counted by cause in the status, so that the counts survive a restart of the operator. A new
//! checkpoint refills the budgets and ends a series of short attempts, because the job makes progress.

use rlt_api::failure::SHORT_ATTEMPT;
use rlt_api::status::{FailureStatus, RLTrainingJobStatus};
use rlt_api::{Budget, FailureCause};

use super::super::{Reconcile, clock};
use super::failure::Failure;
use super::failure_policy::MatchedRule;

/// Longest message of a failure in a status, in bytes.
const MAX_MESSAGE_BYTES: usize = 4096;
/// Largest number of nodes whose failures are counted.
const MAX_NODES: usize = 16;
/// Number of failures on one node from which another GPU failure there uses up retries. Most such failures
/// are faults of the hardware, but a kernel that the driver ended may be a fault of the program.
const MAX_FREE_FAILURES: u32 = 16;

/// Counts a failure, and makes it the last one of the status.
pub(super) fn record(
    status: &mut RLTrainingJobStatus,
    failure: &Failure,
    rule: Option<&MatchedRule<'_>>,
    now: &str,
) {
    let is_free = is_known_device(status, failure);
    *status.failures_by_cause.entry(failure.cause).or_default() += 1;
    refill_after_checkpoint(status);
    match rule {
        Some(rule) => rule.count(status),
        None if is_free => {}
        None => *status.retries_used.entry(failure.cause).or_default() += 1,
    }
    let is_avoided = failure.cause.may_be_the_nodes() || rule.is_some_and(MatchedRule::avoids_node);
    if let Some(node) = failure.node.as_ref().filter(|_| is_avoided) {
        blame(status, node);
    }
    status.last_failure = Some(FailureStatus {
        attempt: status.attempt.unwrap_or(1),
        cause: failure.cause,
        pod: failure.pod.clone(),
        node: failure.node.clone(),
        exit_code: failure.exit_code,
        rule: rule.map(MatchedRule::title),
        message: shortened(&failure.message),
        advice: failure.cause.advice().into(),
        time: now.to_owned(),
    });
}

/// Whether a GPU has failed again on a node where the job has failed before. Only the first such failure uses
/// up a retry, because the preference for other nodes does not help if no other node is free. Failures on
/// different nodes use up one retry each, because the program may be at fault.
fn is_known_device(status: &RLTrainingJobStatus, failure: &Failure) -> bool {
    let failures = failure.node.as_ref().and_then(|node| status.failures_by_node.get(node));
    failure.cause == FailureCause::DeviceFailed
        && status.failures_by_cause.contains_key(&FailureCause::DeviceFailed)
        && failures.is_some_and(|failures| *failures < MAX_FREE_FAILURES)
}

/// Refills every budget, and ends a series of short attempts, if there is a new checkpoint since the last
/// failure.
pub(super) fn refill_after_checkpoint(status: &mut RLTrainingJobStatus) {
    let newest = status.checkpoints.iter().map(|checkpoint| checkpoint.step).max();
    if newest > status.retries_since_step {
        status.retries_since_step = newest;
        status.retries_used.clear();
        status.policy_restarts_used = None;
        status.short_attempts = None;
    }
}

fn blame(status: &mut RLTrainingJobStatus, node: &str) {
    let blamed = &mut status.failures_by_node;
    *blamed.entry(node.to_owned()).or_default() += 1;
    if blamed.len() > MAX_NODES {
        let others = blamed.iter().filter(|(name, _)| *name != node);
        if let Some(least) = others.min_by_key(|(_, count)| **count).map(|(name, _)| name.clone()) {
            blamed.remove(&least);
        }
    }
}

/// Adds an explanation to the message of the last failure.
pub(super) fn add_to_message(status: &mut RLTrainingJobStatus, why: &str) {
    if let Some(last) = &mut status.last_failure {
        last.message = shortened(&format!("{} ({why})", last.message));
    }
}

fn shortened(message: &str) -> String {
    message[..message.floor_char_boundary(MAX_MESSAGE_BYTES)].to_owned()
}

/// Returns the number of retries beyond the budget, for an attempt that may have saved a checkpoint that it
/// could not report. It is 1 if the attempt was not short, its process exited, and this operator received no
/// report of it; otherwise 0. The next attempt reports all checkpoints at its start. If none of them is new,
/// its failure ends the job.
pub(super) fn unheard_retries(reconcile: &Reconcile<'_>) -> u32 {
    let status = &reconcile.status;
    let is_heard = reconcile.input.report.is_some_and(|report| report.attempt == reconcile.attempt());
    let has_exited = status.last_failure.as_ref().is_some_and(|failure| failure.exit_code.is_some());
    let began = reconcile.time(status.attempt_start_time.as_deref()).unwrap_or(reconcile.input.now);
    let is_short = clock::seconds_between(began, reconcile.input.now) < SHORT_ATTEMPT.as_secs();
    // A job without any progress report so far may be unable to report.
    u32::from(status.progress.is_some() && !is_heard && has_exited && !is_short)
}

/// Returns the reason why the cause has no retry left; `None` if it has one. The failure is already counted.
/// A new checkpoint would refill the budget, so `unheard` retries are added to a limit that is not 0.
pub(super) fn used_up(reconcile: &Reconcile<'_>, cause: FailureCause, unheard: u32) -> Option<String> {
    let retries = &reconcile.input.prepared.job.spec().run_policy.retries;
    match cause.budget(retries) {
        Budget::Unlimited => None,
        Budget::Never => Some("not tried again, because it would end in the same way".into()),
        Budget::Limited { field, limit } => {
            let same = |other: &FailureCause| matches!(other.budget(retries), Budget::Limited { field: other, .. } if other == field);
            let counts = reconcile.status.retries_used.iter();
            let count: u32 = counts.filter(|(other, _)| same(other)).map(|(_, count)| count).sum();
            let is_used_up = count > limit.saturating_add(unheard.min(limit));
            is_used_up.then(|| format!("spec.runPolicy.retries.{field} of {limit} used up"))
        }
    }
}
