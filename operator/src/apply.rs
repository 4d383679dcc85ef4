//! Carrying out a decision: what goes away first, then what has to be there, and last of all the status.

mod children;
mod error;
mod pods;
mod status;

use std::sync::Arc;

use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client};

pub use error::ApplyError;
pub use status::{StatusWritten, write_status};

use crate::build::Blueprint;
use crate::decide::Decision;
use crate::index::Index;
use crate::job::Job;
use crate::labels;
use crate::worker::{JobKey, Worker};
use children::Room;

/// What carrying out came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Why the API server will not have a pod, where it is not a passing trouble.
    pub refused: Option<String>,
}

/// Deletes and makes what a decision says.
///
/// # Errors
/// The first call that failed in a way that may pass.
pub async fn apply(
    client: &Client,
    index: &Index,
    blueprint: &Blueprint<'_>,
    decision: &Decision,
) -> Result<Outcome, ApplyError> {
    pods::delete(client, index, blueprint.job, &decision.delete).await?;
    if decision.delete_job {
        delete_job(client, blueprint.job).await?;
    }
    if !decision.needs_children {
        return Ok(Outcome::default());
    }
    match make(client, index, blueprint, decision).await {
        Err(ApplyError::Refused { message }) => Ok(Outcome { refused: Some(message) }),
        Err(error) => Err(error),
        Ok(()) => Ok(Outcome::default()),
    }
}

/// Makes what a job needs: first what its pods must not be without, then pods beside everything that they wait for.
async fn make(
    client: &Client,
    index: &Index,
    blueprint: &Blueprint<'_>,
    decision: &Decision,
) -> Result<(), ApplyError> {
    let attempt = decision.status.attempt.unwrap_or(1);
    let workers = index.workers(blueprint.job.uid());
    let is_first =
        |worker: &&Arc<Worker>| worker.idx == 0 && worker.attempt == attempt && worker.is_reachable();
    let first = workers.iter().find(is_first).map(Arc::as_ref);
    let room = Room::new(client, index, blueprint);
    room.prepare(first).await?;
    let pods = pods::start(client, index, blueprint, &decision.status, &decision.start);
    // What fails on one side does not cut off calls of the other.
    let (furnished, started) = futures::join!(room.furnish(first), pods);
    furnished.and(started)
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

fn key(job: &Job) -> JobKey {
    JobKey { uid: job.uid().into(), namespace: job.namespace().into(), name: job.name().into() }
}
