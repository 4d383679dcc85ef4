//! Explanation of workers that should run but do not run yet.

use rlt_api::Reason;
use rlt_api::status::{Condition, ConditionType, RLTrainingJobStatus};
use rlt_objects::worker::{Explanation as Said, Waiting, Worker, WorkerPhase};

use super::explanation::{Explanation, checkpoint, earlier, when_true};
use super::{JobSnapshot, scheduling};
use crate::measure::duration;
use crate::status::seconds_between;

/// Reasons of a waiting container whose image is the problem.
const IMAGE_REASONS: [&str; 6] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
];

pub(super) fn waiting(snapshot: &JobSnapshot, status: &RLTrainingJobStatus) -> Option<Explanation> {
    let reconciling = when_true(status, ConditionType::Reconciling)?;
    if reconciling.reason == Reason::WaitingToRestart.name() {
        return Some(delayed(snapshot, status));
    }
    let attempt = status.attempt.unwrap_or(1);
    let current = || snapshot.workers.iter().filter(|worker| worker.attempt == attempt);
    let said = claim(reconciling)
        .or_else(|| current().find_map(|worker| unschedulable(snapshot, worker)))
        .or_else(|| current().find_map(|worker| container(snapshot, worker)))
        .or_else(|| current().find_map(|worker| volume(snapshot, worker)))
        .or_else(|| leaving(snapshot, attempt))
        .unwrap_or_else(|| starting(snapshot, status, attempt));
    let since = reconciling.last_transition_time.parse().ok();
    let since = since.map(|since| format!(", for {}", duration(seconds_between(since, snapshot.now))));
    let summary = format!("{} (attempt {attempt}{})", said.summary, since.unwrap_or_default());
    let deadline = deadline(snapshot, status);
    Some(Explanation { summary, ..said }.because(deadline).because(earlier(snapshot, status)))
}

/// Explains the delay before an attempt, after attempts that ended soon after their start.
fn delayed(snapshot: &JobSnapshot, status: &RLTrainingJobStatus) -> Explanation {
    let at = status.attempt_start_time.as_deref().and_then(|time| time.parse().ok());
    let wait = at.map(|at| duration(seconds_between(snapshot.now, at))).unwrap_or_default();
    let summary =
        format!("waits {wait} before attempt {}: attempts ended early", status.attempt.unwrap_or(1));
    let last = status.last_failure.as_ref();
    let why = last.map(|failure| {
        format!("attempt {} ended: {:?}: {}", failure.attempt, failure.cause, failure.message)
    });
    let explanation =
        Explanation::new(summary).because(why).because(earlier(snapshot, status)).because(checkpoint(status));
    match last {
        Some(failure) => explanation.so(failure.advice.clone()),
        None => explanation,
    }
}

/// Explains workers that wait until a deleted claim is gone.
fn claim(reconciling: &Condition) -> Option<Explanation> {
    let is_awaited = reconciling.reason == Reason::ClaimTerminating.name();
    let message = is_awaited.then(|| reconciling.message.clone())?;
    Some(Explanation::new("waits: its claim is being deleted").because([message]))
}

fn unschedulable(snapshot: &JobSnapshot, worker: &Worker) -> Option<Explanation> {
    let Some(Waiting::Unschedulable(message)) = worker.waiting.as_deref() else { return None };
    let reading = scheduling::read(snapshot, message);
    let explanation =
        Explanation::new(format!("waits: no node has room for {}", worker.name)).because(reading.evidence);
    Some(reading.change.into_iter().fold(explanation, Explanation::so))
}

fn container(snapshot: &JobSnapshot, worker: &Worker) -> Option<Explanation> {
    let Some(Waiting::Container(said)) = worker.waiting.as_deref() else { return None };
    if IMAGE_REASONS.contains(&said.reason.as_str()) {
        return Some(image(snapshot, worker, said));
    }
    let explanation = Explanation::new(format!("waits: the container of {} cannot be made", worker.name))
        .because([format!("{}: {}", said.reason, said.message)]);
    let missing = ["secret", "configmap"].iter().find(|kind| said.message.starts_with(**kind));
    Some(match missing {
        Some(kind) => explanation.so(format!("make that {kind} in namespace {}", snapshot.job.namespace())),
        None => explanation.so("correct what the message names"),
    })
}

