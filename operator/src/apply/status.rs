//! Status writes: one for a changed status, none for an unchanged one.

use std::time::Duration;

use kube::api::{Patch, PatchParams, Request};
use kube::{Client, Resource as _};
use rlt_api::Reason;
use rlt_api::status::{ConditionType, RLTrainingJobStatus};
use rlt_objects::job::Job;
use rlt_objects::labels;
use rlt_objects::seen::SeenMetadata;
use serde_json::json;
use tokio::time::Instant;

use super::ApplyError;
use crate::client::Importance;
use crate::written::{Current, Written};

/// Minimum interval between two writes of progress alone.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// Minimum interval between two writes of pod counts alone.
const COUNTS_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum time that changed pod counts wait for further changes, to save writes.
const COUNTS_WAIT: Duration = Duration::from_secs(2);
/// Maximum time that a job's first status waits, once the pods are created, until all workers run: one write
/// then covers both changes.
const FIRST_STATUS_WAIT: Duration = Duration::from_millis(500);
/// Jobs per step of back-pressure: each further `CROWD` pending first statuses add one base delay. A status
/// costs the API server as much as a pod, and pods take precedence.
const CROWD: u32 = 5;
/// Maximum time that a first status waits while many others are pending.
const CROWD_WAIT: Duration = Duration::from_secs(20);

/// The outcome of a status write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusWritten {
    /// The status was written.
    Yes,
    /// The status has not changed, so nothing was written.
    NothingNew,
    /// Only counts or progress changed; it is written after this time.
    Later(Duration),
    /// The job's first status, which only says that the attempt begins; it is written after this time, unless
    /// it changes before.
    Deferred(Duration),
}

/// Writes a status if the job still has the resource version on which the decision was based.
///
/// # Errors
/// When the API server refuses the write, for example because the job was changed in the meantime.
pub async fn write_status(
    client: &Client,
    written: &Written,
    job: &Job,
    before: &Current,
    status: &RLTrainingJobStatus,
) -> Result<StatusWritten, ApplyError> {
    if before.deferred_since.is_none() && before.status == *status {
        return Ok(StatusWritten::NothingNew);
    }
    let since = before.deferred_since.unwrap_or_else(Instant::now);
    let wait = first_wait(written.num_deferred()).saturating_sub(since.elapsed());
    if only_begins(before, status) && !wait.is_zero() {
        written.defer(job.uid(), status.clone(), since);
        return Ok(StatusWritten::Deferred(wait));
    }
    let pace = pace(&before.status, status);
    if let Some(wait) = pace.and_then(|(interval, wait)| written.wait(job.uid(), interval, wait)) {
        return Ok(StatusWritten::Later(wait));
    }
    let status = RLTrainingJobStatus { writes: before.status.writes + 1, ..status.clone() };
    let is_news_only = pace.is_some() || is_first(before, &status);
    let importance = if is_news_only { Importance::Notice } else { Importance::Status };
    let version = &before.resource_version;
    let taken = Box::pin(write(client, job, version, &status, &params(), importance)).await;
    // The status may be written although the call failed.
    let taken = taken.inspect_err(|_| written.doubt(job.uid()));
    let resource_version = taken.map_err(|source| not_written(job, source))?;
    written.note(job.uid(), Current { status, resource_version, deferred_since: None });
    Ok(StatusWritten::Yes)
}

/// Confirms that the cached version of a job is the newest one, by a dry run that writes its unchanged status
/// under its resource version. One call for each job and process is enough, and one after each write whose
/// outcome is not known. A job whose first attempt has not begun is not checked, because it has no earlier
/// status.
///
/// # Errors
/// [`ApplyError::Outdated`] if there is a newer version, and any other error of the call.
pub async fn confirm(
    client: &Client,
    written: &Written,
    job: &Job,
    current: &Current,
) -> Result<(), ApplyError> {
    let is_new = current.deferred_since.is_some() || current.status.attempt.is_none();
    if is_new || written.is_confirmed(job.uid()) {
        return Ok(());
    }
    let Current { status, resource_version, .. } = current;
    let trial = params().dry_run();
    match write(client, job, resource_version, status, &trial, Importance::Status).await {
        Ok(_) => {
            written.confirm(job.uid());
            Ok(())
        }
        Err(source) => match not_written(job, source) {
            error if error.is_conflict() => Err(ApplyError::Outdated { name: job.name().to_owned() }),
            error => Err(error),
        },
    }
}

