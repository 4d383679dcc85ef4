//! Labels and annotations of the operator's objects.

use std::collections::BTreeMap;

use crate::job::Job;

/// Label with the name of the program that manages an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Value of [`MANAGED_BY`] on the operator's objects, and field manager of everything but the status.
pub const OPERATOR: &str = "rlt-operator";
/// Field manager of the status.
pub const STATUS_MANAGER: &str = "rlt-operator-status";
/// Value of `spec.managedBy` that names this operator.
pub const CONTROLLER: &str = "rltraining.dev/operator";
/// Label with the UID of the job, which unlike its name fits every label.
pub const JOB_UID: &str = "rltraining.dev/job-uid";
/// Label with the name of the job, for users.
pub const JOB_NAME: &str = "rltraining.dev/job-name";
/// Label with the group of a worker, and of children of groups other than the first.
pub const WORKER_GROUP: &str = "rltraining.dev/worker-group";
/// Label with the index of a worker in its group, from 0.
pub const WORKER_IDX: &str = "rltraining.dev/worker-index";
/// Label with the attempt to which a worker belongs, from 1.
pub const ATTEMPT: &str = "rltraining.dev/attempt";
/// Annotation in which `kubectl apply` keeps the manifest as it was applied.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Annotation with a digest of an object's content.
pub const CONTENT_DIGEST: &str = "rltraining.dev/content-digest";
/// Annotation with the names of the nodes that a Workload excludes, separated by commas.
pub const EXCLUDED_NODES: &str = "rltraining.dev/excluded-nodes";

/// Selector of all objects that the operator created.
pub fn own_objects() -> String {
    format!("{MANAGED_BY}={OPERATOR}")
}

/// Selector of the workers of a job's group.
pub fn selector_of_workers(job: &str, group: &str) -> String {
    format!("{JOB_NAME}={job},{WORKER_GROUP}={group}")
}

/// Returns the labels of every object of a job.
pub fn of_job(job: &Job) -> BTreeMap<String, String> {
    let labels = [
        ("app.kubernetes.io/name", "rlt-trainer"),
        (MANAGED_BY, OPERATOR),
        (JOB_UID, job.uid()),
        (JOB_NAME, job.name()),
    ];
    labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}
