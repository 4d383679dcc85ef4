//! Snapshot of a job that an explanation reads.

use k8s_openapi::jiff::Timestamp;
use rlt_objects::job::Job;
use rlt_objects::prepare::{Invalid, Prepared};
use rlt_objects::worker::Worker;

use crate::events::job_event::JobEvent;

/// Input of an explanation: a job with its pods and Events.
#[derive(Debug)]
pub(crate) struct JobSnapshot {
    pub(crate) job: Job,
    /// Specification of the job, prepared by this version's rules.
    pub(crate) prepared: Result<Prepared, Invalid>,
    /// Pods of the job, of any attempt, sorted by attempt and index.
    pub(crate) workers: Vec<Worker>,
    /// Events on the job, oldest first.
    pub(crate) events: Vec<JobEvent>,
    pub(crate) now: Timestamp,
}
