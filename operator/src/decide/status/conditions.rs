//! The conditions of a status: each with its reason and message, as a function of the job's state.

use k8s_openapi::jiff::Timestamp;
use rlt_api::status::{Condition, ConditionStatus, ConditionType, Phase, RLTrainingJobStatus};
use rlt_api::{FailureCause, Reason};
use rlt_objects::queue::Queueing;

use super::super::{ApplyFailure, Decision, JobState, clock};

/// Maximum length of a condition's message in bytes. The schema allows as many characters.
const MAX_MESSAGE_BYTES: usize = 32 * 1024;

use ConditionStatus::{False, True, Unknown};

impl Decision {
    /// Adds a note to the status if the label of an admitted job names another queue.
    #[must_use]
    pub fn noting_request(mut self, queueing: &Queueing) -> Self {
        note_request(&mut self.status, queueing);
        self
    }

    /// Adds the apply failure to the status of the decision.
    ///
    /// The job is not deleted then, so that its status can be read.
    #[must_use]
    pub fn failed(mut self, failure: ApplyFailure, now: Timestamp) -> Self {
        write(&mut self.status, &self.state, Some(&failure), now);
        self.delete_job = false;
        self.apply_failure = Some(failure);
        self
    }
}

/// Writes every condition, and the phase that follows from them.
pub(in crate::decide) fn write(
    status: &mut RLTrainingJobStatus,
    state: &JobState,
    failure: Option<&ApplyFailure>,
    now: Timestamp,
) {
    status.conditions = conditions(state, failure, status, now);
    status.phase = Some(Phase::of(&status.conditions));
}

/// Sets `Stalled` and `Reconciling` for a job whose specification is refused: nothing is done until the
/// specification is corrected. Every other condition is kept.
pub(in crate::decide) fn hold(status: &mut RLTrainingJobStatus, state: &JobState, now: Timestamp) {
    let generation = status.observed_generation;
    let entries = [ConditionType::Stalled, ConditionType::Reconciling]
        .map(|type_| (type_, entry_of(type_, state, status)));
    for condition in &mut status.conditions {
        condition.observed_generation = generation;
        let entry = entries.iter().find(|(type_, _)| *type_ == condition.type_);
        let Some((_, (holds, reason, message))) = entry else { continue };
        if condition.status != *holds {
            condition.last_transition_time = clock::rfc3339(now);
        }
        (condition.status, condition.reason) = (*holds, reason.name());
        condition.message = cut(message.clone());
    }
    status.phase = Some(Phase::of(&status.conditions));
}

/// Notes in `Stalled`, unless it is true, that the present specification is refused and the job continues.
/// `consequence` is a clause that ends in `; `, or empty.
pub(in crate::decide) fn note_refused(
    status: &mut RLTrainingJobStatus,
    reason: Reason,
    consequence: &str,
    why: &str,
) {
    let not_stalled =
        |condition: &&mut Condition| condition.type_ == ConditionType::Stalled && condition.status == False;
    if let Some(condition) = status.conditions.iter_mut().find(not_stalled) {
        condition.reason = reason.name();
        condition.message = cut(format!(
            "the job continues under the specification that it began with; {consequence}the present one would be \
             refused: {why}"
        ));
    }
}

/// Adds a note to the condition `Admitted` of an admitted job if the job's label names another queue.
pub(in crate::decide) fn note_request(status: &mut RLTrainingJobStatus, queueing: &Queueing) {
    let (Some(queue), requested) = (&queueing.queue, &queueing.requested) else { return };
    if requested.as_ref() == Some(queue) {
        return;
    }
    let named = requested.as_ref().map_or_else(|| "no queue".to_owned(), |other| format!("queue {other}"));
    let admitted = |condition: &&mut Condition| {
        condition.type_ == ConditionType::Admitted && condition.reason == Reason::Admitted.name()
    };
    if let Some(condition) = status.conditions.iter_mut().find(admitted) {
        condition.message = cut(format!(
            "admitted by queue {queue}; the job's label names {named} since, which counts once the job is suspended or \
             evicted"
        ));
    }
}

fn cut(mut message: String) -> String {
    message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
    message
}

