//! Gang scheduling and placement: the PodGroup of an attempt, and the fields that Kueue and schedulers add to
//! its pods.

use std::collections::BTreeMap;

use kube::api::{DeleteParams, ListParams};
use kube::core::DynamicObject;
use kube::{Api, Client};
use rlt_api::plan::WorkerGroup;
use rlt_objects::build::{self, BuildInput, Flavors, Gang, Placement};
use rlt_objects::job::Job;
use rlt_objects::labels;
use rlt_objects::queue::Workload;
use rlt_objects::served;
use rlt_objects::worker;
use rlt_objects::worker_id::{GroupName, WorkerId};

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
    for group in groups().filter(|group| start.iter().any(|id| *id.group == *group.name)) {
        if let Some(gang) = build::gang(input, group, cluster.served) {
            ensure(client, index, input, group, gang, attempt).await?;
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
        let gang = build::gang(input, group, cluster.served);
        Placement::new(input, group, attempt, gang, admission)
    };
    Ok(groups().map(|group| (group.name.as_str().into(), placement(group))).collect())
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
    let id = ChildId { child: Child::PodGroup, group: group.name.as_str().into() };
    let made_for = Some(attempt.to_string());
    if index.children(&job.key()).get(&id) == Some(&made_for) {
        return Ok(());
    }
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), job.namespace(), &build::pod_group_kind(gang));
    let group = build::pod_group(input, group, gang, attempt);
    let name = group.metadata.name.clone().unwrap_or_default();
    match api.create(&creation(), &group).await {
        Ok(_) => {}
        Err(error) if error::exists(&error) => check_owner(&api, input.job, &name).await?,
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
    index.enter(&job.key(), ChildEntry { id, digest: made_for });
    Ok(())
}

/// Checks that an existing PodGroup belongs to the job. Another owner's has other counts, and may be deleted
/// with the job's pods.
async fn check_owner(api: &Api<DynamicObject>, job: &Job, name: &str) -> Result<(), ApplyError> {
    let found = api.get_metadata(name).await;
    let failed = |source| ApplyError::Call { act: "read pod group", name: name.to_owned(), source };
    let found = found.map_err(failed)?.metadata;
    let is_own = worker::owner(&found).is_some_and(|owner| owner == job.key());
    if is_own && found.deletion_timestamp.is_none() {
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
