//! The Events of a job. Each reports a change of the status that was written.

use rlt_api::status::RLTrainingJobStatus;
use rlt_api::{FailureCause, Reason, Warning};

use super::super::{ApplyFailure, Decision, JobState};
use super::conditions::{self, cause_of, in_pods_that_stay};

/// One Event to publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobEvent {
    /// Whether something went wrong.
    pub is_warning: bool,
    /// The reason of the Event, in one word.
    pub reason: Reason,
    /// A message for users.
    pub message: String,
}

impl Decision {
    /// Returns the Events about the change from an earlier status to this one. `before` is the last status
    /// about which Events were published.
    pub fn events(&self, before: &RLTrainingJobStatus) -> Vec<JobEvent> {
        let begins = before.attempt.is_none() && self.status.attempt.is_some();
        let warnings = self.warnings.iter().filter(|_| begins).map(of_warning);
        warnings.chain(between(before, &self.status, &self.state, self.apply_failure.as_ref())).collect()
    }
}

/// Returns the Event of a warning at the start of a job.
fn of_warning(warning: &Warning) -> JobEvent {
    JobEvent { is_warning: true, reason: warning.reason, message: warning.message.to_owned() }
}

/// Returns the Events for a change of the status.
fn between(
    before: &RLTrainingJobStatus,
    after: &RLTrainingJobStatus,
    state: &JobState,
    failure: Option<&ApplyFailure>,
) -> Vec<JobEvent> {
    let mut events = Vec::new();
    if let Some(failure) = after.last_failure.as_ref().filter(|_| before.last_failure != after.last_failure) {
        let pod = failure.pod.as_deref().map(|pod| format!(", {pod}")).unwrap_or_default();
        let message = format!("attempt {}{pod}: {}", failure.attempt, failure.message);
        // Preemption and eviction are normal operation, no warning.
        let is_warning = !matches!(failure.cause, FailureCause::Disrupted | FailureCause::NodeTerminating);
        events.push(JobEvent { is_warning, reason: Reason::Failure(failure.cause), message });
    }
    if before.attempt.is_none() || before.attempt == after.attempt {
        events.extend(restarts(before, after));
    }
    events.extend(symptoms(before, after));
    events.extend(of_refusal(before, after));
    events.extend(of_found_result(before, after));
    let reason = reconciling_reason(after);
    if reason != reconciling_reason(before) || before.attempt != after.attempt {
        match failure {
            Some(failure) => events.push(JobEvent {
                is_warning: true,
                reason: failure.reason,
                message: failure.message.clone(),
            }),
            None => events.extend(of_state(after, state)),
        }
    }
    events
}

/// Returns one Event for each new reason of the trainer's warning. All new reasons that this release does not
/// know share one Event, even if other unknown ones were reported before.
fn symptoms(before: &RLTrainingJobStatus, after: &RLTrainingJobStatus) -> Vec<JobEvent> {
    let known = conditions::warning_names(before);
    let mut new = conditions::warning_names(after);
    new.retain(|name| !known.contains(name));
    let message = after.progress.as_ref().and_then(|progress| progress.warning.clone()).unwrap_or_default();
    let reasons = conditions::reasons_of(&new).into_iter();
    reasons.map(|reason| JobEvent { is_warning: true, reason, message: message.clone() }).collect()
}

/// Returns one Event for each cause of new restarts in place.
fn restarts(before: &RLTrainingJobStatus, after: &RLTrainingJobStatus) -> Vec<JobEvent> {
    let known = |cause| before.restarts_in_place.get(cause).copied().unwrap_or(0);
    let new = after.restarts_in_place.iter().filter(|(cause, count)| **count > known(cause));
    let attempt = after.attempt.unwrap_or(1);
    new.map(|(cause, count)| JobEvent {
        is_warning: true,
        reason: Reason::Failure(*cause),
        message: format!(
            "attempt {attempt}: its ranks were restarted in place, {count} times for this cause"
        ),
    })
    .collect()
}

