//! Failure of an attempt, as a worker's pod reports it.

use rlt_api::FailureCause;
use rlt_api::spec::FailureReason;
use rlt_objects::worker::{Explanation, Waiting, Worker};

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

pub(super) fn disrupted(disruption: &Explanation) -> FailureCause {
    match disruption.reason.as_str() {
        "DeletionByTaintManager" | "DeletionByPodGC" => FailureCause::NodeLost,
        _ => FailureCause::Disrupted,
    }
}

pub(in crate::decide) fn in_words(explanation: &Explanation) -> String {
    let Explanation { reason, message } = explanation;
    if message.is_empty() { reason.clone() } else { format!("{reason}: {message}") }
}
