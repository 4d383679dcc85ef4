//! Gang scheduling and placement: the PodGroup of an attempt, and the fields that Kueue and schedulers add to
//! its pods.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::api::{DeleteParams, ListParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client};
use rlt_objects::build::{self, BuildInput, Flavors, Gang, Placement};
use rlt_objects::job::Job;
use rlt_objects::labels;
use rlt_objects::queue::Workload;
use rlt_objects::seen::SeenPod;
use rlt_objects::served::{self, Served};
use rlt_objects::worker::{self, Worker};
use rlt_objects::worker_id::{GroupName, WorkerId};
use rlt_plan::WorkerGroup;

use super::{ApplyError, ClusterState, creation, error};
use crate::index::{Child, ChildEntry, ChildId, Index};

/// Prepares the pods of each group of an attempt. A PodGroup is only created for a group whose workers are
/// started.
///
/// # Errors
/// When the API server refuses a PodGroup, or a resource flavor does not exist.
pub(super) async fn prepare(
    client: &Client,
    index: &Index,
    input: &BuildInput<'_>,
    cluster: &ClusterState<'_>,
    attempt: u32,
    start: &[WorkerId],
) -> Result<BTreeMap<GroupName, Placement>, ApplyError> {
    let groups = || input.prepared.plan.worker_groups.iter();
    let mut gangs = BTreeMap::new();
    for group in groups().filter(|group| start.iter().any(|id| *id.group == *group.name)) {
        if let Some(gang) = gang_of_attempt(client, index, input, group, cluster.served, attempt).await? {
            ensure(client, index, input, group, gang, attempt).await?;
            gangs.insert(group.name.as_str(), gang);
        }
    }
    let queueing = cluster.queueing;
    let admitted =
        queueing.workload.as_deref().filter(|workload| queueing.queue.is_some() && workload.is_admitted);
    let flavors = match admitted {
        Some(workload) => flavors(client, workload).await?,
        None => Flavors::new(),
    };
    let admission = admitted.map(|workload| (workload, &flavors));
    let placement = |group: &WorkerGroup| {
        let gang = gangs.get(group.name.as_str()).copied();
        Placement::new(input, group, attempt, gang, admission)
    };
    Ok(groups().map(|group| (group.name.as_str().into(), placement(group))).collect())
}

/// Returns the PodGroup API for new workers of a group: that of the attempt's existing pods if there are any,
/// else that of the scheduler. A PodGroup waits for all workers, so if its API were installed after the first
/// pods were created, the other workers would wait in it for ever.
async fn gang_of_attempt(
    client: &Client,
    index: &Index,
    input: &BuildInput<'_>,
    group: &WorkerGroup,
    served: Served,
    attempt: u32,
) -> Result<Option<Gang>, ApplyError> {
    let Some(gang) = build::gang(input, group, served) else { return Ok(None) };
    let (job, id) = (input.job.key(), pod_group_id(group));
    let workers = index.workers(&job);
    let is_created = index.children(&job).get(&id) == Some(&Some(created_for(gang, attempt)));
    let has_earlier = workers.iter().any(|worker| worker.attempt < attempt && !worker.is_spare());
    if is_created && has_earlier {
        // Pods of an earlier attempt terminate one by one, and reading a pod after each would cost calls.
        return Ok(Some(gang));
    }
    // The pod is read untyped, because the Rust types of pods lack the field of Kubernetes' own PodGroup.
    let kind = ApiResource::erase::<SeenPod>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), input.job.namespace(), &kind);
    for worker in workers.iter().filter(|worker| worker.attempt == attempt && *worker.group == *group.name) {
        let failed = |source| ApplyError::Call { act: "read pod", name: worker.name.to_string(), source };
        if let Some(pod) = api.get_opt(&worker.name).await.map_err(failed)? {
            // PodGroups are not watched. The cached entry is dropped, so that a deleted PodGroup is created
            // again.
            index.remove(&job, &ChildEntry::written(id, None));
            return Ok(build::gang_of(&pod, &build::pod_group_name(group, attempt), served));
        }
    }
    Ok(Some(gang))
}

