//! Calls for a job's Workload: create, delete, release quota, set conditions.

use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, Client};
use rlt_objects::build::{self, BuildInput};
use rlt_objects::job::Job;
use rlt_objects::labels;
use rlt_objects::queue::{GiveBack, Queueing, Workload, WorkloadAction};
use rlt_objects::served;
use serde_json::{Value, json};

use super::{ApplyError, creation, error, exactly, merge_patch};
use crate::index::Index;

/// Longest message of a Workload's condition, in bytes.
const MAX_MESSAGE_BYTES: usize = 32 * 1024;

/// The request of a job to its queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueRequest<'a> {
    /// The job's queue and Workload.
    pub(super) queueing: &'a Queueing,
    /// Nodes that a new Workload excludes.
    pub(super) excluded_nodes: &'a [String],
}

/// Applies a decision's change of the Workload.
///
/// # Errors
/// When the API server refuses a call.
pub(super) async fn apply(
    client: &Client,
    index: &Index,
    input: &BuildInput<'_>,
    request: QueueRequest<'_>,
    action: &WorkloadAction,
) -> Result<(), ApplyError> {
    let job = input.job;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), job.namespace(), &served::workloads());
    match action {
        WorkloadAction::Create => match (&request.queueing.queue, &request.queueing.prebuilt) {
            (Some(queue), Some(name)) => take_over(&api, index, input, queue, name).await,
            (Some(queue), None) => {
                let priority = priority(client, input).await?;
                let wanted = build::workload(input, queue, priority, request.excluded_nodes);
                create(&api, index, input, &wanted).await
            }
            (None, _) => Ok(()),
        },
        WorkloadAction::GiveBack(change) => give_back(client, index, job, change).await,
        WorkloadAction::SetPodsReady(workload, is_ready) => {
            let (reason, message) = match is_ready {
                true => ("Started", "all workers run"),
                false => ("WaitForRecovery", "workers are being started again"),
            };
            set_condition(&api, index, workload, &condition("PodsReady", *is_ready, reason, message)).await
        }
        WorkloadAction::Finish(workload, has_succeeded, message) => {
            let reason = if *has_succeeded { "Succeeded" } else { "Failed" };
            set_condition(&api, index, workload, &condition("Finished", true, reason, message)).await
        }
    }
}

/// Releases the quota of a job: deletes its Workload, or removes the reservation from it.
///
/// # Errors
/// When the API server refuses a call.
pub(super) async fn give_back(
    client: &Client,
    index: &Index,
    job: &Job,
    change: &GiveBack,
) -> Result<(), ApplyError> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), job.namespace(), &served::workloads());
    match change {
        GiveBack::Delete(workload) => delete(&api, index, job, workload).await,
        GiveBack::Release(workload) => release(&api, index, workload).await,
    }
}

async fn create(
    api: &Api<DynamicObject>,
    index: &Index,
    input: &BuildInput<'_>,
    wanted: &DynamicObject,
) -> Result<(), ApplyError> {
    let name = wanted.metadata.name.clone().unwrap_or_default();
    let made = match api.create(&creation(), wanted).await {
        Ok(made) => made,
        // The existing Workload was not shown by the watch yet, or is being deleted.
        Err(error) if error::exists(&error) => {
            api.get(&name).await.map_err(|source| ApplyError::Call { act: "read workload", name, source })?
        }
        Err(error) => {
            return Err(match error::refusal(&error) {
                Some(why) => ApplyError::Refused { message: format!("workload {name}: {why}") },
                None => ApplyError::Call { act: "make workload", name, source: error },
            });
        }
    };
    match Workload::read(&made) {
        Some((owner, workload)) if owner == input.job.key() => {
            index.enter(&owner, workload);
            Ok(())
        }
        _ => Err(ApplyError::occupied(input.job, &made.metadata)),
    }
}

