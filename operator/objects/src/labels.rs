//! The labels and annotations of the operator's objects.

use std::collections::BTreeMap;

use crate::job::Job;

/// The program that created an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Our value of [`MANAGED_BY`], and the field manager of every object but the status.
pub const OPERATOR: &str = "rlt-operator";
/// The field manager of the status.
pub const STATUS_MANAGER: &str = "rlt-operator-status";
/// The value of `spec.managedBy` that names this operator.
pub const CONTROLLER: &str = "rltraining.dev/operator";
/// The UID of the job, which unlike its name fits every label.
pub const JOB_UID: &str = "rltraining.dev/job-uid";
/// The name of the job, for users.
pub const JOB_NAME: &str = "rltraining.dev/job-name";
/// The group of a worker, and of children of groups other than the first.
pub const WORKER_GROUP: &str = "rltraining.dev/worker-group";
/// The index of a worker in its group, from 0.
pub const WORKER_IDX: &str = "rltraining.dev/worker-index";
/// The attempt that a worker belongs to, from 1.
pub const ATTEMPT: &str = "rltraining.dev/attempt";
/// The annotation in which `kubectl apply` keeps the manifest as it was applied.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The annotation with a digest of an object's content.
pub const CONTENT_DIGEST: &str = "rltraining.dev/content-digest";

/// The selector of everything that the operator made.
pub fn own_objects() -> String {
    format!("{MANAGED_BY}={OPERATOR}")
}

/// The selector of the workers of a job.
pub fn selector_of_workers(job: &str, group: &str) -> String {
    format!("{JOB_NAME}={job},{WORKER_GROUP}={group}")
}

/// The labels of every object of a job.
pub fn of_job(job: &Job) -> BTreeMap<String, String> {
    let labels = [
        ("app.kubernetes.io/name", "rlt-trainer"),
        (MANAGED_BY, OPERATOR),
        (JOB_UID, job.uid()),
        (JOB_NAME, job.name()),
    ];
    labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}
