//! Cause of an attempt's end. The first pod that fails determines the cause: the others fail because they
//! lost it.
//!
//! A pod that is being deleted keeps its grace period: all pods save a checkpoint in it, and the attempt ends
//! with them.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rlt_api::spec::FailureReason;
use rlt_api::{ExitCode, FailureCause};
use rlt_objects::worker::{Explanation, Waiting, Worker, WorkerPhase};

use super::super::{Reconcile, clock, deadlines, deletion, evacuation, spares};

/// Longest wait, after a `PeerLost` exit, for the exit of the peer, which determines the cause.
const PEER_PATIENCE: Duration = Duration::from_secs(3);
/// State of an attempt, as far as failures are concerned.
pub(in crate::decide) enum AttemptState {
    /// No failure was found.
    Healthy,
    /// The attempt has failed, but the pod that knows the cause may not have reported its exit yet. Holds the
    /// time to wait.
    CauseUnknown(Duration),
    /// A pod is being deleted, and all pods save a checkpoint.
    Stopping {
        /// Cause of the deletion.
        cause: FailureCause,
        /// Name of the pod, and the reason.
        message: String,
        /// Remaining grace period.
        wait: Duration,
    },
    /// The attempt has failed.
    Failed(Failure),
}

/// Failure that ended an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::decide) struct Failure {
    pub(in crate::decide) cause: FailureCause,
    pub(in crate::decide) message: String,
    pub(in crate::decide) pod: Option<String>,
    pub(in crate::decide) node: Option<String>,
    pub(in crate::decide) exit_code: Option<i32>,
    /// Reasons that Kubernetes reports for the worker's pod.
    pub(in crate::decide) reasons: Vec<String>,
}

impl Failure {
    /// Returns a failure of the job as a whole.
    pub(in crate::decide) fn of_job(cause: FailureCause, message: String) -> Self {
        Self { cause, message, pod: None, node: None, exit_code: None, reasons: Vec::new() }
    }

    pub(in crate::decide) fn of_worker(cause: FailureCause, message: String, worker: &Worker) -> Self {
        Self {
            cause,
            message,
            pod: Some(worker.name.to_string()),
            node: worker.node.as_deref().map(str::to_owned),
            exit_code: worker.last_exit().map(|exit| exit.code),
            reasons: reasons(worker),
        }
    }
}

/// Returns all reasons that Kubernetes reports for a worker's end, or for its failure to start.
fn reasons(worker: &Worker) -> Vec<String> {
    let explanations = [worker.disruption.as_deref(), worker.explanation.as_deref()];
    let waiting = worker.waiting.as_deref().map(|waiting| match waiting {
        Waiting::Unschedulable(_) => FailureReason::Unschedulable.name(),
        Waiting::Container(why) => why.reason.clone(),
    });
    let of_pod = explanations.into_iter().flatten().map(|explanation| explanation.reason.clone());
    worker.last_exit().into_iter().map(|exit| exit.reason.clone()).chain(of_pod).chain(waiting).collect()
}

/// Finds the failure that ended the attempt.
pub(in crate::decide) fn attempt_state(reconcile: &Reconcile<'_>) -> AttemptState {
    let mut failed: Vec<_> = reconcile.pods.present().filter(|worker| worker.has_failed()).collect();
    failed.sort_by_key(|worker| finished_at(worker).unwrap_or(Timestamp::MAX));
    let failures: Vec<_> = failed.iter().map(|worker| classify(reconcile, worker)).collect();
    let knows_more = |failure: &&Failure| failure.cause != FailureCause::PeerLost;
    if let Some(failure) = failures.iter().find(knows_more) {
        return AttemptState::Failed(by_whom_it_began(reconcile, failure));
    }
    if let Some(failure) = on_lost_node(reconcile) {
        return AttemptState::Failed(failure);
    }
    if let Some(state) = deleted(reconcile, failures.is_empty()) {
        return state;
    }
    if let Some(failure) = spares::lost(reconcile) {
        return AttemptState::Failed(failure);
    }
    if let (Some(failure), Some(first)) = (failures.first(), failed.first()) {
        let wait = clock::until(finished_at(first).map(|at| at + PEER_PATIENCE), reconcile.input.now);
        // A node's clock may be ahead of the operator's, so the wait is bounded by `PEER_PATIENCE`.
        return match wait.filter(|wait| *wait <= PEER_PATIENCE) {
            Some(wait) if failed.len() < reconcile.pods.num_planned() => AttemptState::CauseUnknown(wait),
            _ => {
                let elsewhere = on_silent_node(reconcile).or_else(|| on_impaired_node(reconcile));
                AttemptState::Failed(elsewhere.unwrap_or_else(|| failure.clone()))
            }
        };
    }
    deadlines::overdue(reconcile).map_or(AttemptState::Healthy, AttemptState::Failed)
}

/// Attributes an exit after a stop signal to the pod that was deleted or preempted, because of which all pods
/// stop.
fn by_whom_it_began(reconcile: &Reconcile<'_>, failure: &Failure) -> Failure {
    if failure.exit_code != Some(i32::from(ExitCode::Preempted.code())) {
        return failure.clone();
    }
    let asked = reconcile.pods.present().find(|worker| worker.disruption.is_some() || worker.is_deleting);
    asked.map_or_else(
        || failure.clone(),
        |worker| {
            let removed = removed(reconcile, worker);
            let reasons = [failure.reasons.clone(), removed.reasons].concat();
            Failure { exit_code: failure.exit_code, reasons, ..removed }
        },
    )
}

