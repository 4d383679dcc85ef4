//! Explanation of a job that has failed for good.

use rlt_api::FailureCause;
use rlt_api::status::{FailureStatus, RLTrainingJobStatus};
use rlt_objects::worker::{Worker, WorkerPhase};

use super::explanation::{Explanation, budget, checkpoint};
use super::{JobSnapshot, scheduling};
use crate::measure::{bytes, duration, quantity};

/// Factor by which a proposed limit exceeds an estimate, as a fraction: 11/10.
const HEADROOM: (u64, u64) = (11, 10);

pub(super) fn failed(snapshot: &JobSnapshot, status: &RLTrainingJobStatus) -> Explanation {
    let Some(failure) = &status.last_failure else {
        return Explanation::new("failed, and its status does not say why");
    };
    let explanation = Explanation::new(summary(failure))
        .because([failure.message.clone()])
        .because(details(snapshot, status, failure))
        .because([format!(
            "{} x {:?}{}",
            count(status, failure.cause),
            failure.cause,
            decided(snapshot, failure)
        )])
        .because(checkpoint(status));
    let advised = advice(snapshot, status, failure).into_iter().fold(explanation, Explanation::so);
    match logs(snapshot, failure) {
        Some(logs) => advised.so(logs),
        None => advised,
    }
}

fn summary(failure: &FailureStatus) -> String {
    let subject = failure.pod.as_deref().unwrap_or("the job as a whole");
    let node = failure.node.as_ref().map(|node| format!(" on node {node}")).unwrap_or_default();
    format!("failed in attempt {}: {:?} of {subject}{node}", failure.attempt, failure.cause)
}

/// States why the job was not retried: a rule of its failure policy, or the budget of the cause.
fn decided(snapshot: &JobSnapshot, failure: &FailureStatus) -> String {
    match &failure.rule {
        Some(rule) => format!(", and spec.runPolicy.failurePolicy decides, {rule}"),
        None => budget(snapshot, failure.cause),
    }
}

fn count(status: &RLTrainingJobStatus, cause: FailureCause) -> u32 {
    status.failures_by_cause.get(&cause).copied().unwrap_or(1)
}

/// Returns details of the cause in addition to the message.
fn details(snapshot: &JobSnapshot, status: &RLTrainingJobStatus, failure: &FailureStatus) -> Vec<String> {
    match failure.cause {
        FailureCause::OutOfMemory => memory(snapshot, status),
        FailureCause::PeerLost | FailureCause::Signalled => other_workers(snapshot, failure),
        FailureCause::Diverged => last_numbers(status).into_iter().collect(),
        FailureCause::DeadlineExceeded => {
            let active = status.active_seconds.map(duration);
            active
                .map(|active| format!("it was active for {active}, pauses not counted"))
                .into_iter()
                .collect()
        }
        FailureCause::NotScheduled => {
            let why = failure.message.split_once(": ").map_or(failure.message.as_str(), |(_, why)| why);
            scheduling::read(snapshot, why).evidence
        }
        _ => Vec::new(),
    }
}

/// Returns the planned memory of a worker, and its limit.
fn memory(snapshot: &JobSnapshot, status: &RLTrainingJobStatus) -> Vec<String> {
    let estimate = status.resolved.as_ref().and_then(|resolved| resolved.peak_memory_bytes);
    let estimate = match estimate {
        Some(estimate) => format!("the plan estimates at most {} for a worker", bytes(estimate)),
        None => "there is no estimate without the model's config.json: rlctl plan --model-config".to_owned(),
    };
    let limit = match limit(snapshot) {
        Some(limit) => format!("the limit is {limit} (spec.workers.resources.memory)"),
        None => {
            "no limit is set (spec.workers.resources.memory): the node itself was short of memory".to_owned()
        }
    };
    vec![estimate, limit]
}

fn limit(snapshot: &JobSnapshot) -> Option<String> {
    snapshot.prepared.as_ref().ok()?.job.spec().workers.resources.memory.clone()
}

