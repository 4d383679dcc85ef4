//! Summary of a job, for a row or a page, as a pure function of the resource and the time.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;
use rlt_api::FailureCause;
use rlt_api::status::{
    CheckpointStatus, Condition, ConditionStatus, Progress, RLTrainingJobStatus, TopologyStatus,
};
use rlt_objects::job::Job;
use serde::Serialize;

/// The summary of a job. Its field names in JSON and YAML are a contract.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Type of the first condition that is true, or `New` if there is none.
    pub(crate) state: String,
    /// Reason of the state, in one word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Message of the state, for users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    /// Time since which the job is in this state (RFC 3339).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<String>,
    pub(crate) has_ended: bool,
    /// Number of ready workers and of those needed, such as `7/8`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ready: Option<String>,
    /// Placement of the workers, by labels of nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) topology: Vec<TopologyStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempt: Option<u32>,
    /// Id of the attempt's OpenTelemetry trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trace_id: Option<String>,
    /// Seconds since the job was created.
    pub(crate) age_seconds: u64,
    /// Progress of the training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) progress: Option<Progress>,
    /// Checkpoint from which a restart continues.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint: Option<CheckpointStatus>,
    /// Number of ended attempts, by cause.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) failures_by_cause: BTreeMap<FailureCause, u32>,
    /// Time of the summary, for times that are shown as durations.
    #[serde(skip)]
    pub(super) now: Timestamp,
}

impl Summary {
    pub(crate) fn of(job: &Job, now: Timestamp) -> Self {
        let status = status_of(job);
        let telling = state(&status);
        let created = job.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let checkpoint = status.checkpoints.iter().find(|one| one.latest).or(status.checkpoints.last());
        Self {
            namespace: job.namespace().to_owned(),
            name: job.name().to_owned(),
            state: telling.map_or_else(|| "New".to_owned(), |condition| format!("{:?}", condition.type_)),
            reason: telling.map(|condition| condition.reason.clone()),
            message: telling.map(|condition| condition.message.clone()),
            since: telling.map(|condition| condition.last_transition_time.clone()),
            has_ended: status.completion_time.is_some(),
            ready: status.ready,
            topology: status.worker_groups.into_iter().flat_map(|group| group.topology).collect(),
            attempt: status.attempt,
            trace_id: status.trace_id,
            age_seconds: created.map_or(0, |created| seconds_between(created, now)),
            progress: status.progress,
            checkpoint: checkpoint.cloned(),
            failures_by_cause: status.failures_by_cause,
            now,
        }
    }

    pub(crate) fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Remaining seconds at the present pace; `None` for a job that has ended.
    pub(super) fn remaining_seconds(&self) -> Option<u64> {
        self.progress.as_ref()?.remaining_seconds.filter(|_| !self.has_ended)
    }

    pub(super) fn seconds_since(&self, time: Option<&str>) -> Option<u64> {
        let time: Timestamp = time?.parse().ok()?;
        Some(seconds_between(time, self.now))
    }

    /// Whether two summaries differ in more than the age.
    pub(super) fn differs_from(&self, other: &Self) -> bool {
        let ageless = |one: &Self| Self { age_seconds: 0, now: self.now, ..one.clone() };
        ageless(self) != ageless(other)
    }
}

/// Returns the condition that best describes the job's state: the first one that is true.
fn state(status: &RLTrainingJobStatus) -> Option<&Condition> {
    status.conditions.iter().find(|condition| condition.status == ConditionStatus::True)
}

pub(crate) fn seconds_between(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.duration_since(from).as_secs()).unwrap_or(0)
}

/// Returns the status of a job; an empty one if it was never reconciled, or this version cannot read it.
pub(crate) fn status_of(job: &Job) -> RLTrainingJobStatus {
    job.status.clone().unwrap_or_default()
}
