//! Retries: another attempt after a failed one, or the end of the job.

use std::time::Duration;

use rlt_api::ExitCode;
use rlt_api::plan::{SHORT_ATTEMPT, restart_delay};
use rlt_api::status::RLTrainingJobStatus;

use super::super::{
    Decision, JobState, Reconcile, clock, evacuation, exclusion, finished, spares, suspension,
};
use super::failure::Failure;
use super::failure_counts;
use super::failure_policy::{self, MatchedRule};

/// Grace period of the remaining pods of a failed attempt: without their peer they cannot save a checkpoint.
const SURVIVORS_GRACE_SECONDS: u32 = 5;

/// Begins the next attempt if a rule of the job or the budget of the cause allows it; otherwise ends the job.
pub(in crate::decide) fn answer(mut reconcile: Reconcile<'_>, failure: Failure) -> Decision {
    // The last report decides whether there is a new checkpoint.
    reconcile.take_report();
    let policy = reconcile.input.prepared.job.spec().run_policy.failure_policy.as_ref();
    let rule = failure_policy::first_match(policy, &failure);
    failure_counts::record(
        &mut reconcile.status,
        &failure,
        rule.as_ref(),
        &clock::rfc3339(reconcile.input.now),
    );
    let end = match &rule {
        Some(rule) => rule.forbids(&reconcile.status),
        None => failure_counts::used_up(&reconcile, failure.cause),
    };
    match end {
        Some(why) => {
            failure_counts::add_to_message(&mut reconcile.status, &why);
            finished::fail(reconcile, JobState::Failed(failure.cause))
        }
        None => {
            spares::plan_attempt(&mut reconcile, &failure);
            let is_asked = rule.as_ref().is_some_and(MatchedRule::avoids_node);
            if let Some(why) = exclusion::exclude_node(&mut reconcile, &failure, is_asked) {
                failure_counts::add_to_message(&mut reconcile.status, &why);
            }
            let stays = reconcile.status.attempt_in_place;
            if !stays && !exclusion::nodes_of_place(&reconcile).is_empty() {
                return suspension::leave_place(reconcile);
            }
            begin_next(&mut reconcile);
            reconcile.write_first(JobState::Restarting)
        }
    }
}

/// Grace period of the remaining pods of a failed attempt. `None`, their own grace period, after a deletion
/// by others: they may still be saving a checkpoint.
pub(in crate::decide) fn survivors_grace(status: &RLTrainingJobStatus) -> Option<u32> {
    let stopped = i32::from(ExitCode::Preempted.code());
    let exit_code = status.last_failure.as_ref().and_then(|failure| failure.exit_code);
    (exit_code != Some(stopped)).then_some(SURVIVORS_GRACE_SECONDS)
}

/// Remaining restart delay.
pub(in crate::decide) fn wait_to_start(reconcile: &Reconcile<'_>) -> Option<Duration> {
    let starts_at = reconcile.time(reconcile.status.attempt_start_time.as_deref());
    let wait = clock::until(starts_at, reconcile.input.now)?;
    // A longer wait was computed by an earlier operator whose clock was ahead.
    (wait <= delay(&reconcile.status)).then_some(wait)
}

fn begin_next(reconcile: &mut Reconcile<'_>) {
    let now = reconcile.input.now;
    let lived = reconcile.time(reconcile.status.attempt_start_time.as_deref()).unwrap_or(now);
    let is_short = clock::seconds_between(lived, now) < SHORT_ATTEMPT.as_secs();
    reconcile.status.short_attempts =
        is_short.then(|| reconcile.status.short_attempts.unwrap_or(0).saturating_add(1));
    let delay = delay(&reconcile.status);
    reconcile.status.attempt = Some(reconcile.attempt() + 1);
    reconcile.status.attempt_start_time = Some(clock::rfc3339(now + delay));
    reconcile.status.attempt_running_time = None;
    evacuation::end(reconcile);
    reconcile.status.restarts_in_place.clear();
}

fn delay(status: &RLTrainingJobStatus) -> Duration {
    restart_delay(status.short_attempts.unwrap_or(0))
}
