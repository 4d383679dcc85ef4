//! Pods: created by name, deleted and assigned by UID, concurrently.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use kube::api::{DeleteParams, Patch, Request};
use kube::{Api, Client, Resource as _};
use rlt_api::spec::RetriesSpec;
use rlt_objects::build::{self, BuildInput, Placement, PlacementConflict};
use rlt_objects::job::Job;
use rlt_objects::labels;
use rlt_objects::seen::SeenPod;
use rlt_objects::worker::{self, Waiting, Worker};
use rlt_objects::worker_id::{GroupName, WorkerId};
use serde_json::json;

use super::{Access, ApplyError, creation, error, exactly, merge_patch, nodes};
use crate::client::{Importance, MAX_IN_FLIGHT, Turn};
use crate::decide::{Assignment, Deletion};
use crate::index::Index;
use crate::nodes::NodeState;

/// Number of pods that are created first, so that an exhausted quota costs at most this many calls.
const FIRST_PODS: usize = 8;

/// Deletes the pods of a decision. A pod on a lost node is force-deleted, after the API server has confirmed
/// that the node is lost: otherwise a process could still run, and a second one of its rank would start.
pub(super) async fn delete(
    client: &Client,
    index: &Index,
    job: &Job,
    deletions: &[Deletion],
) -> Result<(), ApplyError> {
    let api: &Api<SeenPod> = &Api::namespaced(client.clone(), job.namespace());
    let calls = deletions.iter().cloned().map(|deletion| async move {
        if let Some(node) = deletion.lost_node.as_deref()
            && nodes::read(client, &index.nodes.signals, node).await? != NodeState::Lost
        {
            return Ok(());
        }
        let grace_period_seconds = deletion.grace_seconds;
        let params = DeleteParams { grace_period_seconds, ..DeleteParams::default() };
        match api.delete(&deletion.name, &exactly(&deletion.uid, params)).await {
            Ok(answer) => {
                // The response has the terminating pod, or none if it is gone at once.
                let leaving = answer.left().and_then(|pod| Worker::read(&pod));
                if let Some((key, worker)) = leaving.filter(|(_, worker)| worker.is_deleting) {
                    index.enter(&key, worker);
                }
                Ok(())
            }
            Err(error) if error::is_done(&error) => Ok(()),
            Err(source) => {
                Err(ApplyError::Call { act: "delete pod", name: deletion.name.to_string(), source })
            }
        }
    });
    stream::iter(calls).buffer_unordered(MAX_IN_FLIGHT).try_collect::<()>().await
}

/// Assigns existing pods to workers of an attempt, by their labels.
pub(super) async fn assign(
    client: &Client,
    index: &Index,
    job: &Job,
    assignments: &[Assignment],
) -> Result<(), ApplyError> {
    let api: &Api<SeenPod> = &Api::namespaced(client.clone(), job.namespace());
    let calls = assignments.iter().cloned().map(|assignment| async move {
        let Assignment { name, uid, worker, attempt } = assignment;
        let labels = json!({
            labels::WORKER_GROUP: &*worker.group,
            labels::WORKER_IDX: worker.idx.to_string(),
            labels::ATTEMPT: attempt.to_string(),
        });
        // A UID in a patch is a precondition: another pod of that name is not changed.
        let patch = Patch::Merge(json!({"metadata": {"uid": &*uid, "labels": labels}}));
        match api.patch(&name, &merge_patch(), &patch).await {
            Ok(pod) => {
                if let Some((key, worker)) = Worker::read(&pod) {
                    index.enter(&key, worker);
                }
                Ok(())
            }
            // The pod was deleted. The watch reports this, and the job is reconciled again.
            Err(error) if error::is_done(&error) => Ok(()),
            Err(source) => Err(ApplyError::Call { act: "assign pod", name: name.to_string(), source }),
        }
    });
    stream::iter(calls).buffer_unordered(MAX_IN_FLIGHT).try_collect::<()>().await
}

/// Settings for creating the pods of one attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct AttemptPods<'a> {
    /// Job, plan and settings from which pods are built.
    pub(super) input: &'a BuildInput<'a>,
    /// Fields that queues and schedulers add to the pods of each group.
    pub(super) placements: &'a BTreeMap<GroupName, Placement>,
    /// Number of failures on each node; pods avoid nodes with more failures more strongly.
    pub(super) failures_by_node: &'a BTreeMap<String, u32>,
    /// The attempt, from 1.
    pub(super) attempt: u32,
    /// Retries that a pod may use for restarts in place; `None` if it may not restart in place.
    pub(super) retries_left: Option<&'a RetriesSpec>,
}

/// Creates the pods of `workers`: the first [`FIRST_PODS`], and the others once the API server has accepted
/// these, so that an exhausted quota costs few calls.
pub(super) async fn start(
    access: Access<'_>,
    pods: &AttemptPods<'_>,
    workers: &[WorkerId],
) -> Result<(), ApplyError> {
    let images = &images_of_attempt(access, pods).await?;
    let (first, others) = workers.split_at(workers.len().min(FIRST_PODS));
    for wave in [first, others] {
        let calls = wave.iter().cloned().map(|worker| create(access, pods, images, worker));
        stream::iter(calls).buffer_unordered(MAX_IN_FLIGHT).try_collect::<()>().await?;
    }
    Ok(())
}

