//! Cause of an attempt's end. The first pod that fails determines the cause: the others fail because they
//! lost it.
//!
//! A pod that is being deleted keeps its grace period: within it all pods save a checkpoint and exit, which
//! ends the attempt.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rlt_api::{ExitCode, FailureCause};
use rlt_objects::worker::{Worker, WorkerPhase};

use super::super::{Reconcile, claim, clock, deadlines, deletion, evacuation, spares};
use super::failure::{Failure, classify_exit, disrupted, in_words};

/// Longest wait, after a `PeerLost` exit, for the exit of the peer, which determines the cause.
const PEER_PATIENCE: Duration = Duration::from_secs(3);

/// State of an attempt with regard to failures.
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
    let failure = claim::failure(reconcile).or_else(|| deadlines::overdue(reconcile));
    failure.map_or(AttemptState::Healthy, AttemptState::Failed)
}

/// Attributes an exit after a stop signal to the pod whose deletion or preemption made all pods stop.
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

/// Returns the state of a running attempt of which a pod was deleted or is being deleted. (While an attempt
/// starts, the pod is created again instead.) The pod keeps its grace period if no other pod has failed, so
/// that all can save a checkpoint with it.
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