/// Returns every condition in the order of [`ConditionType::ALL`]. A condition whose status does not change
/// keeps its transition time.
fn conditions(
    state: &JobState,
    failure: Option<&ApplyFailure>,
    status: &RLTrainingJobStatus,
    now: Timestamp,
) -> Vec<Condition> {
    let condition = |type_: ConditionType| {
        let failed = failure.and_then(|failure| entry_of_failure(type_, state, failure, status));
        let (holds, reason, message) = failed.unwrap_or_else(|| entry_of(type_, state, status));
        let before = status.conditions.iter().find(|before| before.type_ == type_);
        let since =
            before.filter(|before| before.status == holds).map(|before| before.last_transition_time.clone());
        Condition {
            type_,
            status: holds,
            observed_generation: status.observed_generation,
            last_transition_time: since.unwrap_or_else(|| clock::rfc3339(now)),
            reason: reason.name(),
            message: cut(message),
        }
    };
    ConditionType::ALL.into_iter().map(condition).collect()
}

/// Returns the entry of a condition that an apply failure changes; `None` for any other condition.
fn entry_of_failure(
    type_: ConditionType,
    state: &JobState,
    failure: &ApplyFailure,
    status: &RLTrainingJobStatus,
) -> Option<Entry> {
    match type_ {
        ConditionType::Reconciling if failure.reason == Reason::WorkersRefused => {
            Some(entry(True, failure.reason, "workers cannot be made"))
        }
        ConditionType::Reconciling => Some((True, failure.reason, failure.message.clone())),
        ConditionType::Stalled if stalls(state, failure, status) => {
            Some((True, failure.reason, failure.message.clone()))
        }
        _ => None,
    }
}

/// Whether an apply failure stalls the job. A finished job stays `Complete` or `Failed`, even if its clean-up
/// fails.
fn stalls(state: &JobState, failure: &ApplyFailure, status: &RLTrainingJobStatus) -> bool {
    let has_ended = status.completion_time.is_some() || matches!(state, JobState::Complete);
    failure.needs_action && !has_ended
}

type Entry = (ConditionStatus, Reason, String);

fn entry_of(type_: ConditionType, state: &JobState, status: &RLTrainingJobStatus) -> Entry {
    match type_ {
        ConditionType::Succeeded => succeeded(state, status),
        ConditionType::Complete => match state {
            JobState::Complete => entry(True, Reason::StepsFinished, "all steps are done"),
            JobState::Failed(_) => entry(False, cause_of(status), "the job failed"),
            _ => entry(False, Reason::NotFinished, "the job has not finished"),
        },
        ConditionType::Failed => match state {
            JobState::Failed(_) => (True, cause_of(status), failure_in_words(status)),
            JobState::Complete => entry(False, Reason::StepsFinished, "all steps are done"),
            _ => entry(False, Reason::NotFinished, "the job has not finished"),
        },
        ConditionType::Suspended => match state {
            JobState::Suspended => entry(True, Reason::Suspended, "suspended by spec.runPolicy.suspend"),
            JobState::Queued(reason, message) => (True, *reason, message.clone()),
            JobState::Suspending => entry(False, Reason::Suspending, "workers save a checkpoint and stop"),
            JobState::Stuck(_) => entry(False, Reason::NodeUnreachable, "a worker cannot be stopped"),
            _ => entry(False, Reason::NotSuspended, "spec.runPolicy.suspend is not set"),
        },
        ConditionType::Admitted => admitted(state, status),
        ConditionType::PodsReady => pods_ready(state, status),
        ConditionType::Progressing => progressing(state, status),
        ConditionType::CheckpointHealthy => checkpoint_healthy(state, status),
        ConditionType::Reconciling => reconciling(state, status),
        ConditionType::Stalled => stalled(state, status),
    }
}

fn entry(holds: ConditionStatus, reason: Reason, message: &str) -> Entry {
    (holds, reason, message.to_owned())
}

fn succeeded(state: &JobState, status: &RLTrainingJobStatus) -> Entry {
    match state {
        JobState::Complete => entry(True, Reason::StepsFinished, "all steps are done"),
        JobState::Failed(_) => (False, cause_of(status), failure_in_words(status)),
        _ => entry(Unknown, Reason::NotFinished, "the job has not finished"),
    }
}