/// Creates the PodGroup of a group of workers in an attempt, and deletes those of earlier attempts.
async fn ensure(
    client: &Client,
    index: &Index,
    input: &BuildInput<'_>,
    group: &WorkerGroup,
    gang: Gang,
    attempt: u32,
) -> Result<(), ApplyError> {
    let job = input.job;
    let id = pod_group_id(group);
    let made_for = Some(created_for(gang, attempt));
    if index.children(&job.key()).get(&id) == Some(&made_for) {
        return Ok(());
    }
    let is_joined = has_workers(&index.workers(&job.key()), group, attempt);
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), job.namespace(), &build::pod_group_kind(gang));
    let group = build::pod_group(input, group, gang, attempt);
    let name = group.metadata.name.clone().unwrap_or_default();
    match api.create(&creation(), &group).await {
        Ok(_) => {}
        Err(error) if error::exists(&error) => check_owner(&api, input.job, &name, is_joined).await?,
        Err(error) => {
            return Err(match error::refusal(&error) {
                Some(why) => ApplyError::Refused { message: format!("pod group {name}: {why}") },
                None => ApplyError::Call { act: "make pod group", name, source: error },
            });
        }
    }
    if attempt > 1 {
        let earlier = format!("{}={},{}!={attempt}", labels::JOB_UID, job.uid(), labels::ATTEMPT);
        let earlier = ListParams::default().labels(&earlier);
        let removed = api.delete_collection(&DeleteParams::default(), &earlier).await;
        removed.map_err(|source| ApplyError::Call { act: "delete the pod groups before", name, source })?;
    }
    index.enter(&job.key(), ChildEntry::written(id, made_for));
    Ok(())
}

fn pod_group_id(group: &WorkerGroup) -> ChildId {
    ChildId { child: Child::PodGroup, group: group.name.as_str().into() }
}

/// Returns the digest of a PodGroup in the index.
fn created_for(gang: Gang, attempt: u32) -> String {
    format!("{attempt} {gang:?}")
}

/// Whether the attempt has pods of a group of workers.
fn has_workers(workers: &[Arc<Worker>], group: &WorkerGroup, attempt: u32) -> bool {
    workers.iter().any(|worker| worker.attempt == attempt && *worker.group == *group.name)
}

/// Checks that an existing PodGroup belongs to the job. A PodGroup of another owner has another count, and
/// may be deleted at any time. A PodGroup of the job that is being deleted is accepted only if pods have
/// joined it, because it stays as long as they do.
async fn check_owner(
    api: &Api<DynamicObject>,
    job: &Job,
    name: &str,
    is_joined: bool,
) -> Result<(), ApplyError> {
    let found = api.get_metadata(name).await;
    let failed = |source| ApplyError::Call { act: "read pod group", name: name.to_owned(), source };
    let found = found.map_err(failed)?.metadata;
    let is_own = worker::owner(&found).is_some_and(|owner| owner == job.key());
    if is_own && (is_joined || found.deletion_timestamp.is_none()) {
        return Ok(());
    }
    Err(ApplyError::occupied(job, &found))
}

async fn flavors(client: &Client, workload: &Workload) -> Result<Flavors, ApplyError> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &served::kueue("ResourceFlavor"));
    let mut flavors = Flavors::new();
    let names: std::collections::BTreeSet<_> =
        workload.assignments.iter().flat_map(|assignment| &assignment.flavors).collect();
    for name in names {
        let found = api.get(name).await.map_err(|source| ApplyError::Call {
            act: "read resource flavor",
            name: name.clone(),
            source,
        })?;
        let spec = found.data.get("spec").cloned().unwrap_or_default();
        let flavor =
            serde_json::from_value(spec).map_err(|source| ApplyError::Json { name: name.clone(), source })?;
        flavors.insert(name.clone(), flavor);
    }
    Ok(flavors)
}
