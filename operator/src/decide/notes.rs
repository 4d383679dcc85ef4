//! What people are told, as Events: always about a change of the status that was written.

use rlt_api::status::RLTrainingJobStatus;
use rlt_api::{FailureCause, Reason};

use super::{ApplyFailure, Situation, cause_of};

/// One thing to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether something went wrong.
    pub is_warning: bool,
    /// Why, in one word.
    pub reason: Reason,
    /// For people.
    pub message: String,
}

/// What is new in a status.
pub(super) fn between(
    before: &RLTrainingJobStatus,
    after: &RLTrainingJobStatus,
    situation: &Situation,
    failure: Option<&ApplyFailure>,
) -> Vec<Note> {
    let mut notes = Vec::new();
    if let Some(failure) = after.last_failure.as_ref().filter(|_| before.last_failure != after.last_failure) {
        let pod = failure.pod.as_deref().map(|pod| format!(", {pod}")).unwrap_or_default();
        let message = format!("attempt {}{pod}: {}", failure.attempt, failure.message);
        // Preemption and eviction are a part of a normal life.
        let is_warning = failure.cause != FailureCause::Disrupted;
        notes.push(Note { is_warning, reason: Reason::Failure(failure.cause), message });
    }
    let warning = |status: &RLTrainingJobStatus| status.progress.as_ref()?.warning.clone();
    if let Some(message) = warning(after).filter(|_| warning(before) != warning(after)) {
        notes.push(Note { is_warning: true, reason: Reason::RunsOnCpu, message });
    }
    let reason = reconciling_reason(after);
    if reason != reconciling_reason(before) || before.attempt != after.attempt {
        match failure {
            Some(failure) => notes.push(Note {
                is_warning: true,
                reason: failure.reason,
                message: failure.message.clone(),
            }),
            None => notes.extend(of_situation(after, situation)),
        }
    }
    notes
}

/// The reason under `Reconciling`, and whether it is still open: together they tell situations apart.
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
        .map(|condition| (condition.reason.as_str(), condition.status == ConditionStatus::True))
        .collect()
}

fn of_situation(status: &RLTrainingJobStatus, situation: &Situation) -> Option<Note> {
    let note = |reason, message: &str| Note { is_warning: false, reason, message: message.to_owned() };
    let attempt = status.attempt.unwrap_or(1);
    Some(match situation {
        // The next thing to tell is that they run, or why not.
        Situation::Starting => return None,
        Situation::Restarting => note(Reason::Restarting, &format!("attempt {attempt} begins")),
        Situation::Running => note(Reason::WorkersRunning, "all workers run"),
        Situation::Suspending => note(Reason::Suspending, "workers save their state and stop"),
        Situation::Suspended => note(Reason::Suspended, "no worker is left"),
        Situation::Queued(reason, message) => note(*reason, message),
        Situation::Complete => note(Reason::StepsFinished, "all steps are done"),
        // The end of the attempt is told once it has come.
        Situation::WaitingToRestart(_) | Situation::Leaving(_) => return None,
        Situation::Failed(_) => Note {
            is_warning: true,
            ..note(cause_of(status), "the job failed for good; see its condition Failed")
        },
        Situation::HeldUp(cause, message) => {
            Note { is_warning: true, ..note(Reason::Failure(*cause), message) }
        }
        Situation::Stuck(message) => Note { is_warning: true, ..note(Reason::NodeUnreachable, message) },
        Situation::Invalid(problems) => Note { is_warning: true, ..note(Reason::InvalidSpec, problems) },
    })
}
