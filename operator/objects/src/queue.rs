//! A job's queue: the Workload by which Kueue admits it. The operator implements Kueue's contract for
//! external frameworks itself, and never writes `spec.runPolicy.suspend`.
//!
//! With MultiKueue a job exists twice. In the manager cluster `spec.managedBy` names MultiKueue: the operator
//! makes its Workload and nothing else. In the worker cluster MultiKueue creates the Workload first and then
//! the job, whose label [`PREBUILT_LABEL`] names it: the operator takes that Workload over instead of
//! creating one.

mod workload;

use std::sync::Arc;

pub use workload::{Assignment, PodSetUpdate, Workload};

use crate::job::Job;

/// The label by which a job requests a queue.
pub const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// The label by which a job names its priority in the queue.
pub const PRIORITY_LABEL: &str = "kueue.x-k8s.io/priority-class";
/// The label of a job whose Workload another client created, with the Workload's name.
pub const PREBUILT_LABEL: &str = "kueue.x-k8s.io/prebuilt-workload-name";
/// The value of `spec.managedBy` of a job that MultiKueue runs in another cluster.
pub const MULTIKUEUE: &str = "kueue.x-k8s.io/multikueue";

/// The queue that a job requests, and its Workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queueing {
    /// The queue that the job requests.
    pub queue: Option<String>,
    /// The name of the Workload that another client, such as MultiKueue, created for the job.
    pub prebuilt: Option<String>,
    /// Whether the cluster has queues.
    pub is_served: bool,
    /// The job's Workload.
    pub workload: Option<Arc<Workload>>,
    /// The digest of the pod sets that the job needs now.
    pub wanted: Option<String>,
}

/// The job requests no queue.
pub const NO_QUEUE: Queueing =
    Queueing { queue: None, prebuilt: None, is_served: false, workload: None, wanted: None };

/// A change of the Workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadAction {
    /// Create it, or take over the one that was created for the job.
    Create,
    /// Delete it.
    Delete(Arc<Workload>),
    /// Release its quota after an eviction: no pod is left.
    Release(Arc<Workload>),
    /// Set the condition `PodsReady`.
    SetPodsReady(Arc<Workload>, bool),
    /// Set the condition `Finished`: whether the job succeeded, and the message.
    Finish(Arc<Workload>, bool, String),
}

/// The queue that a job requests.
pub fn asked_for(job: &Job) -> Option<&str> {
    label(job, QUEUE_LABEL)
}

/// A label of a job, where it has a value.
pub fn label<'a>(job: &'a Job, name: &str) -> Option<&'a str> {
    let value = job.metadata.labels.as_ref()?.get(name)?;
    (!value.is_empty()).then_some(value.as_str())
}