/// Parameters of a status write.
fn params() -> PatchParams {
    PatchParams::apply(labels::STATUS_MANAGER).force()
}

fn not_written(job: &Job, source: kube::Error) -> ApplyError {
    ApplyError::Call { act: "write the status of", name: job.name().to_owned(), source }
}

/// Writes a status under a resource version of the job, and returns the new one.
async fn write(
    client: &Client,
    job: &Job,
    resource_version: &str,
    status: &RLTrainingJobStatus,
    params: &PatchParams,
    importance: Importance,
) -> Result<String, kube::Error> {
    let patch = json!({
        "apiVersion": rlt_api::API_VERSION,
        "kind": rlt_api::KIND,
        "metadata": {"name": job.name(), "uid": job.uid(), "resourceVersion": resource_version},
        "status": status,
    });
    let request = Request::new(Job::url_path(&(), Some(job.namespace())));
    let request = request.patch_subresource("status", job.name(), params, &Patch::Apply(&patch));
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    request.extensions_mut().insert(importance);
    let taken: SeenMetadata<Job> = client.request(request).await?;
    Ok(taken.metadata.resource_version.unwrap_or_default())
}

/// Whether a job's first status only says that its workers are being started. Such a status can be delayed,
/// because pods of a job without a status count as those of its first attempt.
fn only_begins(before: &Current, status: &RLTrainingJobStatus) -> bool {
    let starts_workers = status.conditions.iter().any(|condition| {
        condition.type_ == ConditionType::Reconciling && condition.reason == Reason::WorkersStarting.name()
    });
    is_first(before, status) && starts_workers
}

/// Whether a status is the first one of a first attempt, which may be delayed for a while.
fn is_first(before: &Current, status: &RLTrainingJobStatus) -> bool {
    let is_first = before.deferred_since.is_some() || before.status.conditions.is_empty();
    is_first && status.attempt == Some(1)
}

/// Longest wait of a job's first status while `num_deferred` others wait.
fn first_wait(num_deferred: usize) -> Duration {
    let crowd = u32::try_from(num_deferred).unwrap_or(u32::MAX) / CROWD;
    FIRST_STATUS_WAIT.saturating_mul(crowd.saturating_add(1)).min(CROWD_WAIT)
}

/// Returns the minimum time since the last write, and since the change, for a status in which only pod
/// counts or progress changed; `None` for any other change, which is written at once.
fn pace(before: &RLTrainingJobStatus, after: &RLTrainingJobStatus) -> Option<(Duration, Duration)> {
    let (before, after) = (without_progress(before), without_progress(after));
    if before == after {
        return Some((PROGRESS_INTERVAL, Duration::ZERO));
    }
    (without_counts(before) == without_counts(after)).then_some((COUNTS_INTERVAL, COUNTS_WAIT))
}