/// Returns reason and status of the conditions whose change is worth an Event.
fn reconciling_reason(status: &RLTrainingJobStatus) -> Vec<(&str, bool)> {
    use rlt_api::status::{ConditionStatus, ConditionType};
    let telling = [
        ConditionType::Reconciling,
        ConditionType::Succeeded,
        ConditionType::Suspended,
        ConditionType::Stalled,
    ];
    let conditions = status.conditions.iter().filter(|condition| telling.contains(&condition.type_));
    conditions
        .map(|condition| {
            let holds = condition.status == ConditionStatus::True;
            // A refused specification that the job does not run under has an Event of its own.
            let is_told = holds || condition.type_ != ConditionType::Stalled;
            (if is_told { condition.reason.as_str() } else { "" }, holds)
        })
        .collect()
}

/// Returns the Event for a job whose steps were all done before it started.
fn of_found_result(before: &RLTrainingJobStatus, after: &RLTrainingJobStatus) -> Option<JobEvent> {
    let found = |status: &RLTrainingJobStatus| status.progress.as_ref().is_some_and(|one| one.result_found);
    let num_steps = after.progress.as_ref().filter(|_| found(after) && !found(before))?.num_steps;
    let attempt = after.attempt.unwrap_or(1);
    Some(JobEvent {
        is_warning: false,
        reason: Reason::ResultFound,
        message: format!(
            "attempt {attempt} found a run of this name with all {num_steps} steps finished: nothing is trained"
        ),
    })
}

/// Returns the Event that the present specification is refused and the job continues under an earlier one.
fn of_refusal(before: &RLTrainingJobStatus, after: &RLTrainingJobStatus) -> Option<JobEvent> {
    let (reason, message) = refused(after)?;
    let is_new = refused(before).is_none_or(|(known, _)| known != reason);
    is_new.then(|| JobEvent { is_warning: true, reason, message: message.to_owned() })
}

/// Returns the reason and message of a false `Stalled` that notes that the present specification would be
/// refused.
fn refused(status: &RLTrainingJobStatus) -> Option<(Reason, &str)> {
    use rlt_api::status::{ConditionStatus, ConditionType};
    let mut conditions = status.conditions.iter();
    let stalled = conditions.find(|condition| condition.type_ == ConditionType::Stalled)?;
    let reasons = [Reason::InvalidSpec, Reason::InvalidDefaults, Reason::PodNotAllowed];
    let reason = reasons.into_iter().find(|reason| reason.name() == stalled.reason)?;
    (stalled.status == ConditionStatus::False).then_some((reason, stalled.message.as_str()))
}

fn of_state(status: &RLTrainingJobStatus, state: &JobState) -> Option<JobEvent> {
    let event = |reason, message: &str| JobEvent { is_warning: false, reason, message: message.to_owned() };
    let attempt = status.attempt.unwrap_or(1);
    Some(match state {
        // The next Event says that the workers run, or why they do not.
        JobState::Starting => return None,
        JobState::Restarting => {
            event(Reason::Restarting, &format!("attempt {attempt} begins{}", in_pods_that_stay(status)))
        }
        JobState::Running => event(Reason::WorkersRunning, "all workers run"),
        JobState::Suspending => event(Reason::Suspending, "workers save a checkpoint and stop"),
        JobState::Suspended => event(Reason::Suspended, "no worker is left"),
        JobState::Queued(reason, message) => event(*reason, message),
        JobState::Complete => event(Reason::StepsFinished, "all steps are done"),
        // The failure of the attempt gets an Event of its own.
        JobState::WaitingToRestart(_) | JobState::Stopping(..) => return None,
        JobState::Failed(_) => JobEvent {
            is_warning: true,
            ..event(cause_of(status), "the job failed for good; see its condition Failed")
        },
        JobState::StartDelayed(cause, message) => {
            JobEvent { is_warning: true, ..event(Reason::Failure(*cause), message) }
        }
        JobState::WaitingForClaim(message) => {
            JobEvent { is_warning: true, ..event(Reason::ClaimTerminating, message) }
        }
        JobState::Stuck(message) => JobEvent { is_warning: true, ..event(Reason::NodeUnreachable, message) },
        JobState::Invalid(reason, problems) => JobEvent { is_warning: true, ..event(*reason, problems) },
    })
}