fn image(snapshot: &JobSnapshot, worker: &Worker, said: &Said) -> Explanation {
    let own = snapshot.prepared.as_ref().ok().and_then(|prepared| prepared.job.spec().workers.image.clone());
    let (image, field) = match &own {
        Some(image) => (format!("image `{image}`"), "spec.workers.image"),
        None if has_gpus(snapshot) => {
            ("the operator's trainer image for GPUs".to_owned(), "the chart's value trainerCudaImage")
        }
        None => ("the operator's trainer image".to_owned(), "the chart's value trainerImage"),
    };
    let node = worker.node.as_ref().map(|node| format!(" on node {node}")).unwrap_or_default();
    // The back-off reason hides the error of the image pull, but its Event still has the error.
    let pulled =
        snapshot.events.iter().rev().find(|one| {
            one.name == *worker.name && one.reason == "Failed" && one.message.contains("pull image")
        });
    let explanation = Explanation::new(format!("waits: {image} of {} cannot be had{node}", worker.name))
        .because([format!("{}: {}", said.reason, said.message)])
        .because(pulled.map(|one| one.message.clone()));
    let evidence = explanation.evidence.join(" ").to_lowercase();
    let is_private =
        ["unauthorized", "denied", "forbidden", "authentication"].iter().any(|word| evidence.contains(word));
    match said.reason.as_str() {
        "ErrImageNeverPull" => explanation.so("bring the image to the node, or let it be pulled"),
        _ if is_private => explanation.so("name a secret for its registry in spec.workers.imagePullSecrets"),
        _ => explanation.so(format!("correct {field}, and see whether nodes reach its registry")),
    }
}

fn has_gpus(snapshot: &JobSnapshot) -> bool {
    snapshot.prepared.as_ref().is_ok_and(|prepared| prepared.gpus_per_worker() > 0)
}

/// Explains a pod that has a node, but not its volume.
fn volume(snapshot: &JobSnapshot, worker: &Worker) -> Option<Explanation> {
    let is_waiting = worker.phase == WorkerPhase::Pending && worker.node.is_some();
    let trouble = snapshot.events.iter().rev().find(|one| {
        one.name == *worker.name && matches!(one.reason.as_str(), "FailedMount" | "FailedAttachVolume")
    });
    let trouble = trouble.filter(|_| is_waiting)?;
    Some(
        Explanation::new(format!("waits: a volume of {} cannot be mounted", worker.name))
            .because([format!("{}: {}", trouble.reason, trouble.message)])
            .so("see `kubectl describe pvc`; a claim of mode ReadWriteOnce serves the pods of one node only"),
    )
}

/// Explains workers of earlier attempts that still exist.
fn leaving(snapshot: &JobSnapshot, attempt: u32) -> Option<Explanation> {
    let before: Vec<_> = snapshot.workers.iter().filter(|worker| worker.attempt != attempt).collect();
    let first = before.first()?;
    let names: Vec<_> = before.iter().map(|worker| worker.name.to_string()).collect();
    let node = first.node.as_deref().unwrap_or("none");
    Some(
        Explanation::new("waits until the workers of the attempt before are gone")
            .because([format!("{} (node {node})", names.join(", "))])
            .so(format!("if it lasts, see whether the node still answers: kubectl get node {node}")),
    )
}

fn starting(snapshot: &JobSnapshot, status: &RLTrainingJobStatus, attempt: u32) -> Explanation {
    let ready = status.ready.as_deref().unwrap_or("0/0");
    let late = snapshot.workers.iter().filter(|worker| worker.attempt == attempt && !worker.is_in_place());
    let late: Vec<_> = late.map(|worker| format!("{} is {}", worker.name, phase(worker))).collect();
    Explanation::new(format!("starts: {ready} workers are ready")).because(late)
}

fn phase(worker: &Worker) -> &'static str {
    match worker.phase {
        _ if worker.is_deleting => "being stopped",
        WorkerPhase::Pending if worker.node.is_some() => "being made on its node",
        WorkerPhase::Pending => "waiting for a node",
        WorkerPhase::Running => "running, but not ready",
        WorkerPhase::Succeeded => "done",
        WorkerPhase::Failed => "failed",
    }
}

/// States when the job fails because its workers have not started.
fn deadline(snapshot: &JobSnapshot, status: &RLTrainingJobStatus) -> Option<String> {
    let limit = snapshot.prepared.as_ref().ok()?.job.spec().run_policy.startup_deadline_seconds?;
    let since = status.attempt_start_time.as_deref()?.parse().ok()?;
    let left = limit.saturating_sub(seconds_between(since, snapshot.now));
    Some(format!(
        "the job fails in {} unless all run (spec.runPolicy.startupDeadlineSeconds)",
        duration(left)
    ))
}