/// Makes the job the owner of the prebuilt Workload, as Kueue does for a Workload that a job names.
/// The Workload's specification is not changed.
async fn take_over(
    api: &Api<DynamicObject>,
    index: &Index,
    input: &BuildInput<'_>,
    queue: &str,
    name: &str,
) -> Result<(), ApplyError> {
    let job = input.job;
    let refused = |why: &str| ApplyError::Refused { message: format!("workload {name}: {why}") };
    let found = match api.get_opt(name).await {
        Ok(found) => found.ok_or_else(|| refused("the job names it, and it is not there"))?,
        Err(source) => {
            return Err(ApplyError::Call { act: "read workload", name: name.to_owned(), source });
        }
    };
    let owners = found.metadata.owner_references.iter().flatten();
    let is_free = !owners.clone().any(|owner| owner.controller == Some(true) && owner.uid != job.uid());
    if !is_free {
        return Err(ApplyError::occupied(job, &found.metadata));
    }
    let kept = owners.filter(|owner| owner.uid != job.uid()).cloned();
    let owners: Vec<_> = kept.chain([job.owner_reference()]).collect();
    let patch = json!({"metadata": {
        "resourceVersion": found.metadata.resource_version,
        "ownerReferences": owners,
        "labels": build::workload_labels(input),
        "annotations": {labels::CONTENT_DIGEST: build::workload_digest(input, queue, &[])},
    }});
    match api.patch(name, &merge_patch(), &Patch::Merge(patch)).await {
        Ok(taken) => enter(index, &taken),
        Err(source) => Err(ApplyError::Call { act: "take over workload", name: name.to_owned(), source }),
    }
}

/// Returns the value of the job's priority class.
async fn priority(client: &Client, input: &BuildInput<'_>) -> Result<Option<i32>, ApplyError> {
    let Some(class) = build::queue_priority_class(input) else { return Ok(None) };
    let name = class.name.clone();
    let value = if class.kind == "PriorityClass" {
        let api: Api<PriorityClass> = Api::all(client.clone());
        api.get_opt(&name).await.map(|found| found.map(|class| Some(class.value)))
    } else {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &served::kueue(class.kind));
        let found = api.get_opt(&name).await;
        found.map(|found| {
            found.map(|class| class.data["value"].as_i64().and_then(|value| value.try_into().ok()))
        })
    };
    match value {
        Ok(Some(value)) => Ok(value),
        Ok(None) => Err(ApplyError::Refused { message: format!("there is no {} `{name}`", class.kind) }),
        Err(source) => Err(ApplyError::Call { act: "read the priority class", name, source }),
    }
}

async fn delete(
    api: &Api<DynamicObject>,
    index: &Index,
    job: &Job,
    workload: &Workload,
) -> Result<(), ApplyError> {
    let params = exactly(&workload.uid, DeleteParams::background());
    match api.delete(&workload.name, &params).await {
        // An object with a finalizer stays until that is removed.
        Ok(answer) => match answer.left().and_then(|object| Workload::read(&object)) {
            Some((key, leaving)) if leaving.is_deleting => index.enter(&key, leaving),
            _ => index.remove(&job.key(), workload),
        },
        Err(error) if error::is_done(&error) => index.remove(&job.key(), workload),
        Err(source) => {
            let name = workload.name.clone();
            return Err(ApplyError::Call { act: "delete workload", name, source });
        }
    }
    Ok(())
}

/// Releases the quota, so that Kueue can admit the job that preempted this one. Kueue's contract has the
/// job's controller change these status fields; the write is bound to the version that was read.
async fn release(api: &Api<DynamicObject>, index: &Index, workload: &Workload) -> Result<(), ApplyError> {
    let failed = |act| {
        let name = workload.name.clone();
        move |source| ApplyError::Call { act, name, source }
    };
    let found = api.get(&workload.name).await.map_err(failed("read workload"))?;
    let status = released(&found.data["status"]);
    let Some(status) = status.filter(|_| found.metadata.uid.as_deref() == Some(&workload.uid)) else {
        return enter(index, &found);
    };
    let version = found.metadata.resource_version.clone().unwrap_or_default();
    let patch = json!({"metadata": {"resourceVersion": version}, "status": status});
    let params = PatchParams { field_manager: Some(labels::STATUS_MANAGER.into()), ..PatchParams::default() };
    let patched = api.patch_status(&workload.name, &params, &Patch::Merge(patch)).await;
    enter(index, &patched.map_err(failed("release workload"))?)
}

fn enter(index: &Index, object: &DynamicObject) -> Result<(), ApplyError> {
    if let Some((key, workload)) = Workload::read(object) {
        index.enter(&key, workload);
    }
    Ok(())
}

