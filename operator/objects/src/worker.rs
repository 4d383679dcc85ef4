//! A worker: what the operator caches of a pod, a few hundred bytes.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodStatus};
use k8s_openapi::jiff::Timestamp;
use rlt_plan::SPARE_GROUP;

use crate::labels;
use crate::seen::{SeenPod, version};
use crate::worker_id::{GroupName, WorkerId};

/// A pod of a job; by default one without a status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Worker {
    /// The pod's name.
    pub name: Arc<str>,
    /// The pod's UID.
    pub uid: Arc<str>,
    /// Resource version of the pod; 0 if it is absent or not a number.
    pub resource_version: u64,
    /// Name of the worker's group.
    pub group: GroupName,
    /// Index of the worker in its group, from 0.
    pub idx: u32,
    /// Number of the attempt that the pod belongs to, from 1.
    pub attempt: u32,
    /// Digest of the image of the container `trainer`, by which pods are compared; 0 if the image is unknown.
    pub image: u64,
    /// Phase of the worker.
    pub phase: WorkerPhase,
    /// Whether the pod is ready.
    pub is_ready: bool,
    /// Whether sidecars still run after the container `trainer` exited, and hold the pod's resources.
    pub has_live_sidecars: bool,
    /// Whether the pod has a deletion timestamp.
    pub is_deleting: bool,
    /// End of the pod's grace period, once it was deleted.
    pub leaves_by: Option<Timestamp>,
    /// Name of the pod's node, once it is scheduled.
    pub node: Option<Arc<str>>,
    /// IP address of a group's worker 0, which serves the rendezvous; `None` for all other workers.
    pub address: Option<Arc<str>>,
    /// Exit of the container `trainer`, once it has exited. Boxed like the fields below: few of thousands of
    /// pods have them.
    pub exit: Option<Box<Exit>>,
    /// Reason and message of the pod's condition `DisruptionTarget`, if it is true.
    pub disruption: Option<Box<Explanation>>,
    /// The reason why the pod does not start.
    pub waiting: Option<Box<Waiting>>,
    /// Reason and message of the pod's status.
    pub explanation: Option<Box<Explanation>>,
    /// Last report of the pod's launcher, if the launcher polls for further attempts. It is not read from the
    /// pod; `observe` adds it.
    pub launcher: Option<Box<Launcher>>,
}

/// The report of the launcher of a pod that may be assigned to another attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launcher {
    /// Number of the attempt that the launcher started last; 0 for a spare that has started none.
    pub attempt: u32,
    /// Exit of the processes of `attempt`, once none of them is left.
    pub ended: Option<Exit>,
    /// Whether a spare has loaded what it needs to start quickly.
    pub is_loaded: bool,
}

/// The container whose state is the worker's; other containers of the pod are sidecars.
pub const TRAINER_CONTAINER: &str = "trainer";

/// The phase of a worker, by its container `trainer`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerPhase {
    /// Waits for a node, an image or a volume.
    #[default]
    Pending,
    /// The container runs.
    Running,
    /// The container exited with 0.
    Succeeded,
    /// The container failed or could never start.
    Failed,
}

/// Exit of a container, or of the processes of a launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit code of the container, or 128 and the signal.
    pub code: i32,
    /// Reason of the exit as Kubernetes names it, such as `OOMKilled`.
    pub reason: String,
    /// Termination message, in which the process describes its last error.
    pub message: String,
    /// Time of the exit, if it is known.
    pub finished_at: Option<Timestamp>,
}

/// Reason and message of a state, as Kubernetes reports them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The reason in one word, for programs.
    pub reason: String,
    /// A message for users.
    pub message: String,
}

/// The reason why a pod does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The scheduler finds no node.
    Unschedulable(String),
    /// The container cannot be created.
    Container(Explanation),
}

/// Key of the job that owns an object. Its namespace is that of the object, because Kubernetes allows no
/// owners in other namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobKey {
    /// UID of the job.
    pub uid: Arc<str>,
    /// Namespace of the job.
    pub namespace: Arc<str>,
    /// Name of the job.
    pub name: Arc<str>,
}

