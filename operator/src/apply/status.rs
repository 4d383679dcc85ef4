//! The status: one write where something changed, none where nothing did.

use std::time::Duration;

use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use rlt_api::status::{ConditionType, RLTrainingJobStatus};
use serde_json::json;

use super::ApplyError;
use crate::job::Job;
use crate::labels;
use crate::written::{Current, Written};

/// Least time between two writes of nothing but the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// Least time between two writes of nothing but how many workers are how far.
const COUNTS_INTERVAL: Duration = Duration::from_secs(2);

/// What became of a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusWritten {
    /// It was written.
    Yes,
    /// There was nothing new.
    NothingNew,
    /// Nothing but counts and progress is new; it is written after this time.
    Later(Duration),
}

/// Writes a status, provided that the job is still the one that was looked at.
///
/// # Errors
/// When the API server did not take it, such as for a change of the job in between.
pub async fn write_status(
    client: &Client,
    written: &Written,
    job: &Job,
    before: &Current,
    status: &RLTrainingJobStatus,
) -> Result<StatusWritten, ApplyError> {
    if before.status == *status {
        return Ok(StatusWritten::NothingNew);
    }
    let interval = least_interval(&before.status, status);
    if let Some(wait) = interval.and_then(|interval| written.wait(job.uid(), interval)) {
        return Ok(StatusWritten::Later(wait));
    }
    let name = job.name();
    let api: Api<Job> = Api::namespaced(client.clone(), job.namespace());
    let patch = json!({
        "apiVersion": rlt_api::API_VERSION,
        "kind": rlt_api::KIND,
        "metadata": {"name": name, "uid": job.uid(), "resourceVersion": before.resource_version},
        "status": status,
    });
    let params = PatchParams::apply(labels::STATUS_MANAGER).force();
    let taken = api.patch_status(name, &params, &Patch::Apply(&patch)).await;
    let taken = taken.map_err(|source| ApplyError::Call {
        act: "write the status of",
        name: name.to_owned(),
        source,
    })?;
    let resource_version = taken.resource_version().to_owned();
    written.note(job.uid(), Current { status: status.clone(), resource_version });
    Ok(StatusWritten::Yes)
}

/// Least time since the last write, where nothing is new but how far workers or training are: that changes all the time.
fn least_interval(before: &RLTrainingJobStatus, after: &RLTrainingJobStatus) -> Option<Duration> {
    let (before, after) = (without_progress(before), without_progress(after));
    if before == after {
        return Some(PROGRESS_INTERVAL);
    }
    (without_counts(before) == without_counts(after)).then_some(COUNTS_INTERVAL)
}

/// Nor is it urgent that a scheduler has found other words for what a worker waits for.
fn without_progress(status: &RLTrainingJobStatus) -> RLTrainingJobStatus {
    let mut status = RLTrainingJobStatus { progress: None, checkpoints: Vec::new(), ..status.clone() };
    clear_message(&mut status, ConditionType::Reconciling);
    status
}

fn without_counts(mut status: RLTrainingJobStatus) -> RLTrainingJobStatus {
    clear_message(&mut status, ConditionType::PodsReady);
    RLTrainingJobStatus { ready: None, replicas: None, worker_groups: Vec::new(), ..status }
}

fn clear_message(status: &mut RLTrainingJobStatus, type_: ConditionType) {
    let conditions = status.conditions.iter_mut().filter(|condition| condition.type_ == type_);
    conditions.for_each(|condition| condition.message.clear());
}