/// Returns a merge patch that removes quota and admission from a status; `None` unless the Workload holds
/// quota and is evicted.
fn released(status: &Value) -> Option<Value> {
    let mut conditions = status["conditions"].as_array()?.clone();
    let find = |conditions: &[Value], type_: &str| conditions.iter().position(|one| one["type"] == type_);
    let holds = |conditions: &[Value], type_: &str| {
        find(conditions, type_).is_some_and(|idx| conditions[idx]["status"] == "True")
    };
    if !holds(&conditions, "QuotaReserved") || !holds(&conditions, "Evicted") {
        return None;
    }
    let evicted = conditions[find(&conditions, "Evicted")?].clone();
    let reason = evicted["reason"].as_str().unwrap_or("Evicted").to_owned();
    let message = evicted["message"].as_str().unwrap_or_default().to_owned();
    // Kueue requeues other evictions itself, after its backoff.
    let is_requeued = matches!(reason.as_str(), "Preempted" | "NodeFailures");
    let mut set = |type_: &str, holds: bool, reason: &str, message: &str| {
        let new = condition(type_, holds, reason, message);
        match find(&conditions, type_) {
            Some(idx) if conditions[idx]["status"] == new["status"] => {
                conditions[idx]["reason"] = reason.into();
                conditions[idx]["message"] = message.into();
            }
            Some(idx) => conditions[idx] = new,
            None => conditions.push(new),
        }
    };
    set("Requeued", is_requeued, &reason, &message);
    set("QuotaReserved", false, "Pending", &message);
    set("Admitted", false, "NoReservation", "The workload has no reservation");
    set("PodsReady", false, "WaitForStart", "no worker is needed");
    Some(json!({"conditions": conditions, "admission": null}))
}

fn condition(type_: &str, holds: bool, reason: &str, message: &str) -> Value {
    let end = message.floor_char_boundary(MAX_MESSAGE_BYTES);
    json!({
        "type": type_,
        "status": if holds { "True" } else { "False" },
        "reason": reason,
        "message": message[..end],
        "lastTransitionTime": now(),
    })
}

/// Returns the current time in whole seconds, as Kubernetes writes times.
fn now() -> String {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default().to_string()
}

/// Sets one condition by server-side apply, with a field manager for each condition.
async fn set_condition(
    api: &Api<DynamicObject>,
    index: &Index,
    workload: &Workload,
    condition: &Value,
) -> Result<(), ApplyError> {
    let resource = served::workloads();
    let patch = json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": workload.name, "uid": workload.uid},
        "status": {"conditions": [condition]},
    });
    let writer = format!("{}-{}", labels::OPERATOR, condition["type"].as_str().unwrap_or_default());
    let params = PatchParams::apply(&writer).force();
    match api.patch_status(&workload.name, &params, &Patch::Apply(&patch)).await {
        Ok(object) => enter(index, &object),
        // The Workload is gone.
        Err(error) if error::is_done(&error) => Ok(()),
        Err(source) => {
            let name = workload.name.clone();
            Err(ApplyError::Call { act: "write the status of workload", name, source })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(eviction: &str) -> Value {
        json!({
            "conditions": [
                {"type": "QuotaReserved", "status": "True", "lastTransitionTime": "t"},
                {"type": "Admitted", "status": "True", "lastTransitionTime": "t"},
                {"type": "Evicted", "status": "True", "reason": eviction, "message": "for another"},
            ],
            "admission": {"clusterQueue": "c"},
        })
    }

    fn is_true(status: &Value, type_: &str) -> Option<bool> {
        let conditions = status["conditions"].as_array().unwrap();
        conditions.iter().find(|one| one["type"] == type_).map(|one| one["status"] == "True")
    }

    #[test]
    fn a_place_that_is_given_back_is_no_longer_reserved_and_only_the_preempted_are_queued_again_at_once() {
        for (reason, requeued) in [("Preempted", true), ("NodeFailures", true), ("PodsReadyTimeout", false)] {
            let patch = released(&status(reason)).unwrap();
            assert!(patch["admission"].is_null());
            assert_eq!(is_true(&patch, "QuotaReserved"), Some(false));
            assert_eq!(is_true(&patch, "Admitted"), Some(false));
            assert_eq!(is_true(&patch, "PodsReady"), Some(false));
            assert_eq!(is_true(&patch, "Evicted"), Some(true), "which the queue takes back itself");
            assert_eq!(is_true(&patch, "Requeued"), Some(requeued), "{reason}");
        }
    }

    #[test]
    fn quota_is_released_only_if_it_is_reserved_and_the_eviction_requires_it() {
        let mut not_evicted = status("Preempted");
        not_evicted["conditions"][2]["status"] = "False".into();
        assert_eq!(released(&not_evicted), None);
        let mut without_place = status("Preempted");
        without_place["conditions"][0]["status"] = "False".into();
        assert_eq!(released(&without_place), None);
        assert_eq!(released(&Value::Null), None);
    }
}
