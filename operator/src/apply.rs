//! Carrying out a decision: what goes away first, then what has to be there, and last of all the status.

mod children;
mod error;
mod gang;
mod nodes;
mod pods;
mod queue;
mod status;

use std::sync::Arc;

use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client};

pub use error::ApplyError;
pub use nodes::read_nodes;
pub use status::{StatusWritten, write_status};

use crate::build::BuildInput;
use crate::client::Limiter;
use crate::decide::Decision;
use crate::discovery::Served;
use crate::index::Index;
use crate::job::Job;
use crate::labels;
use crate::queue::Queueing;
use crate::worker::Worker;
use children::JobChildren;

/// What decisions are carried out by.
#[derive(Clone, Copy)]
pub struct Access<'a> {
    /// The API server.
    pub client: &'a Client,
    /// Whose turn it is to call it.
    pub limiter: &'a Limiter,
    /// What was seen of jobs, where what is made is entered.
    pub index: &'a Index,
}

/// What the cluster offers a job, and what its queue says.
#[derive(Clone, Copy, Debug)]
pub struct ClusterState<'a> {
    /// Which queues and gang schedulers there are.
    pub served: Served,
    /// What a queue says about the job.
    pub queueing: &'a Queueing,
}

/// Deletes and creates what a decision says: first what pods must not be without, then pods beside what nodes
/// need to start them, and last what the pods reach each other by.
///
/// # Errors
/// Of the calls that failed, the one that a person has to know of first. Calls that do not depend on it were
/// made.
pub async fn apply(
    access: Access<'_>,
    input: &BuildInput<'_>,
    cluster: &ClusterState<'_>,
    decision: &Decision,
) -> Result<(), ApplyError> {
    let Access { client, index, .. } = access;
    pods::delete(client, index, input.job, &decision.delete).await?;
    if let Some(action) = &decision.queue {
        Box::pin(queue::apply(client, index, input, cluster.queueing, action)).await?;
    }
    if decision.delete_job {
        Box::pin(delete_job(client, input.job)).await?;
    }
    if !decision.needs_children {
        return Ok(());
    }
    let attempt = decision.status.attempt.unwrap_or(1);
    let workers = index.workers(&input.job.key());
    let is_first =
        |worker: &&Arc<Worker>| worker.idx == 0 && worker.attempt == attempt && worker.is_reachable();
    let first = workers.iter().find(is_first).map(Arc::as_ref);
    let objects = JobChildren::new(client, index, input);
    objects.prepare(first).await?;
    let pods = async {
        if decision.start.is_empty() {
            return Ok(());
        }
        let placement = Box::pin(gang::prepare(client, index, input, cluster, attempt)).await?;
        let failures_by_node = &decision.status.failures_by_node;
        let attempt_pods = pods::AttemptPods { input, placement: &placement, failures_by_node, attempt };
        pods::start(access, &attempt_pods, &decision.start).await
    };
    // What fails in one place does not cut off calls in another.
    let (supplied, started) = futures::join!(objects.supply(), pods);
    let surrounded = objects.surround(first).await;
    ApplyError::first_of([supplied, started, surrounded])
}

async fn delete_job(client: &Client, job: &Job) -> Result<(), ApplyError> {
    let api: Api<Job> = Api::namespaced(client.clone(), job.namespace());
    match api.delete(job.name(), &exactly(job.uid(), DeleteParams::background())).await {
        Ok(_) => Ok(()),
        Err(error) if error::is_done(&error) => Ok(()),
        Err(source) => Err(ApplyError::Call { act: "delete job", name: job.name().to_owned(), source }),
    }
}

/// Deletes the object of this UID, never another one of its name.
fn exactly(uid: &str, params: DeleteParams) -> DeleteParams {
    let preconditions = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    DeleteParams { preconditions: Some(preconditions), ..params }
}

fn creation() -> PostParams {
    PostParams { field_manager: Some(labels::OPERATOR.into()), ..PostParams::default() }
}