impl Worker {
    /// Reads a worker and the key of its job from a pod. `None` if the pod is not a worker of a job.
    pub fn read(pod: &SeenPod) -> Option<(JobKey, Self)> {
        let metadata = &pod.metadata;
        let owner = owner(metadata)?;
        let label = |name| metadata.labels.as_ref()?.get(name);
        let status = &pod.status;
        let containers = status.container_statuses.iter().flatten();
        let container = containers.into_iter().find(|container| container.name == TRAINER_CONTAINER);
        let phase = phase(status, container);
        let is_finished = matches!(phase, WorkerPhase::Succeeded | WorkerPhase::Failed);
        let idx = label(labels::WORKER_IDX)?.parse().ok()?;
        let worker = Self {
            name: metadata.name.as_deref()?.into(),
            uid: metadata.uid.as_deref()?.into(),
            resource_version: metadata.resource_version.as_deref().map_or(0, version),
            group: label(labels::WORKER_GROUP).map(|name| name.as_str().into()).unwrap_or_default(),
            idx,
            attempt: label(labels::ATTEMPT)?.parse().ok()?,
            image: trainer_image(pod).map_or(0, image_digest),
            phase,
            is_ready: container.is_some_and(|container| container.ready),
            has_live_sidecars: is_finished && status.phase.as_deref() == Some("Running"),
            is_deleting: metadata.deletion_timestamp.is_some(),
            leaves_by: metadata.deletion_timestamp.as_ref().map(|time| time.0),
            node: pod.spec.node_name.as_deref().map(Into::into),
            address: status.pod_ip.as_deref().filter(|ip| idx == 0 && !ip.is_empty()).map(Into::into),
            exit: container.and_then(exit).map(Box::new),
            disruption: condition(status, "DisruptionTarget")
                .filter(|target| target.status == "True")
                .map(|target| Box::new(explain_condition(target))),
            waiting: waiting(status, container).map(Box::new),
            explanation: explain(status).map(Box::new),
            launcher: None,
        };
        Some((owner, worker))
    }

    /// Returns group and index, which name a worker within its job.
    pub fn id(&self) -> WorkerId {
        WorkerId { group: self.group.clone(), idx: self.idx }
    }

    /// Whether the container `trainer` has exited.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, WorkerPhase::Succeeded | WorkerPhase::Failed)
    }

    /// Whether the worker is a hot spare that has no ranks yet.
    pub fn is_spare(&self) -> bool {
        *self.group == *SPARE_GROUP
    }

    /// Returns the exit of the processes of the worker's attempt, if the pod keeps running for another
    /// attempt.
    fn ended_within_pod(&self) -> Option<&Exit> {
        let launcher = self.launcher.as_ref().filter(|launcher| launcher.attempt == self.attempt)?;
        launcher.ended.as_ref().filter(|_| !self.is_finished())
    }

    /// Whether no process of the worker's attempt is left, as far as that is known: its container has
    /// exited, or its launcher waits for another attempt.
    pub fn has_no_process(&self) -> bool {
        self.is_finished() || self.ended_within_pod().is_some()
    }

    /// Whether the worker's container failed, or its processes ended while the pod keeps running.
    pub fn has_failed(&self) -> bool {
        self.phase == WorkerPhase::Failed || self.ended_within_pod().is_some()
    }

    /// Returns the exit of the worker's container, or of its processes if the pod keeps running for another
    /// attempt.
    pub fn last_exit(&self) -> Option<&Exit> {
        self.exit.as_deref().or_else(|| self.ended_within_pod())
    }

    /// Whether other pods can reach the worker.
    pub fn is_reachable(&self) -> bool {
        self.address.is_some() && !self.is_deleting && !self.is_finished()
    }

    /// Whether the worker is ready, or has succeeded.
    pub fn is_in_place(&self) -> bool {
        self.phase == WorkerPhase::Succeeded
            || self.phase == WorkerPhase::Running && self.is_ready && !self.is_deleting
    }
}

/// Returns the image of a pod's container `trainer`, as the API server stores it.
pub fn trainer_image(pod: &SeenPod) -> Option<&str> {
    let trainer = pod.spec.containers.iter().find(|container| container.name == TRAINER_CONTAINER)?;
    trainer.image.as_deref()
}

/// Returns the digest of an image, by which this process compares pods.
pub fn image_digest(image: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    image.hash(&mut hasher);
    hasher.finish()
}

