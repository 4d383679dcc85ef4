//! A job's queue: the Workload with which Kueue admits it. The operator implements Kueue's contract for
//! external frameworks itself, and never writes `spec.runPolicy.suspend`.
//!
//! With MultiKueue a job exists twice. In the manager cluster `spec.managedBy` names MultiKueue, and the
//! operator only creates the Workload. In the worker cluster MultiKueue first creates the Workload and then
//! the job, whose annotation [`PREBUILT`] names it; the operator adopts that Workload instead of creating
//! one.

mod workload;

use std::sync::Arc;

pub use rlt_api::queue::{MULTIKUEUE, PRIORITY_LABEL, QUEUE_LABEL};
pub use workload::{Assignment, PodSetUpdate, Workload};

use crate::job::Job;

/// Annotation with the name of the Workload that another client created for a job; a label before Kueue 0.18.
pub const PREBUILT: &str = "kueue.x-k8s.io/prebuilt-workload-name";
/// Label of a job that MultiKueue created as the copy of one in its manager cluster.
pub const ORIGIN_LABEL: &str = "kueue.x-k8s.io/multikueue-origin";

/// Queue that a job requests, and the state of its Workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queueing {
    /// Name of the queue in which the job is, by [`queue_of`]; `None` without a queue.
    pub queue: Option<String>,
    /// Name of the queue that the job requests now.
    pub requested: Option<String>,
    /// Name of the Workload that another client, such as MultiKueue, created for the job.
    pub prebuilt: Option<String>,
    /// Whether the cluster serves Kueue's Workloads.
    pub is_served: bool,
    /// Workload of the job, if it exists.
    pub workload: Option<Arc<Workload>>,
    /// Digest of the Workload that the job needs now; `None` without a queue.
    pub wanted: Option<String>,
}

/// State of a job that requests no queue.
pub const NO_QUEUE: Queueing =
    Queueing { queue: None, requested: None, prebuilt: None, is_served: false, workload: None, wanted: None };

/// Change of a Workload that releases the job's quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GiveBack {
    /// Delete the Workload.
    Delete(Arc<Workload>),
    /// Release the Workload's quota after an eviction, once no pod is left.
    Release(Arc<Workload>),
}

/// Change of a Workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadAction {
    /// Create the Workload, or adopt the prebuilt one.
    Create,
    /// Release the job's quota.
    GiveBack(GiveBack),
    /// Set the condition `PodsReady`.
    SetPodsReady(Arc<Workload>, bool),
    /// Set the condition `Finished`: whether the job succeeded, and the message.
    Finish(Arc<Workload>, bool, String),
}

/// Returns the queue that a job requests.
pub fn asked_for(job: &Job) -> Option<&str> {
    label(job, QUEUE_LABEL)
}

/// Whether MultiKueue created the job as the copy of one in its manager cluster. MultiKueue deletes the copy
/// once it has copied the last status. If the copy were gone before, MultiKueue would run the job again.
pub fn is_copy(job: &Job) -> bool {
    label(job, ORIGIN_LABEL).is_some()
}

/// Returns the queue that a job is in. While the Workload holds quota this is the Workload's queue, otherwise
/// the requested one. Kueue's own integrations refuse to change the label of a job that holds quota.
pub fn queue_of(requested: Option<&str>, workload: Option<&Workload>) -> Option<String> {
    let holding = workload.filter(|workload| workload.holds_place() && !workload.queue.is_empty());
    holding.map(|workload| workload.queue.as_str()).or(requested).map(str::to_owned)
}

/// Returns the name of the Workload that another client created for the job.
pub fn prebuilt(job: &Job) -> Option<&str> {
    let annotation = job.metadata.annotations.as_ref().and_then(|all| all.get(PREBUILT));
    annotation.map(String::as_str).filter(|name| !name.is_empty()).or_else(|| label(job, PREBUILT))
}

/// Returns the value of a job's label; `None` if it is absent or empty.
pub fn label<'a>(job: &'a Job, name: &str) -> Option<&'a str> {
    let value = job.metadata.labels.as_ref()?.get(name)?;
    (!value.is_empty()).then_some(value.as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_stays_in_the_queue_of_its_place_whatever_its_label_says_meanwhile() {
        let waits = Workload { queue: "team".into(), ..Workload::default() };
        let admitted = Workload { has_quota: true, ..waits.clone() };
        let unreadable = Workload { unreadable: Some("no sequence".into()), ..waits.clone() };
        for requested in [Some("other"), None] {
            let in_queue = |workload: &Workload| queue_of(requested, Some(workload));
            for holding in [&admitted, &unreadable] {
                assert_eq!(in_queue(holding).as_deref(), Some("team"));
            }
            let finished = Workload { is_finished: true, ..admitted.clone() };
            let leaving = Workload { is_deleting: true, ..admitted.clone() };
            for free in [&waits, &finished, &leaving] {
                assert_eq!(in_queue(free).as_deref(), requested);
            }
            assert_eq!(queue_of(requested, None).as_deref(), requested);
        }
    }

    #[test]
    fn a_prebuilt_workload_is_named_by_an_annotation_or_by_the_label_of_earlier_releases_of_kueue() {
        let named = |metadata: serde_json::Value| {
            let job: Job = serde_json::from_value(json!({"metadata": metadata})).unwrap();
            prebuilt(&job).map(str::to_owned)
        };
        let name = |name: &str| json!({PREBUILT: name});
        assert_eq!(named(json!({})), None);
        assert_eq!(named(json!({"labels": name("a")})), Some("a".to_owned()));
        assert_eq!(named(json!({"labels": name("a"), "annotations": name("b")})), Some("b".to_owned()));
        assert_eq!(named(json!({"labels": name("a"), "annotations": name("")})), Some("a".to_owned()));
    }
}
