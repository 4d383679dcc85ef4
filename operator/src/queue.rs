//! What a queue says about a job: whether one has a say at all, and what the Workload tells by which Kueue
//! knows the job. Kueue's contract for kinds that it does not know is spoken by the operator itself;
//! `spec.runPolicy.suspend` stays the people's own.

mod workload;

use std::sync::Arc;

pub use workload::{Assignment, PodSetUpdate, Workload};

use crate::job::Job;

/// The label by which a job asks for a queue.
pub const QUEUE_LABEL: &str = "kueue.x-k8s.io/queue-name";
/// The label by which a job names its priority in the queue.
pub const PRIORITY_LABEL: &str = "kueue.x-k8s.io/priority-class";

/// What a queue says about a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queueing {
    /// The queue that the job asks for.
    pub queue: Option<String>,
    /// Whether the cluster has queues.
    pub is_served: bool,
    /// By what the queue knows the job.
    pub workload: Option<Arc<Workload>>,
    /// The digest of what the job would ask for now.
    pub wanted: Option<String>,
}

/// No queue has a say.
pub const NO_QUEUE: Queueing = Queueing { queue: None, is_served: false, workload: None, wanted: None };

/// What to tell the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadAction {
    /// Ask to be let in.
    Create,
    /// Ask no more.
    Delete(Arc<Workload>),
    /// Give the place back: no worker is left.
    Release(Arc<Workload>),
    /// Say whether all workers run.
    SetPodsReady(Arc<Workload>, bool),
    /// Say that the job has ended, how, and in which words.
    Finish(Arc<Workload>, bool, String),
}

/// The queue that a job asks for.
pub fn asked_for(job: &Job) -> Option<&str> {
    label(job, QUEUE_LABEL)
}

/// A label of a job, where it has a value.
pub fn label<'a>(job: &'a Job, name: &str) -> Option<&'a str> {
    let value = job.metadata.labels.as_ref()?.get(name)?;
    (!value.is_empty()).then_some(value.as_str())
}