fn admitted(state: &JobState, status: &RLTrainingJobStatus) -> Entry {
    match (state, &status.queue) {
        (JobState::Queued(reason, message), _) => (False, *reason, message.clone()),
        (_, None) => entry(True, Reason::NoQueue, "the job asks for no queue"),
        (JobState::Suspended, Some(_)) => {
            entry(False, Reason::Suspended, "suspended by spec.runPolicy.suspend")
        }
        (_, Some(queue)) => (True, Reason::Admitted, format!("admitted by queue {queue}")),
    }
}

fn pods_ready(state: &JobState, status: &RLTrainingJobStatus) -> Entry {
    let ready = format!("{} workers are ready", status.ready.as_deref().unwrap_or("0/0"));
    match state {
        JobState::Running => (True, Reason::WorkersRunning, ready),
        JobState::Starting
        | JobState::Restarting
        | JobState::WaitingToRestart(_)
        | JobState::StartDelayed(..)
        | JobState::WaitingForClaim(_)
        | JobState::Stopping(..) => (False, Reason::WorkersStarting, ready),
        JobState::Stuck(_) => (False, Reason::NodeUnreachable, ready),
        _ => entry(False, Reason::NoWorkers, "no worker is needed"),
    }
}

fn progressing(state: &JobState, status: &RLTrainingJobStatus) -> Entry {
    let has_steps = status.progress.as_ref().is_some_and(|progress| progress.step > 0);
    let warning = status.progress.as_ref().and_then(|progress| progress.warning.as_ref());
    let reason = warning_reasons(status).first().copied().unwrap_or(Reason::RunsOnCpu);
    match (state, warning) {
        (JobState::Running, Some(warning)) if has_steps => (True, reason, warning.clone()),
        (JobState::Running, Some(warning)) => (Unknown, reason, warning.clone()),
        (state, _) => progressing_unhindered(state, has_steps),
    }
}

/// Returns the entry of `CheckpointHealthy`. A complete job has saved its last checkpoint, so earlier
/// failures to save one do not count.
fn checkpoint_healthy(state: &JobState, status: &RLTrainingJobStatus) -> Entry {
    let is_unsaved = warning_reasons(status).contains(&Reason::CheckpointNotSaved);
    if is_unsaved && *state != JobState::Complete {
        let warning = status.progress.as_ref().and_then(|progress| progress.warning.clone());
        return (False, Reason::CheckpointNotSaved, warning.unwrap_or_default());
    }
    match status.checkpoints.last() {
        Some(_) => entry(True, Reason::CheckpointComplete, "the newest checkpoint is complete"),
        None => entry(Unknown, Reason::NoCheckpoint, "no checkpoint was reported yet"),
    }
}

/// Returns the reasons of the trainer's warning, the most important first.
fn warning_reasons(status: &RLTrainingJobStatus) -> Vec<Reason> {
    reasons_of(&warning_names(status))
}

/// Returns the reasons with these names, without duplicates. All names that this release does not know become
/// one reason.
pub(in crate::decide) fn reasons_of(names: &[String]) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for reason in names.iter().map(|name| Reason::of_warning(name)) {
        if !reasons.contains(&reason) {
            reasons.push(reason);
        }
    }
    reasons
}

/// Returns the names of the reasons of the trainer's warning, the most important first, including those that
/// only a later release knows. A trainer of an earlier release names no reason: its only warning was that it
/// runs on a CPU.
pub(in crate::decide) fn warning_names(status: &RLTrainingJobStatus) -> Vec<String> {
    match status.progress.as_ref().filter(|progress| progress.warning.is_some()) {
        None => Vec::new(),
        Some(progress) if progress.warning_reasons.is_empty() => vec![Reason::RunsOnCpu.name()],
        Some(progress) => progress.warning_reasons.clone(),
    }
}

fn progressing_unhindered(state: &JobState, has_steps: bool) -> Entry {
    match state {
        JobState::Running if has_steps => entry(True, Reason::StepsAdvancing, "the trainer finishes steps"),
        JobState::Running => entry(Unknown, Reason::NoReport, "no finished step was reported yet"),
        _ => entry(False, Reason::NoWorkers, "not all workers run"),
    }
}

