//! What a status says about a situation: every condition, with its reason and a sentence for people.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rlt_api::status::{Condition, ConditionStatus, ConditionType, RLTrainingJobStatus};
use rlt_api::{FailureCause, Reason};

use super::apply_failure::{self, ApplyFailure};
use super::{cause_of, clock};

/// Longest message of a condition: the schema takes so many characters.
const MAX_MESSAGE_BYTES: usize = 32 * 1024;

/// What a job is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Situation {
    /// The workers of the first attempt, or of one after a pause, are being started.
    Starting,
    /// All workers run.
    Running,
    /// An attempt is over; the next one begins.
    Restarting,
    /// Attempts ended soon after their start; the next one waits this long.
    WaitingToRestart(Duration),
    /// A worker does not start, for this cause and with this message.
    HeldUp(FailureCause, String),
    /// Somebody stops a worker, and the others save a checkpoint with it.
    Leaving(String),
    /// A worker cannot be stopped.
    Stuck(String),
    /// Workers save their state and stop.
    Suspending,
    /// No worker is left, on request.
    Suspended,
    /// No worker is left, because a queue holds the job back, for this reason and in these words.
    Queued(Reason, String),
    /// The end, and a good one.
    Complete,
    /// The end, for this cause.
    Failed(FailureCause),
    /// The specification breaks rules.
    Invalid(String),
}

use ConditionStatus::{False, True, Unknown};

impl Situation {
    /// The situation of a job that has ended.
    pub(super) fn of_finished(status: &RLTrainingJobStatus) -> Self {
        let complete = status.conditions.iter().find(|condition| condition.type_ == ConditionType::Complete);
        match &status.last_failure {
            Some(failure) if complete.is_none_or(|complete| complete.status != True) => {
                Self::Failed(failure.cause)
            }
            _ => Self::Complete,
        }
    }
}

/// Every condition of a status, in their order; a condition whose status stays keeps its time.
pub(super) fn conditions(
    situation: &Situation,
    failure: Option<&ApplyFailure>,
    status: &RLTrainingJobStatus,
    now: Timestamp,
) -> Vec<Condition> {
    let condition = |type_: ConditionType| {
        let failed = failure.and_then(|failure| say_failed(type_, situation, failure, status));
        let (holds, reason, mut message) = failed.unwrap_or_else(|| say(type_, situation, status));
        message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
        let before = status.conditions.iter().find(|before| before.type_ == type_);
        let since =
            before.filter(|before| before.status == holds).map(|before| before.last_transition_time.clone());
        Condition {
            type_,
            status: holds,
            observed_generation: status.observed_generation,
            last_transition_time: since.unwrap_or_else(|| clock::rfc3339(now)),
            reason: reason.name(),
            message,
        }
    };
    ConditionType::ALL.into_iter().map(condition).collect()
}

/// What a decision that could not be applied changes about two of the conditions.
fn say_failed(
    type_: ConditionType,
    situation: &Situation,
    failure: &ApplyFailure,
    status: &RLTrainingJobStatus,
) -> Option<Said> {
    match type_ {
        ConditionType::Reconciling if failure.reason == Reason::WorkersRefused => {
            Some(said(True, failure.reason, "workers cannot be made"))
        }
        ConditionType::Reconciling => Some((True, failure.reason, failure.message.clone())),
        ConditionType::Stalled if apply_failure::stalls(situation, failure, status) => {
            Some((True, failure.reason, failure.message.clone()))
        }
        _ => None,
    }
}

type Said = (ConditionStatus, Reason, String);

fn say(type_: ConditionType, situation: &Situation, status: &RLTrainingJobStatus) -> Said {
    match type_ {
        ConditionType::Succeeded => succeeded(situation, status),
        ConditionType::Complete => match situation {
            Situation::Complete => said(True, Reason::StepsFinished, "all steps are done"),
            Situation::Failed(_) => said(False, cause_of(status), "the job failed"),
            _ => said(False, Reason::NotFinished, "the job is not at its end"),
        },
        ConditionType::Failed => match situation {
            Situation::Failed(_) => (True, cause_of(status), failure_in_words(status)),
            Situation::Complete => said(False, Reason::StepsFinished, "all steps are done"),
            _ => said(False, Reason::NotFinished, "the job is not at its end"),
        },
        ConditionType::Suspended => match situation {
            Situation::Suspended => said(True, Reason::Suspended, "held back by spec.runPolicy.suspend"),
            Situation::Queued(reason, message) => (True, *reason, message.clone()),
            Situation::Suspending => said(False, Reason::Suspending, "workers save their state and stop"),
            Situation::Stuck(_) => said(False, Reason::NodeUnreachable, "a worker cannot be stopped"),
            _ => said(False, Reason::NotSuspended, "nobody asked for a pause"),
        },
        ConditionType::Admitted => admitted(situation, status),
        ConditionType::PodsReady => pods_ready(situation, status),
        ConditionType::Progressing => progressing(situation, status),
        ConditionType::CheckpointHealthy => match status.checkpoints.last() {
            Some(_) => said(True, Reason::CheckpointComplete, "the newest checkpoint is complete"),
            None => said(Unknown, Reason::NoCheckpoint, "no checkpoint was reported yet"),
        },
        ConditionType::Reconciling => reconciling(situation, status),
        ConditionType::Stalled => stalled(situation, status),
    }
}

