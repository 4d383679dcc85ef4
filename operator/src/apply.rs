//! Applying a decision: deletions first, then children and pods, and last the status.

mod children;
mod claim;
mod endpoint;
mod error;
mod gang;
mod manifest;
mod nodes;
mod owned_fields;
mod params;
mod pods;
mod queue;
mod status;

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Client};
use rlt_objects::build::BuildInput;
use rlt_objects::job::Job;
use rlt_objects::queue::{GiveBack, Queueing, WorkloadAction};
use rlt_objects::served::Served;
use rlt_objects::worker::Worker;
use rlt_plan::WorkerGroup;

pub use error::ApplyError;
pub use manifest::read_manifest;
pub use nodes::{read_node_labels, read_nodes};
pub use status::{StatusWritten, confirm, write_status};

use crate::client::Limiter;
use crate::decide::{self, Decision};
use crate::index::Index;
use children::JobChildren;
use params::{creation, exactly, merge_patch};
use queue::QueueRequest;

/// Maximum number of impaired nodes that the affinity of a pod names.
const MAX_IMPAIRED_NODES: usize = 16;
/// Number of failures that an impaired node counts as. Two give the largest weight of a preference.
const FAILURES_OF_IMPAIRED_NODE: u32 = 2;

/// The clients and settings with which decisions are applied.
#[derive(Clone, Copy)]
pub struct Access<'a> {
    /// Client of the API server.
    pub client: &'a Client,
    /// Rate limiter of the client's calls.
    pub limiter: &'a Limiter,
    /// Cache of the jobs' objects, into which the operator enters the objects that it creates.
    pub index: &'a Index,
}

/// The optional APIs of the cluster, and the job's queue.
#[derive(Clone, Copy, Debug)]
pub struct ClusterState<'a> {
    /// Whether Kueue and gang schedulers are installed.
    pub served: Served,
    /// The job's queue and Workload.
    pub queueing: &'a Queueing,
}

/// Applies a decision to the children of a job, but neither deletes the job nor writes its status. Pods are
/// deleted and assigned first. Then come the Workload, objects that pods need at their start, pods with the
/// volumes that they mount, and network objects. The NetworkPolicy of an isolated job is created before its
/// pods, which are not created without it. Changes of the claim are applied whether the job runs or not.
///
/// # Errors
/// The most important error of the failed calls. Calls that do not depend on a failed one were still made.
pub async fn apply(
    access: Access<'_>,
    input: &BuildInput<'_>,
    cluster: &ClusterState<'_>,
    decision: &Decision,
) -> Result<(), ApplyError> {
    let Access { client, index, .. } = access;
    pods::delete(client, index, input.job, &decision.delete).await?;
    pods::assign(client, index, input.job, &decision.assign).await?;
    let queued = match Box::pin(change_queue(access, input, cluster, decision)).await {
        // `SetPodsReady` only informs the queue, so its failure does not hold up the workers.
        Err(error) if !matches!(decision.queue, Some(WorkloadAction::SetPodsReady(..))) => return Err(error),
        queued => queued,
    };
    let attempt = decision.status.attempt.unwrap_or(1);
    let workers = index.workers(&input.job.key());
    let objects = JobChildren::new(client, index, input, reachable_firsts(input, &workers, attempt));
    if decision.delete_job {
        return objects.settle_claim().await;
    }
    if !decision.needs_children {
        let changed = objects.change_claim(decision.status.completion_time.is_none()).await;
        return ApplyError::first_of([queued, changed]);
    }
    let starts_ranks = !decision.start.is_empty() || !decision.assign.is_empty();
    if let Err(refused) = objects.apply_prerequisites(starts_ranks).await {
        // Existing workers still need the network objects to reach each other.
        let network = if workers.is_empty() { Ok(()) } else { objects.apply_network().await };
        return ApplyError::first_of([queued, Err(refused), network]);
    }
    let pods = async {
        if decision.start.is_empty() {
            return Ok(());
        }
        let placements =
            Box::pin(gang::prepare(client, index, input, cluster, attempt, &decision.start)).await?;
        let failures_by_node = &avoided_nodes(index, decision);
        let retries_left = decide::retries_left(input.prepared, &decision.status);
        let retries_left = retries_left.as_ref();
        let placements = &placements;
        let attempt_pods = pods::AttemptPods { input, placements, failures_by_node, attempt, retries_left };
        pods::start(access, &attempt_pods, &decision.start).await
    };
    // An error in one branch does not cancel calls in the other.
    let (supplied, started) = futures::join!(objects.apply_volumes(), pods);
    let network = objects.apply_network().await;
    ApplyError::first_of([queued, supplied, started, network])
}