/// Images of groups, by the name of the group.
type Images = BTreeMap<GroupName, String>;

/// Returns the image of each group whose pods in the attempt have another image than new pods would get,
/// because the operator was upgraded while they started. New pods get the image of the existing ones, because
/// ranks of two releases refuse each other. A pod whose container cannot start does not count.
async fn images_of_attempt(access: Access<'_>, pods: &AttemptPods<'_>) -> Result<Images, ApplyError> {
    let AttemptPods { input, attempt, .. } = *pods;
    let api: Api<SeenPod> = Api::namespaced(access.client.clone(), input.job.namespace());
    let mut images = Images::new();
    for worker in access.index.workers(&input.job.key()) {
        let cannot_start = matches!(worker.waiting.as_deref(), Some(Waiting::Container(_)));
        let decides = worker.attempt == attempt && worker.image != 0 && !worker.is_deleting && !cannot_start;
        let Some(group) = input.prepared.group(&worker.group).filter(|_| decides) else { continue };
        let is_wanted = worker.image == worker::image_digest(build::image(input, group));
        if is_wanted || images.contains_key(&worker.group) {
            continue;
        }
        let found = api.get_opt(&worker.name).await.map_err(|source| ApplyError::Call {
            act: "read pod",
            name: worker.name.to_string(),
            source,
        })?;
        if let Some(image) = found.as_ref().and_then(worker::trainer_image) {
            images.insert(worker.group.clone(), image.to_owned());
        }
    }
    Ok(images)
}

/// Creates a pod. The pod is built only once the rate limiter admits its call, so waiting pods need no
/// memory.
async fn create(
    access: Access<'_>,
    pods: &AttemptPods<'_>,
    images: &Images,
    worker: WorkerId,
) -> Result<(), ApplyError> {
    let turn = access.limiter.turn(Importance::Change).await?;
    Box::pin(make(access, pods, images, &worker, turn)).await
}

async fn make(
    access: Access<'_>,
    pods: &AttemptPods<'_>,
    images: &Images,
    worker: &WorkerId,
    turn: Turn,
) -> Result<(), ApplyError> {
    let Access { client, index, .. } = access;
    let Some((name, body)) = pods.pod(images, worker)? else { return Ok(()) };
    let job = pods.input.job;
    let made = match post(client, job.namespace(), body, turn).await {
        Ok(made) => made,
        Err(error) if error::exists(&error) => existing_pod(client, job, name).await?,
        Err(error) => match error::refusal(&error) {
            Some(why) => return Err(ApplyError::Refused { message: format!("pod {name}: {why}") }),
            None => return Err(ApplyError::Call { act: "make pod", name, source: error }),
        },
    };
    if let Some((key, worker)) = Worker::read(&made) {
        index.enter(&key, worker);
    }
    Ok(())
}

impl AttemptPods<'_> {
    /// Returns a pod's name and JSON, which may have fields that the type `Pod` lacks.
    fn pod(&self, images: &Images, worker: &WorkerId) -> Result<Option<(String, Vec<u8>)>, ApplyError> {
        let Self { input, placements, failures_by_node, attempt, retries_left } = *self;
        let group = input.prepared.group(&worker.group).zip(placements.get(&worker.group));
        let Some((group, placement)) = group else { return Ok(None) };
        let pod = build::pod(input, attempt, group, worker.idx);
        let pod = match images.get(&worker.group) {
            Some(image) => build::with_image(pod, image),
            None => pod,
        };
        let name = pod.metadata.name.clone().unwrap_or_default();
        let refused =
            |conflict: PlacementConflict| ApplyError::Refused { message: format!("pod {name}: {conflict}") };
        let pod = build::avoid(placement.place(pod).map_err(refused)?, failures_by_node);
        let pod = build::allow_restarts(pod, retries_left)
            .map_err(|source| ApplyError::Json { name: name.clone(), source })?;
        let body = placement.body(&pod).map_err(|source| ApplyError::Json { name: name.clone(), source })?;
        Ok(Some((name, body)))
    }
}

async fn post(client: &Client, namespace: &str, body: Vec<u8>, turn: Turn) -> Result<SeenPod, kube::Error> {
    let request = Request::new(SeenPod::url_path(&(), Some(namespace)));
    let mut request = request.create(&creation(), body).map_err(kube::Error::BuildRequest)?;
    request.extensions_mut().insert(Arc::new(turn));
    client.request(request).await
}

/// Returns the existing pod of that name, which the watch has not shown yet, if it belongs to the job.
async fn existing_pod(client: &Client, job: &Job, name: String) -> Result<SeenPod, ApplyError> {
    let api: Api<SeenPod> = Api::namespaced(client.clone(), job.namespace());
    let found = api.get(&name).await;
    let found = found.map_err(|source| ApplyError::Call { act: "read pod", name: name.clone(), source })?;
    match Worker::read(&found) {
        Some((owner, _)) if owner == job.key() => Ok(found),
        _ => Err(ApplyError::occupied(job, &found.metadata)),
    }
}