fn reconciling(state: &JobState, status: &RLTrainingJobStatus) -> Entry {
    match state {
        JobState::Starting => (True, Reason::WorkersStarting, starting(status)),
        JobState::Restarting => {
            let rule = deciding_rule(status);
            let (attempt, pods) = (status.attempt.unwrap_or(1), in_pods_that_stay(status));
            (True, Reason::Restarting, format!("attempt {attempt} begins{pods}{rule}"))
        }
        JobState::WaitingToRestart(_) => {
            let at = status.attempt_start_time.as_deref().unwrap_or_default();
            let rule = deciding_rule(status);
            (
                True,
                Reason::WaitingToRestart,
                format!("attempts ended early; the next one begins at {at}{rule}"),
            )
        }
        JobState::StartDelayed(cause, message) => (True, Reason::Failure(*cause), message.clone()),
        JobState::WaitingForClaim(message) => (True, Reason::ClaimTerminating, message.clone()),
        JobState::Stopping(cause, message) => (True, Reason::Failure(*cause), message.clone()),
        JobState::Stuck(_) => entry(True, Reason::NodeUnreachable, "a worker cannot be stopped"),
        JobState::Suspending => entry(True, Reason::Suspending, "workers save a checkpoint and stop"),
        _ => entry(False, Reason::Settled, "there is nothing left to reconcile"),
    }
}

/// Describes the promoted spares of an attempt in place; empty for any other attempt.
pub(in crate::decide) fn in_pods_that_stay(status: &RLTrainingJobStatus) -> String {
    if !status.attempt_in_place {
        return String::new();
    }
    let promoted = status.promoted_spares.iter();
    let spares: Vec<_> = promoted.map(|one| format!("{} is worker {}", one.pod, one.worker)).collect();
    let spares = if spares.is_empty() { String::new() } else { format!("; {}", spares.join(", ")) };
    format!(" in the pods that are there{spares}")
}

/// Describes the rule of the failure policy by which this attempt follows the last one; empty without a rule.
fn deciding_rule(status: &RLTrainingJobStatus) -> String {
    let last = status.last_failure.as_ref().filter(|last| Some(last.attempt + 1) == status.attempt);
    let rule = last.and_then(|last| last.rule.as_ref());
    rule.map(|rule| format!(", by spec.runPolicy.failurePolicy, {rule}")).unwrap_or_default()
}

/// Message of the condition while workers are being started, with the number of GPUs that each requests.
fn starting(status: &RLTrainingJobStatus) -> String {
    match status.resolved.as_ref().map_or(0, |resolved| resolved.gpus_per_worker) {
        0 => "workers are being started, without GPUs: spec.workers.device Cuda asks for one each".into(),
        1 => "workers are being started, each with a GPU".into(),
        num_gpus => format!("workers are being started, each with {num_gpus} GPUs"),
    }
}

fn stalled(state: &JobState, status: &RLTrainingJobStatus) -> Entry {
    match state {
        JobState::Failed(_) => (True, cause_of(status), failure_in_words(status)),
        JobState::Invalid(reason, problems) => (True, *reason, problems.clone()),
        JobState::Stuck(message) => (True, Reason::NodeUnreachable, message.clone()),
        _ => entry(False, Reason::NothingStalled, "nothing prevents progress"),
    }
}

/// Describes the last failure: the failed pod, the error, and what to change.
fn failure_in_words(status: &RLTrainingJobStatus) -> String {
    let Some(failure) = &status.last_failure else { return "the job failed".into() };
    let pod = failure.pod.as_deref().map(|pod| format!("{pod}: ")).unwrap_or_default();
    format!("{pod}{}; {}", failure.message, failure.advice)
}

/// Returns the cause of the end of a job that has failed.
pub(in crate::decide) fn cause_of(status: &RLTrainingJobStatus) -> Reason {
    let cause = status.last_failure.as_ref().map_or(FailureCause::TrainerFailed, |failure| failure.cause);
    Reason::Failure(cause)
}