/// Returns the exits of the attempt's other failed pods that still exist.
fn other_workers(snapshot: &JobSnapshot, failure: &FailureStatus) -> Vec<String> {
    let of_attempt = snapshot.workers.iter().filter(|worker| worker.attempt == failure.attempt);
    let others = of_attempt.filter(|worker| Some(&*worker.name) != failure.pod.as_deref());
    let failed = others.filter(|worker| worker.phase == WorkerPhase::Failed);
    let ends = failed.filter_map(|worker| {
        let exit = worker.exit.as_ref()?;
        let said = exit.message.lines().next().unwrap_or(&exit.reason);
        Some(format!("{} ended with {}: {said}", worker.name, exit.code))
    });
    ends.collect()
}

fn last_numbers(status: &RLTrainingJobStatus) -> Option<String> {
    let progress = status.progress.as_ref()?;
    let shown = |name: &str, value: Option<f64>| value.map(|value| format!(", {name} {value:.4}"));
    let (reward, kl) = (shown("reward", progress.reward), shown("KL", progress.kl));
    Some(format!(
        "the last step was {}{}{}",
        progress.step,
        reward.unwrap_or_default(),
        kl.unwrap_or_default()
    ))
}

fn advice(snapshot: &JobSnapshot, status: &RLTrainingJobStatus, failure: &FailureStatus) -> Vec<String> {
    match failure.cause {
        FailureCause::OutOfMemory => memory_advice(snapshot, status, failure),
        FailureCause::NotScheduled => {
            let why = failure.message.split_once(": ").map_or(failure.message.as_str(), |(_, why)| why);
            let read = scheduling::read(snapshot, why);
            if read.change.is_empty() { vec![failure.advice.clone()] } else { read.change }
        }
        FailureCause::NodeLost | FailureCause::Disrupted => vec![failure.advice.clone()],
        _ => vec![
            failure.advice.clone(),
            "then make the job anew: what has failed for good stays so".to_owned(),
        ],
    }
}

fn memory_advice(
    snapshot: &JobSnapshot,
    status: &RLTrainingJobStatus,
    failure: &FailureStatus,
) -> Vec<String> {
    let estimate = status.resolved.as_ref().and_then(|resolved| resolved.peak_memory_bytes);
    let limit = limit(snapshot).as_deref().and_then(quantity);
    let again = "then make the job anew: what has failed for good stays so".to_owned();
    match (estimate, limit) {
        (Some(estimate), Some(limit)) if estimate > limit => {
            let mebibytes = (estimate * HEADROOM.0 / HEADROOM.1).div_ceil(1 << 20);
            let raise =
                format!("raise spec.workers.resources.memory to {mebibytes}Mi, which the plan asks for");
            let lower = "or set spec.training.activationCheckpointing, or lower spec.rollout.maxCompletionTokens or \
                         spec.training.maxTokensPerMicroBatch, until rlctl plan fits the limit";
            vec![raise, lower.to_owned(), again]
        }
        _ => vec![failure.advice.clone(), again],
    }
}

/// Returns the command that shows the decisive log, if the log still exists: that of the worker that failed,
/// or of the peer that it lost.
fn logs(snapshot: &JobSnapshot, failure: &FailureStatus) -> Option<String> {
    let of_attempt = || snapshot.workers.iter().filter(|worker| worker.attempt == failure.attempt);
    let knows_more = |worker: &&Worker| {
        let code = worker.exit.as_ref().map_or(0, |exit| exit.code);
        FailureCause::from_exit_code(code).is_some_and(|cause| cause != FailureCause::PeerLost)
    };
    let lost = of_attempt().find(knows_more).filter(|_| failure.cause == FailureCause::PeerLost);
    let own = || of_attempt().find(|worker| Some(&*worker.name) == failure.pod.as_deref());
    let rank = lost.or_else(own)?.idx;
    let (name, namespace) = (snapshot.job.name(), snapshot.job.namespace());
    Some(format!("its log: rlctl logs {name} -n {namespace} --rank {rank}"))
}
