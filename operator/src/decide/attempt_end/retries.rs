//! Retries: another attempt after a failed one, or the end of the job.

use std::time::Duration;

use rlt_api::failure::{AttemptProgress, SHORT_ATTEMPT};

use super::super::{
    Decision, JobState, Reconcile, clock, deadlines, evacuation, exclusion, finished, spares, suspension,
};
use super::failure::Failure;
use super::failure_counts;
use super::failure_policy::{self, MatchedRule};

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
    let unheard = failure_counts::unheard_retries(&reconcile);
    let end = match &rule {
        Some(rule) => rule.forbids(&reconcile.status, unheard),
        None => failure_counts::used_up(&reconcile, failure.cause, unheard),
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

fn begin_next(reconcile: &mut Reconcile<'_>) {
    let now = reconcile.input.now;
    count_short_attempt(reconcile);
    let delay = deadlines::restart_delay(&reconcile.status);
    reconcile.status.attempt = Some(reconcile.attempt() + 1);
    reconcile.status.attempt_start_time = Some(clock::rfc3339(now + delay));
    reconcile.status.attempt_running_time = None;
    evacuation::end(reconcile);
    reconcile.status.restarts_in_place.clear();
}

/// Counts the ended attempt if it was short, as launchers count theirs. After a short attempt with a new
/// checkpoint the count is 0 instead of absent, because the decision to evacuate a node depends on whether
/// the last attempt was short.
fn count_short_attempt(reconcile: &mut Reconcile<'_>) {
    let (now, status) = (reconcile.input.now, &reconcile.status);
    let began = reconcile.time(status.attempt_start_time.as_deref()).unwrap_or(now);
    let lived = Duration::from_secs(clock::seconds_between(began, now));
    // The failure was counted in this reconcile, after the last report.
    let has_saved = status.retries_since_step > reconcile.input.status.retries_since_step;
    let num_short = AttemptProgress::of(has_saved, lived).num_short(status.short_attempts.unwrap_or(0));
    reconcile.status.short_attempts = (lived < SHORT_ATTEMPT).then_some(num_short);
}