/// Applies a decision's change of the Workload.
async fn change_queue(
    access: Access<'_>,
    input: &BuildInput<'_>,
    cluster: &ClusterState<'_>,
    decision: &Decision,
) -> Result<(), ApplyError> {
    let Some(action) = &decision.queue else { return Ok(()) };
    let request =
        QueueRequest { queueing: cluster.queueing, excluded_nodes: &decision.status.excluded_nodes };
    queue::apply(access.client, access.index, input, request, action).await
}

/// Applies a change of the job's Workload and nothing else.
///
/// # Errors
/// When the API server refuses the change or does not answer.
pub async fn change_workload(
    access: Access<'_>,
    input: &BuildInput<'_>,
    queueing: &Queueing,
    action: &WorkloadAction,
) -> Result<(), ApplyError> {
    let request = QueueRequest { queueing, excluded_nodes: &[] };
    queue::apply(access.client, access.index, input, request, action).await
}

/// Releases the quota of a job that is refused, and changes nothing else.
///
/// # Errors
/// When the API server refuses the change or does not answer.
pub async fn give_place_back(access: Access<'_>, job: &Job, change: &GiveBack) -> Result<(), ApplyError> {
    queue::give_back(access.client, access.index, job, change).await
}

/// Returns each group of workers with its first worker; `None` until other pods can reach that worker.
fn reachable_firsts<'a>(
    input: &BuildInput<'a>,
    workers: &'a [Arc<Worker>],
    attempt: u32,
) -> Vec<(&'a WorkerGroup, Option<&'a Worker>)> {
    let first_of = |group: &WorkerGroup| {
        let is_first = |worker: &&Arc<Worker>| {
            worker.idx == 0
                && *worker.group == *group.name
                && worker.attempt == attempt
                && worker.is_reachable()
        };
        workers.iter().find(is_first).map(Arc::as_ref)
    };
    input.prepared.plan.worker_groups.iter().map(|group| (group, first_of(group))).collect()
}

/// Returns the number of failures on each node that pods avoid: nodes on which the job failed, and up to
/// [`MAX_IMPAIRED_NODES`] nodes that are impaired now.
fn avoided_nodes(index: &Index, decision: &Decision) -> BTreeMap<String, u32> {
    let mut avoided = decision.status.failures_by_node.clone();
    for node in index.nodes.impaired().iter().take(MAX_IMPAIRED_NODES) {
        let failures = avoided.entry(node.to_string()).or_default();
        *failures = (*failures).max(FAILURES_OF_IMPAIRED_NODE);
    }
    avoided
}

/// Deletes a job if it still has this resource version: a concurrent edit may extend its time to live.
///
/// # Errors
/// When the job has changed, or the API server refuses the call or does not answer.
pub async fn delete_unchanged(client: &Client, job: &Job, resource_version: &str) -> Result<(), ApplyError> {
    let api: Api<Job> = Api::namespaced(client.clone(), job.namespace());
    let resource_version = Some(resource_version.to_owned());
    let preconditions = Preconditions { uid: Some(job.uid().to_owned()), resource_version };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
    match api.delete(job.name(), &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(kube::Error::Api(status)) if status.is_conflict() => {
            Err(ApplyError::Outdated { name: job.name().to_owned() })
        }
        Err(source) => Err(ApplyError::Call { act: "delete job", name: job.name().to_owned(), source }),
    }
}
