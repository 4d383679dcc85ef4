//! The decision about a job: a pure function of the observed state and the time. Nothing here calls the API
//! server.
//!
//! ```text
//! finished? -> complete? -> past its deadline? -> suspended? -> not admitted? -> attempt failed?
//!           -> create missing pods
//! ```
//! A new attempt, a suspension, and the end of a job are written to the status first; pods follow in the next
//! reconcile. An operator that crashes in between never leaves pods of two attempts running, and never
//! mistakes a pod that it deleted itself for a lost one.

mod attempt;
mod attempt_end;
mod claim;
mod clock;
mod deadlines;
mod decision;
mod deletion;
mod finished;
mod job_pods;
mod queue;
mod reconcile;
mod spares;
mod specification;
mod status;
mod suspension;
mod topology;

use rlt_api::FailureCause;

use attempt_end::attempt_state::{AttemptState, attempt_state};
use attempt_end::{evacuation, failure, restarts, retries, success};
pub use decision::{ApplyFailure, Assignment, Decision, Deletion, JobState};
pub use queue::dispatch::{dispatch, time_to_live};
use queue::exclusion;
pub use queue::unused_place;
use reconcile::Reconcile;
pub use reconcile::{ReconcileInput, Report};
pub use restarts::retries_left;
pub use specification::{RefusedJob, Specification, refuse, specification};
use status::conditions;
pub use status::events::JobEvent;
use success::Completion;
pub use topology::{nodes_to_read, topology_labels};

/// Decides the next action for a job from its observed state.
pub fn decide(input: &ReconcileInput<'_>) -> Decision {
    let reconcile = Reconcile::begin(input);
    let policy = &input.prepared.job.spec().run_policy;
    if reconcile.is_finished() {
        return finished::settle(reconcile);
    }
    match success::completion(&reconcile) {
        Completion::Complete => return finished::complete(reconcile),
        Completion::Completing(wait) => return reconcile.keep(wait),
        Completion::Incomplete => {}
    }
    if reconcile.is_past(policy.active_deadline_seconds) {
        let seconds = policy.active_deadline_seconds.unwrap_or_default();
        let message = format!("the job was active for more than {seconds} s");
        retries::answer(reconcile, failure::Failure::of_job(FailureCause::DeadlineExceeded, message))
    } else if policy.suspend {
        suspension::suspend(reconcile)
    } else if let Some(hold) = queue::hold(&reconcile) {
        suspension::wait_for_queue(reconcile, hold)
    } else if reconcile.status.active_since.is_none() {
        suspension::begin(reconcile)
    } else {
        match attempt_state(&reconcile) {
            AttemptState::Failed(failure) => match spares::reports_due(&reconcile) {
                Some(wait) => reconcile.keep(wait),
                None => {
                    let failure = evacuation::attribute(&reconcile, failure);
                    retries::answer(reconcile, failure)
                }
            },
            AttemptState::CauseUnknown(wait) => reconcile.keep(wait),
            AttemptState::Stopping { cause, message, wait } => {
                reconcile.decide(JobState::Stopping(cause, message), Some(wait))
            }
            AttemptState::Healthy => attempt::run(reconcile),
        }
    }
}

#[cfg(test)]
pub(crate) mod fixtures;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