/// Returns a status without progress and without the scheduler's message, whose changes are not urgent.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::Value;

    fn job(status: &Value) -> Value {
        json!({
            "apiVersion": rlt_api::API_VERSION, "kind": rlt_api::KIND, "spec": {}, "status": status,
            "metadata": {"name": "a", "namespace": "b", "uid": "c", "resourceVersion": "7"},
        })
    }

    /// Makes an API server that accepts every status, with a counter of the accepted ones.
    fn server() -> (Client, Arc<AtomicUsize>) {
        let num_writes = Arc::new(AtomicUsize::new(0));
        let counter = num_writes.clone();
        let service = tower::service_fn(move |_: Request<Body>| {
            counter.fetch_add(1, Ordering::SeqCst);
            let answer = Body::from(serde_json::to_vec(&job(&json!({}))).unwrap());
            futures::future::ready(Ok::<_, tower::BoxError>(Response::new(answer)))
        });
        (Client::new(service, "b"), num_writes)
    }

    fn status(reason: Reason) -> RLTrainingJobStatus {
        let condition = json!({
            "type": "Reconciling", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
            "reason": reason.name(), "message": "",
        });
        serde_json::from_value(json!({"attempt": 1, "conditions": [condition]})).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_status_waits_for_the_workers_and_no_longer_than_it_may() {
        let (client, num_writes) = server();
        let written = Written::default();
        let unseen: Job = serde_json::from_value(job(&json!({"observedGeneration": -1}))).unwrap();
        let write = async |status: &RLTrainingJobStatus| {
            let before = written.current(&unseen).unwrap();
            write_status(&client, &written, &unseen, &before, status).await.unwrap()
        };
        let (starting, running) = (status(Reason::WorkersStarting), status(Reason::Settled));
        for _ in 0..2 {
            assert!(matches!(write(&starting).await, StatusWritten::Deferred(wait) if !wait.is_zero()));
        }
        assert_eq!(
            written.current(&unseen).unwrap().status,
            starting,
            "the next reconcile continues from it"
        );
        assert_eq!(num_writes.load(Ordering::SeqCst), 0);
        assert_eq!(write(&running).await, StatusWritten::Yes);

        written.defer("c", starting.clone(), Instant::now() - FIRST_STATUS_WAIT);
        assert_eq!(write(&starting).await, StatusWritten::Yes);
        assert_eq!(num_writes.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn the_version_of_a_job_is_confirmed_once_and_again_after_a_write_without_an_answer() {
        let (client, num_writes) = server();
        let written = Written::default();
        let settled = serde_json::to_value(status(Reason::Settled)).unwrap();
        let seen: Job = serde_json::from_value(job(&settled)).unwrap();
        let current = written.current(&seen).unwrap();
        for _ in 0..2 {
            confirm(&client, &written, &seen, &current).await.unwrap();
        }
        assert_eq!(num_writes.load(Ordering::SeqCst), 1);
        let broken = tower::service_fn(|_: Request<Body>| async {
            Ok::<_, tower::BoxError>(Response::builder().status(500).body(Body::empty()).unwrap())
        });
        let broken = Client::new(broken, "b");
        let lost = write_status(&broken, &written, &seen, &current, &status(Reason::Restarting)).await;
        assert!(lost.is_err());
        confirm(&client, &written, &seen, &current).await.unwrap();
        assert_eq!(num_writes.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn with_many_jobs_first_status_writes_are_delayed_up_to_a_bound() {
        assert_eq!(first_wait(0), FIRST_STATUS_WAIT);
        assert_eq!(first_wait(4), FIRST_STATUS_WAIT);
        assert_eq!(first_wait(15), FIRST_STATUS_WAIT * 4);
        assert_eq!(first_wait(usize::MAX), CROWD_WAIT);
    }

    #[tokio::test(start_paused = true)]
    async fn counts_wait_for_more_to_happen_and_conditions_for_nothing() {
        let (client, num_writes) = server();
        let written = Written::default();
        let before = status(Reason::WorkersStarting);
        let mut seen: Job = serde_json::from_value(job(&serde_json::to_value(&before).unwrap())).unwrap();
        let write = async |seen: &Job, status: &RLTrainingJobStatus| {
            let current = written.current(seen).unwrap();
            write_status(&client, &written, seen, &current, status).await.unwrap()
        };
        let counts = |ready: u32| {
            let ready = Some(format!("{ready}/8"));
            RLTrainingJobStatus { ready, ..before.clone() }
        };
        assert_eq!(write(&seen, &status(Reason::Settled)).await, StatusWritten::Yes);
        seen.metadata.resource_version = Some("8".into());
        for ready in 1..4 {
            let StatusWritten::Later(wait) = write(&seen, &counts(ready)).await else { panic!("written") };
            assert!(wait > COUNTS_WAIT && wait <= COUNTS_INTERVAL, "{wait:?}");
        }
        let held = written.wait("c", Duration::ZERO, COUNTS_WAIT);
        assert!(held.is_some_and(|held| held <= COUNTS_WAIT), "{held:?}");
        assert_eq!(num_writes.load(Ordering::SeqCst), 1);
        assert_eq!(write(&seen, &status(Reason::Restarting)).await, StatusWritten::Yes);
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_written_by_another_client_replaces_the_pending_one() {
        let written = Written::default();
        written.defer("c", status(Reason::WorkersStarting), Instant::now());
        let theirs = status(Reason::Restarting);
        let seen: Job = serde_json::from_value(job(&serde_json::to_value(&theirs).unwrap())).unwrap();
        let current = written.current(&seen).unwrap();
        assert_eq!((current.status, current.deferred_since), (theirs, None));
    }
}
