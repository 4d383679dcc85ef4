//! What the operator keeps of a pod: a few hundred bytes of what decides something.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodStatus};
use k8s_openapi::jiff::Timestamp;

use crate::index::version;
use crate::labels;
use crate::seen::SeenPod;

/// One pod of a job; by default one of which nothing is known yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Worker {
    /// The pod's name.
    pub name: Arc<str>,
    /// The pod's UID.
    pub uid: Arc<str>,
    /// The version of the pod in the API server's store, 0 where it is none that can be compared.
    pub resource_version: u64,
    /// Its index in its group, from 0.
    pub idx: u32,
    /// The attempt that it belongs to, from 1.
    pub attempt: u32,
    /// How far it is.
    pub phase: WorkerPhase,
    /// Whether it is ready.
    pub is_ready: bool,
    /// Whether somebody deleted it.
    pub is_deleting: bool,
    /// When it has to be gone, if somebody deleted it.
    pub leaves_by: Option<Timestamp>,
    /// The node that it was given.
    pub node: Option<Arc<str>>,
    /// The address of the first worker, whom the others look for; nobody asks for theirs.
    pub address: Option<Arc<str>>,
    /// How its process ended. Boxed like what follows: of thousands of pods, few have anything to say.
    pub exit: Option<Box<Exit>>,
    /// Why Kubernetes is ending it, or has ended it.
    pub disruption: Option<Box<Explanation>>,
    /// Why it does not start.
    pub waiting: Option<Box<Waiting>>,
    /// What the pod says about itself as a whole.
    pub explanation: Option<Box<Explanation>>,
}

/// How far a pod is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerPhase {
    /// It waits for a node, an image or a volume.
    #[default]
    Pending,
    /// Its process runs.
    Running,
    /// Its process has ended well.
    Succeeded,
    /// Its process has failed, or was never able to start.
    Failed,
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its exit code, or 128 and the signal.
    pub code: i32,
    /// Kubernetes' word for it, such as `OOMKilled`.
    pub reason: String,
    /// The process's own last message.
    pub message: String,
    /// When.
    pub finished_at: Option<Timestamp>,
}

/// A reason in one word, and for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// In one word.
    pub reason: String,
    /// For people.
    pub message: String,
}

/// Why a pod does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// No node has room for it.
    Unschedulable(String),
    /// Its container cannot be made.
    Container(Explanation),
}

/// The owner of a pod that is a worker of ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobKey {
    /// UID of the job.
    pub uid: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl Worker {
    /// Reads a pod. `None` where it is no worker of ours.
    pub fn read(pod: &SeenPod) -> Option<(JobKey, Self)> {
        let metadata = &pod.metadata;
        let owner = owner(metadata)?;
        let label = |name| metadata.labels.as_ref()?.get(name);
        let status = &pod.status;
        let container = status.container_statuses.iter().flatten().next();
        let idx = label(labels::WORKER_IDX)?.parse().ok()?;
        let worker = Self {
            name: metadata.name.as_deref()?.into(),
            uid: metadata.uid.as_deref()?.into(),
            resource_version: metadata.resource_version.as_deref().map_or(0, version),
            idx,
            attempt: label(labels::ATTEMPT)?.parse().ok()?,
            phase: phase(status),
            is_ready: condition(status, "Ready").is_some_and(|ready| ready.status == "True"),
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
        };
        Some((owner, worker))
    }

    /// Whether its process is over.
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, WorkerPhase::Succeeded | WorkerPhase::Failed)
    }

    /// Whether others can reach it, now or in a moment.
    pub fn is_reachable(&self) -> bool {
        self.address.is_some() && !self.is_deleting && !self.is_finished()
    }

    /// Whether it does, or has done, its part.
    pub fn is_in_place(&self) -> bool {
        self.phase == WorkerPhase::Succeeded
            || self.phase == WorkerPhase::Running && self.is_ready && !self.is_deleting
    }
}

/// The job that controls an object.
pub fn owner(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Option<JobKey> {
    let mut owners = metadata.owner_references.iter().flatten();
    let owner =
        owners.find(|owner| owner.kind == rlt_api::KIND && owner.api_version == rlt_api::API_VERSION)?;
    Some(JobKey {
        uid: owner.uid.as_str().into(),
        namespace: metadata.namespace.as_deref()?.into(),
        name: owner.name.as_str().into(),
    })
}

fn phase(status: &PodStatus) -> WorkerPhase {
    match status.phase.as_deref() {
        Some("Running") => WorkerPhase::Running,
        Some("Succeeded") => WorkerPhase::Succeeded,
        Some("Failed") => WorkerPhase::Failed,
        _ => WorkerPhase::Pending,
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