fn said(holds: ConditionStatus, reason: Reason, message: &str) -> Said {
    (holds, reason, message.to_owned())
}

fn succeeded(situation: &Situation, status: &RLTrainingJobStatus) -> Said {
    match situation {
        Situation::Complete => said(True, Reason::StepsFinished, "all steps are done"),
        Situation::Failed(_) => (False, cause_of(status), failure_in_words(status)),
        _ => said(Unknown, Reason::NotFinished, "the job is not at its end"),
    }
}

fn admitted(situation: &Situation, status: &RLTrainingJobStatus) -> Said {
    match (situation, &status.queue) {
        (Situation::Queued(reason, message), _) => (False, *reason, message.clone()),
        (_, None) => said(True, Reason::NoQueue, "no queue has a say in the job"),
        (Situation::Suspended, Some(_)) => {
            said(False, Reason::Suspended, "held back by spec.runPolicy.suspend")
        }
        (_, Some(queue)) => (True, Reason::Admitted, format!("queue {queue} has let the job in")),
    }
}

fn pods_ready(situation: &Situation, status: &RLTrainingJobStatus) -> Said {
    let ready = format!("{} workers are ready", status.ready.as_deref().unwrap_or("0/0"));
    match situation {
        Situation::Running => (True, Reason::WorkersRunning, ready),
        Situation::Starting
        | Situation::Restarting
        | Situation::WaitingToRestart(_)
        | Situation::HeldUp(..)
        | Situation::Leaving(_) => (False, Reason::WorkersStarting, ready),
        Situation::Stuck(_) => (False, Reason::NodeUnreachable, ready),
        _ => said(False, Reason::NoWorkers, "no worker is wanted"),
    }
}

fn progressing(situation: &Situation, status: &RLTrainingJobStatus) -> Said {
    let has_steps = status.progress.as_ref().is_some_and(|progress| progress.step > 0);
    let warning = status.progress.as_ref().and_then(|progress| progress.warning.as_ref());
    match (situation, warning) {
        (Situation::Running, Some(warning)) if has_steps => (True, Reason::RunsOnCpu, warning.clone()),
        (Situation::Running, Some(warning)) => (Unknown, Reason::RunsOnCpu, warning.clone()),
        (situation, _) => progressing_unhindered(situation, has_steps),
    }
}

fn progressing_unhindered(situation: &Situation, has_steps: bool) -> Said {
    match situation {
        Situation::Running if has_steps => said(True, Reason::StepsAdvancing, "the trainer finishes steps"),
        Situation::Running => said(Unknown, Reason::NoReport, "no finished step was reported yet"),
        _ => said(False, Reason::NoWorkers, "not all workers run"),
    }
}

fn reconciling(situation: &Situation, status: &RLTrainingJobStatus) -> Said {
    match situation {
        Situation::Starting => (True, Reason::WorkersStarting, starting(status)),
        Situation::Restarting => {
            (True, Reason::Restarting, format!("attempt {} begins", status.attempt.unwrap_or(1)))
        }
        Situation::WaitingToRestart(_) => {
            let at = status.attempt_start_time.as_deref().unwrap_or_default();
            (True, Reason::WaitingToRestart, format!("attempts ended early; the next one begins at {at}"))
        }
        Situation::HeldUp(cause, message) => (True, Reason::Failure(*cause), message.clone()),
        Situation::Leaving(message) => (True, Reason::Failure(FailureCause::Disrupted), message.clone()),
        Situation::Stuck(_) => said(True, Reason::NodeUnreachable, "a worker cannot be stopped"),
        Situation::Suspending => said(True, Reason::Suspending, "workers save their state and stop"),
        _ => said(False, Reason::Settled, "there is nothing left to do"),
    }
}

/// That workers are being started, and whether they ask for GPUs.
fn starting(status: &RLTrainingJobStatus) -> String {
    match status.resolved.as_ref().map_or(0, |resolved| resolved.gpus_per_worker) {
        0 => "workers are being started, without GPUs: spec.workers.device Cuda asks for one each".into(),
        1 => "workers are being started, each with a GPU".into(),
        num_gpus => format!("workers are being started, each with {num_gpus} GPUs"),
    }
}

fn stalled(situation: &Situation, status: &RLTrainingJobStatus) -> Said {
    match situation {
        Situation::Failed(_) => (True, cause_of(status), failure_in_words(status)),
        Situation::Invalid(problems) => (True, Reason::InvalidSpec, problems.clone()),
        Situation::Stuck(message) => (True, Reason::NodeUnreachable, message.clone()),
        _ => said(False, Reason::NothingStalled, "nothing stands in the way"),
    }
}

/// Who failed, how, and what to change.
fn failure_in_words(status: &RLTrainingJobStatus) -> String {
    let Some(failure) = &status.last_failure else { return "the job failed".into() };
    let who = failure.pod.as_deref().map(|pod| format!("{pod}: ")).unwrap_or_default();
    format!("{who}{}; {}", failure.message, failure.advice)
}