/// Returns the failure of a pod on a lost node.
fn on_lost_node(reconcile: &Reconcile<'_>) -> Option<Failure> {
    let is_lost = |worker: &&Worker| !worker.is_finished() && deletion::is_lost(reconcile, worker);
    let worker = reconcile.pods.present().find(is_lost)?;
    let node = worker.node.as_deref().unwrap_or_default();
    let message = format!("its node {node} is gone or out of service");
    Some(Failure::of_worker(FailureCause::NodeLost, message, worker))
}

/// Returns the failure of a pod on a silent node. Call it only once the pod's peers have lost it.
fn on_silent_node(reconcile: &Reconcile<'_>) -> Option<Failure> {
    let is_silent = |worker: &&Worker| !worker.is_finished() && deletion::is_silent(reconcile, worker);
    let worker = reconcile.pods.present().find(is_silent)?;
    let node = worker.node.as_deref().unwrap_or_default();
    let message = format!("its node {node} does not answer, and other workers have lost it");
    Some(Failure::of_worker(FailureCause::NodeLost, message, worker))
}

/// Returns the failure of an unfinished worker whose node reports a problem.
fn on_impaired_node(reconcile: &Reconcile<'_>) -> Option<Failure> {
    let mut unfinished = reconcile.pods.present().filter(|worker| !worker.is_finished());
    unfinished.find_map(|worker| evacuation::cause(reconcile, worker))
}

fn finished_at(worker: &Worker) -> Option<Timestamp> {
    worker.last_exit().and_then(|exit| exit.finished_at)
}

/// Classifies a pod's failure, by its exit and by the signals of its node.
fn classify(reconcile: &Reconcile<'_>, worker: &Worker) -> Failure {
    let failure = classify_exit(worker);
    let by_node = evacuation::cause(reconcile, worker).filter(|_| failure.cause.may_be_the_nodes());
    match by_node {
        Some(by_node) => Failure { message: format!("{}; {}", failure.message, by_node.message), ..by_node },
        None => failure,
    }
}

/// Classifies a pod's failure by its status and its termination message.
pub(in crate::decide) fn classify_exit(worker: &Worker) -> Failure {
    let failure = |cause, message| Failure::of_worker(cause, message, worker);
    if let Some(disruption) = &worker.disruption {
        return failure(disrupted(disruption), in_words(disruption));
    }
    if let Some(exit) = worker.last_exit() {
        let is_memory = exit.reason == "OOMKilled";
        let cause =
            if is_memory { Some(FailureCause::OutOfMemory) } else { FailureCause::from_exit_code(exit.code) };
        let said = if exit.message.is_empty() { &exit.reason } else { &exit.message };
        let message = format!("exit code {}: {}", exit.code, said.trim());
        return failure(cause.unwrap_or(FailureCause::TrainerFailed), message);
    }
    match &worker.explanation {
        // The pod exceeded its ephemeral storage; a node under pressure sets `DisruptionTarget` instead.
        Some(explanation) if explanation.reason == "Evicted" => {
            failure(FailureCause::RetryableIo, in_words(explanation))
        }
        Some(explanation) => failure(FailureCause::Disrupted, in_words(explanation)),
        None => failure(FailureCause::Disrupted, "the pod failed without an exit code".into()),
    }
}

fn disrupted(disruption: &Explanation) -> FailureCause {
    match disruption.reason.as_str() {
        "DeletionByTaintManager" | "DeletionByPodGC" => FailureCause::NodeLost,
        _ => FailureCause::Disrupted,
    }
}

pub(in crate::decide) fn in_words(explanation: &Explanation) -> String {
    let Explanation { reason, message } = explanation;
    if message.is_empty() { reason.clone() } else { format!("{reason}: {message}") }
}

/// Returns the state for a pod of a running gang that others have deleted. (While a gang starts, the pod is
/// created again instead.) The pod keeps its grace period if all other pods run and can save a checkpoint
/// with it.
fn deleted(reconcile: &Reconcile<'_>, are_all_there: bool) -> Option<AttemptState> {
    reconcile.status.attempt_running_time.as_ref()?;
    let is_leaving = |worker: &&Worker| worker.is_deleting && worker.phase != WorkerPhase::Succeeded;
    if let Some(worker) = reconcile.pods.present().find(is_leaving) {
        let can_save = are_all_there && !deletion::is_silent(reconcile, worker);
        let wait = deletion::time_left(reconcile, worker).filter(|_| can_save);
        let failure = evacuation::attribute(reconcile, removed(reconcile, worker));
        return Some(match wait {
            Some(wait) => {
                let message = format!("{}: {}", worker.name, failure.message);
                AttemptState::Stopping { cause: failure.cause, message, wait }
            }
            None => AttemptState::Failed(failure),
        });
    }
    let name = reconcile.pods.first_missing()?;
    let failure = Failure::of_job(FailureCause::Disrupted, "the pod was deleted".into());
    Some(AttemptState::Failed(Failure { pod: Some(name), ..failure }))
}

/// Returns the failure that explains why a pod that has not failed is terminating.
fn removed(reconcile: &Reconcile<'_>, worker: &Worker) -> Failure {
    if let Some(by_node) = evacuation::cause(reconcile, worker) {
        return by_node;
    }
    let (cause, message) = match &worker.disruption {
        Some(disruption) => (disrupted(disruption), in_words(disruption)),
        None => (FailureCause::Disrupted, "the pod was deleted".into()),
    };
    Failure::of_worker(cause, message, worker)
}