/// The group of an API version such as `rltraining.dev/v1alpha1`.
fn group_of(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

/// Returns the job that owns an object, in any version of the API: objects that another release of the
/// operator created may have another version in their owner reference.
pub fn owner(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Option<JobKey> {
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| {
        owner.kind == rlt_api::KIND && group_of(&owner.api_version) == group_of(rlt_api::API_VERSION)
    })?;
    Some(JobKey {
        uid: owner.uid.as_str().into(),
        namespace: metadata.namespace.as_deref()?.into(),
        name: owner.name.as_str().into(),
    })
}

/// Returns the phase of a worker. The pod's phase counts only until the container `trainer` exits, because
/// sidecars start before it, fail independently and outlive it.
fn phase(status: &PodStatus, trainer: Option<&ContainerStatus>) -> WorkerPhase {
    let state = trainer.and_then(|trainer| trainer.state.as_ref());
    let exit_code = state.and_then(|state| Some(state.terminated.as_ref()?.exit_code));
    let is_waiting = state.is_some_and(|state| state.waiting.is_some());
    match (exit_code, status.phase.as_deref()) {
        (Some(0), _) => WorkerPhase::Succeeded,
        (Some(_), _) | (None, Some("Failed")) => WorkerPhase::Failed,
        (None, Some("Succeeded")) => WorkerPhase::Succeeded,
        (None, Some("Running")) if !is_waiting => WorkerPhase::Running,
        (None, _) => WorkerPhase::Pending,
    }
}

fn condition<'a>(status: &'a PodStatus, name: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == name)
}

fn explain(status: &PodStatus) -> Option<Explanation> {
    let reason = status.reason.clone()?;
    Some(Explanation { reason, message: status.message.clone().unwrap_or_default() })
}

fn explain_condition(condition: &PodCondition) -> Explanation {
    Explanation {
        reason: condition.reason.clone().unwrap_or_default(),
        message: condition.message.clone().unwrap_or_default(),
    }
}

fn exit(container: &ContainerStatus) -> Option<Exit> {
    let ended = container.state.as_ref()?.terminated.as_ref()?;
    Some(Exit {
        code: ended.exit_code,
        reason: ended.reason.clone().unwrap_or_default(),
        message: ended.message.clone().unwrap_or_default(),
        finished_at: ended.finished_at.as_ref().map(|time| time.0),
    })
}

fn waiting(status: &PodStatus, container: Option<&ContainerStatus>) -> Option<Waiting> {
    let unscheduled = condition(status, "PodScheduled").filter(|scheduled| scheduled.status == "False");
    if let Some(unscheduled) = unscheduled {
        return Some(Waiting::Unschedulable(unscheduled.message.clone().unwrap_or_default()));
    }
    let waiting = container?.state.as_ref()?.waiting.as_ref()?;
    let reason = waiting.reason.clone().unwrap_or_default();
    let is_normal = matches!(reason.as_str(), "" | "ContainerCreating" | "PodInitializing");
    let message = waiting.message.clone().unwrap_or_default();
    (!is_normal).then_some(Waiting::Container(Explanation { reason, message }))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Reads a worker whose pod has this phase and these containers, each with its name and state.
    fn read(phase: &str, containers: &[(&str, Value)]) -> Worker {
        let container = |(name, state): &(&str, Value)| {
            let is_ready = !state["running"].is_null();
            json!({"name": name, "image": "i", "imageID": "", "ready": is_ready, "restartCount": 0, "state": state})
        };
        let owner =
            json!({"apiVersion": rlt_api::API_VERSION, "kind": rlt_api::KIND, "name": "job", "uid": "u"});
        let pod = json!({
            "metadata": {
                "name": "job-trainer-0", "namespace": "team", "uid": "p", "ownerReferences": [owner],
                "labels": {labels::WORKER_IDX: "0", labels::ATTEMPT: "1"},
            },
            "status": {
                "phase": phase,
                "containerStatuses": containers.iter().map(container).collect::<Vec<_>>(),
            },
        });
        Worker::read(&serde_json::from_value(pod).unwrap()).unwrap().1
    }

    #[test]
    fn pods_are_compared_by_the_image_of_the_trainer_and_not_of_sidecars() {
        let image = |containers: Value| {
            let pod = json!({
                "metadata": {
                    "name": "job-trainer-0", "namespace": "team", "uid": "p",
                    "ownerReferences": [
                        {"apiVersion": rlt_api::API_VERSION, "kind": rlt_api::KIND, "name": "job", "uid": "u"}
                    ],
                    "labels": {labels::WORKER_IDX: "0", labels::ATTEMPT: "1"},
                },
                "spec": {"containers": containers},
            });
            Worker::read(&serde_json::from_value(pod).unwrap()).unwrap().1.image
        };
        let trainer = |image: &str| json!({"name": "trainer", "image": image});
        let sidecar = |image: &str| json!({"name": "log", "image": image});
        let alone = image(json!([trainer("rlt:1")]));
        assert_eq!(image(json!([sidecar("log:1"), trainer("rlt:1")])), alone);
        assert_eq!(image(json!([trainer("rlt:1"), sidecar("log:2")])), alone);
        assert_ne!(image(json!([trainer("rlt:2")])), alone);
        assert_eq!(image(json!([sidecar("rlt:1")])), 0);
    }

    fn runs() -> Value {
        json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
    }

    fn ended(code: i32) -> Value {
        json!({"terminated": {"exitCode": code, "reason": if code == 0 { "Completed" } else { "Error" }}})
    }

    #[test]
    fn the_container_trainer_decides_wherever_sidecars_stand_and_however_they_end() {
        let phase = |phase, sidecar: Value, trainer: Value| {
            let worker = read(phase, &[("a-sidecar", sidecar), ("trainer", trainer)]);
            (worker.phase, worker.exit.map(|exit| exit.code), worker.has_live_sidecars)
        };
        assert_eq!(phase("Running", runs(), runs()), (WorkerPhase::Running, None, false));
        assert_eq!(phase("Running", ended(1), runs()), (WorkerPhase::Running, None, false));
        assert_eq!(phase("Running", runs(), ended(0)), (WorkerPhase::Succeeded, Some(0), true));
        assert_eq!(phase("Running", runs(), ended(78)), (WorkerPhase::Failed, Some(78), true));
        assert_eq!(phase("Failed", ended(1), ended(0)), (WorkerPhase::Succeeded, Some(0), false));
        let waits = json!({"waiting": {"reason": "ImagePullBackOff", "message": "typo"}});
        assert_eq!(phase("Running", runs(), waits.clone()), (WorkerPhase::Pending, None, false));
        assert_eq!(phase("Failed", ended(0), waits.clone()), (WorkerPhase::Failed, None, false));
        let explanation = Explanation { reason: "ImagePullBackOff".into(), message: "typo".into() };
        let waiting = read("Running", &[("a-sidecar", runs()), ("trainer", waits)]).waiting;
        assert_eq!(waiting.map(|waiting| *waiting), Some(Waiting::Container(explanation)));
    }

    #[test]
    fn an_object_belongs_to_its_job_in_any_version_of_the_api_and_in_no_other_group() {
        let owner_in = |version: &str| {
            let reference = json!({"apiVersion": version, "kind": rlt_api::KIND, "name": "job", "uid": "u"});
            let metadata = json!({"namespace": "team", "ownerReferences": [reference]});
            owner(&serde_json::from_value(metadata).unwrap())
        };
        assert!(owner_in(rlt_api::API_VERSION).is_some());
        assert_eq!(owner_in("rltraining.dev/v1beta1"), owner_in(rlt_api::API_VERSION));
        assert_eq!(owner_in("rltraining.dev.example.com/v1alpha1"), None);
        assert_eq!(owner_in("v1"), None);
    }

    #[test]
    fn a_sidecar_that_is_not_ready_leaves_the_worker_ready() {
        let waits = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let worker = read("Running", &[("a-sidecar", waits), ("trainer", runs())]);
        assert!(worker.is_in_place() && worker.waiting.is_none());
    }

    #[test]
    fn a_pod_without_container_statuses_is_read_by_its_phase() {
        assert_eq!(read("Pending", &[]).phase, WorkerPhase::Pending);
        assert_eq!(read("Failed", &[]).phase, WorkerPhase::Failed);
        assert_eq!(read("Succeeded", &[]).phase, WorkerPhase::Succeeded);
    }
}
