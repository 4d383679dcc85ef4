//! Proves which objects of a job are made before its pods, and which PodGroup a worker joins.

use futures::{FutureExt as _, StreamExt as _};
use rlt_channel::environment;
use rlt_objects::build::{self, Authority, ChannelAccess};
use rlt_objects::queue::Workload;
use rlt_objects::worker::{self, Explanation, Waiting};

use super::*;
use crate::run::hand_out_authority;

#[tokio::test]
async fn no_pod_of_an_isolated_job_is_made_without_its_policy() {
    for (network, starts) in [("Isolated", false), ("Guarded", true)] {
        let server = Server::new(post("/networkpolicies", 403, "Forbidden", "no"));
        let job = with_workers(json!({"network": network}));
        let _ = reconcile(Arc::new(job), context(&server).into()).await;
        assert_eq!(server.made("/pods"), starts, "{network}");
        let status = server.status().expect("a status is written");
        let stalled = condition(&status, ConditionType::Stalled);
        assert_eq!((stalled.status, &*stalled.reason), (ConditionStatus::True, "ObjectRefused"), "{network}");
    }
}

#[tokio::test]
async fn the_policy_of_an_isolated_job_is_made_once_and_before_its_first_pod() {
    let server = Server::new(Box::new(|_, _| None));
    let job = with_workers(json!({"network": "Isolated"}));
    reconcile(Arc::new(job), context(&server).into()).await.unwrap();
    let calls = server.calls.lock().unwrap();
    let made: Vec<_> = calls.iter().filter(|(method, ..)| *method == Method::POST).collect();
    let places = |resource: &str| -> Vec<usize> {
        let all = made.iter().enumerate().filter(|(_, (_, path, _))| path.ends_with(resource));
        all.map(|(place, _)| place).collect()
    };
    let (policies, pods) = (places("/networkpolicies"), places("/pods"));
    assert_eq!((policies.len(), pods.len()), (1, 2));
    assert!(policies[0] < pods[0], "{made:?}");
}

/// Returns the bodies of deletions of a NetworkPolicy whose owner has the UID `owner_uid`, for a job that
/// wants none.
async fn policy_deletions(owner_uid: &str) -> Vec<Value> {
    let owner = json!({
        "apiVersion": rlt_api::API_VERSION, "kind": rlt_api::KIND, "name": "quickstart", "uid": owner_uid,
    });
    let found = json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": {
            "name": "quickstart-trainer", "namespace": "default", "uid": "policy", "ownerReferences": [owner],
        },
    });
    let server = Server::new(Box::new(move |method, path| match *method {
        _ if !path.contains("/networkpolicies/") => None,
        Method::GET => Some((200, found.clone())),
        _ => Some((200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))),
    }));
    let context = context(&server);
    context.index.enter(&key(), ChildEntry::written(Child::NetworkPolicy.into(), None));
    reconcile(Arc::new(with_workers(json!({"network": "Open"}))), context.into()).await.unwrap();
    let calls = server.calls.lock().unwrap();
    let deletions = calls.iter().filter(|(method, ..)| *method == Method::DELETE);
    deletions.map(|(.., sent)| sent.clone()).collect()
}

#[tokio::test]
async fn a_policy_is_deleted_by_its_uid_and_one_of_another_job_stays() {
    let [deletion] = policy_deletions("u").await.try_into().unwrap();
    assert_eq!(deletion["preconditions"]["uid"], "policy");
    assert!(policy_deletions("of a newer job").await.is_empty());
}

/// Returns the PodGroup in the pod of a second worker, and whether the PodGroup was created again, on a
/// cluster with Kubernetes' own PodGroups. `of_first` is the PodGroup of the first worker.
async fn second_worker(of_first: &Value) -> (Value, bool) {
    let metadata = json!({"name": "quickstart-trainer-0", "namespace": "default", "uid": "0-1"});
    let first = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"schedulingGroup": of_first},
    });
    let version = json!({"groupVersion": "scheduling.k8s.io/v1alpha2", "version": "v1alpha2"});
    let group = json!({"name": "scheduling.k8s.io", "versions": [version]});
    let jobs = json!({"name": "rltraining.dev", "versions": []});
    let served = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group, jobs]});
    let owner =
        json!({"apiVersion": rlt_api::API_VERSION, "kind": rlt_api::KIND, "name": "quickstart", "uid": "u"});
    // The PodGroup was deleted, and a finalizer holds it while it has pods.
    let metadata = json!({
        "name": "quickstart-trainer-1", "namespace": "default", "uid": "g",
        "deletionTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": [owner],
    });
    let going =
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
    let server = Server::new(Box::new(move |method, path| match path {
        "/apis" => Some((200, served.clone())),
        _ if path.ends_with("/podgroups") => Some(refusal(409, "AlreadyExists", "it is there")),
        _ if path.ends_with("/podgroups/quickstart-trainer-1") => Some((200, going.clone())),
        _ if *method == Method::GET && path.ends_with("/pods/quickstart-trainer-0") => {
            Some((200, first.clone()))
        }
        _ => None,
    }));
    let context = context(&server);
    context.discovery.refresh(&context.client).await;
    context.index.enter(&key(), fixtures::worker(0, 1));
    // This process has created the PodGroup, which may have been deleted since.
    let digest = Some(r#"1 Native("v1alpha2")"#.to_owned());
    context.index.enter(&key(), ChildEntry::written(Child::PodGroup.into(), digest));
    reconcile(Arc::new(job(&begun())), context.into()).await.unwrap();
    let calls = server.calls.lock().unwrap();
    let pods = calls.iter().filter(|(method, path, _)| *method == Method::POST && path.ends_with("/pods"));
    let [pod]: [&Value; 1] = pods.map(|(.., sent)| sent).collect::<Vec<_>>().try_into().unwrap();
    let group = pod["spec"]["schedulingGroup"].clone();
    drop(calls);
    (group, server.made("/podgroups"))
}

#[tokio::test]
async fn a_worker_that_follows_others_joins_their_pod_group_and_none_that_became_possible_later() {
    let group = json!({"podGroupName": "quickstart-trainer-1"});
    assert_eq!(second_worker(&group).await, (group.clone(), true));
    assert_eq!(second_worker(&Value::Null).await, (Value::Null, false));
}

/// Returns the image of a second worker's pod, if the pod of the `first` worker has the image
/// `rlt-trainer:before`.
async fn image_beside(first: Worker) -> Value {
    let container = json!({"name": worker::TRAINER_CONTAINER, "image": "rlt-trainer:before"});
    let found = json!({
        "apiVersion": "v1", "kind": "Pod", "spec": {"containers": [container]},
        "metadata": {"name": "quickstart-trainer-0", "namespace": "default", "uid": "0-1"},
    });
    let server = Server::new(Box::new(move |method, path| {
        let is_read = *method == Method::GET && path.ends_with("/pods/quickstart-trainer-0");
        is_read.then(|| (200, found.clone()))
    }));
    let context = context(&server);
    context.index.enter(&key(), first);
    reconcile(Arc::new(job(&begun())), context.into()).await.unwrap();
    let calls = server.calls.lock().unwrap();
    let is_pod = |method: &Method, path: &str| *method == Method::POST && path.ends_with("/pods");
    let (.., pod) = calls.iter().find(|(method, path, _)| is_pod(method, path)).unwrap();
    let containers = pod["spec"]["containers"].as_array().unwrap();
    let trainer = containers.iter().find(|container| container["name"] == worker::TRAINER_CONTAINER);
    trainer.unwrap()["image"].clone()
}

#[tokio::test]
async fn a_pod_that_is_created_again_has_the_image_of_its_attempt_unless_that_cannot_be_started() {
    let before = Worker { image: worker::image_digest("rlt-trainer:before"), ..fixtures::worker(0, 1) };
    assert_eq!(image_beside(before.clone()).await, "rlt-trainer:before");
    let reason = Explanation { reason: "ImagePullBackOff".into(), message: String::new() };
    let waiting = Some(Box::new(Waiting::Container(reason)));
    assert_eq!(image_beside(Worker { waiting, ..before }).await, "rlt.local/rlt-trainer:test");
}

#[tokio::test]
async fn an_edited_policy_of_an_isolated_job_is_put_right_before_the_pods_of_an_attempt_are_made() {
    let new = Server::new(Box::new(|_, _| None));
    let isolated = with_workers(json!({"network": "Isolated"}));
    reconcile(Arc::new(isolated.clone()), context(&new).into()).await.unwrap();
    let is_policy = |path: &str| path.contains("/networkpolicies");
    let made = new.calls.lock().unwrap().iter().find(|(_, path, _)| is_policy(path)).unwrap().2.clone();
    let digest = made["metadata"]["annotations"][labels::CONTENT_DIGEST].as_str().map(str::to_owned);

    let server = Server::new(Box::new(|_, _| None));
    let context = context(&server);
    context.index.enter(&key(), ChildEntry::written(Child::NetworkPolicy.into(), digest));
    let job = Job { status: Ok(serde_json::from_value(begun()).unwrap()), ..isolated };
    reconcile(Arc::new(job), context.into()).await.unwrap();
    let calls = server.calls.lock().unwrap();
    let place = |wanted: Method, part: &str| {
        calls.iter().position(|(method, path, _)| *method == wanted && path.contains(part)).unwrap()
    };
    let written = place(Method::PATCH, "/networkpolicies/");
    assert_eq!(calls[written].2["spec"], made["spec"]);
    assert!(written < place(Method::POST, "/pods"), "{calls:?}");
}

#[tokio::test]
async fn workers_find_each_other_though_a_change_of_their_claim_is_refused() {
    let server = Server::new(Box::new(|method, path| {
        let is_read = *method == Method::GET && path.contains("/persistentvolumeclaims/");
        is_read.then(|| refusal(403, "Forbidden", "may not get persistentvolumeclaims"))
    }));
    let context = context(&server);
    reachable(&context);
    let digest = Some("of another size".to_owned());
    context.index.enter(&key(), ChildEntry::written(Child::Claim.into(), digest));
    let _ = reconcile(Arc::new(job(&begun())), context.into()).await;
    assert!(server.made("/services") && server.made("/endpointslices"));
    let status = server.status().expect("a status is written");
    assert_eq!(condition(&status, ConditionType::Stalled).reason, "ObjectRefused");
}

/// Kueue's webhook does not answer.
#[tokio::test]
async fn workers_find_each_other_though_their_queue_cannot_be_told_that_they_run() {
    let version = json!({"groupVersion": "kueue.x-k8s.io/v1beta2", "version": "v1beta2"});
    let group = json!({"name": "kueue.x-k8s.io", "versions": [version]});
    let jobs = json!({"name": "rltraining.dev", "versions": []});
    let served = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group, jobs]});
    let server = Server::new(Box::new(move |_, path| match path {
        "/apis" => Some((200, served.clone())),
        _ if path.contains("/workloads/") => Some(refusal(500, "InternalError", "a webhook does not answer")),
        _ => None,
    }));
    let context = context(&server);
    reachable(&context);
    let admitted = Workload { has_quota: true, is_admitted: true, ..fixtures::waiting() };
    context.index.enter(&key(), admitted);
    let mut job = job(&begun());
    job.metadata.labels = Some([(queue::QUEUE_LABEL.to_owned(), "team".to_owned())].into());
    reconcile(Arc::new(job), context.into()).await.unwrap_err();
    let calls = server.calls.lock().unwrap();
    let is_told = calls.iter().any(|(_, path, _)| path.ends_with("/workloads/w/status"));
    drop(calls);
    assert!(is_told && server.made("/services") && server.made("/endpointslices"));
}

#[tokio::test]
async fn a_field_that_was_created_and_is_not_wanted_any_more_is_removed() {
    let account = json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": {
            "name": "quickstart-trainer", "namespace": "default", "uid": "a", "resourceVersion": "4",
            "managedFields": [{
                "manager": labels::OPERATOR, "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1",
                "fieldsV1": {"f:metadata": {"f:annotations": {"f:iam.example.com/role": {}}}},
            }],
        },
    });
    let server = Server::new(Box::new(move |method, path| {
        let is_read = *method == Method::GET && path.ends_with("/serviceaccounts/quickstart-trainer");
        is_read.then(|| (200, account.clone()))
    }));
    let context = context(&server);
    let digest = Some("of the role".to_owned());
    context.index.enter(&key(), ChildEntry::written(Child::ServiceAccount.into(), digest));
    reconcile(Arc::new(with_workers(json!({}))), context.into()).await.unwrap();
    let calls = server.calls.lock().unwrap();
    let patches = calls
        .iter()
        .filter(|(method, path, _)| *method == Method::PATCH && path.contains("/serviceaccounts/"));
    let [taken, applied] = patches.map(|(_, _, sent)| sent).collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(taken["metadata"]["managedFields"][0]["operation"], "Apply");
    assert_eq!(taken["metadata"]["resourceVersion"], "4");
    assert_eq!(applied["metadata"]["annotations"], Value::Null);
}

#[tokio::test]
async fn a_replaced_authority_of_the_channel_is_written_into_the_config_map_of_a_running_job() {
    let server = Server::new(Box::new(|_, _| None));
    let authority = Authority::from("first");
    let address = "https://operator:9443".to_owned();
    let mut context = context(&server);
    context.settings.channel = Some(ChannelAccess { address, authority: authority.clone() });
    runs(&context);
    let (context, job) = (Arc::new(context), Arc::new(job(&begun())));
    reconcile(job.clone(), context.clone()).await.unwrap();
    let mut requeues = std::pin::pin!(context.index.all_changes());
    assert_eq!(requeues.next().now_or_never(), None);
    assert!(authority.replace("second") && !authority.replace("second"));
    let (renewals, renewed) = watch::channel(());
    renewals.send_replace(());
    // Without a sender, the task ends after this renewal.
    drop(renewals);
    hand_out_authority(renewed, context.clone()).await;
    assert_eq!(requeues.next().now_or_never(), Some(Some(())), "every job is reconciled");
    reconcile(job, context).await.unwrap();
    let calls = server.calls.lock().unwrap();
    let written: Vec<_> =
        calls.iter().filter_map(|(.., sent)| sent["data"][environment::CA_KEY].as_str()).collect();
    assert_eq!(written, ["first", "second"]);
}

/// Returns the ConfigMap of the job as the operator creates it.
async fn made_config_map() -> Value {
    let server = Server::new(Box::new(|_, _| None));
    reconcile(Arc::new(with_workers(json!({}))), context(&server).into()).await.unwrap();
    let calls = server.calls.lock().unwrap();
    let made =
        calls.iter().find(|(method, path, _)| *method == Method::POST && path.ends_with("/configmaps"));
    made.unwrap().2.clone()
}

#[tokio::test]
async fn an_edited_manifest_is_put_right_before_the_pods_of_an_attempt_are_made() {
    let untouched = made_config_map().await;
    let digest = untouched["metadata"]["annotations"][labels::CONTENT_DIGEST].as_str().map(str::to_owned);
    let manifest = untouched["data"][build::MANIFEST_KEY].clone();
    let mut edited = untouched.clone();
    edited["data"][build::MANIFEST_KEY] = json!("edited");
    let mut emptied = untouched.clone();
    emptied["data"] = json!({});
    for (found, num_patches) in [(untouched, 0), (edited, 1), (emptied, 1)] {
        let server = Server::new(Box::new(move |method, path| {
            let is_read = *method == Method::GET && path.ends_with("/configmaps/quickstart-manifest");
            is_read.then(|| (200, found.clone()))
        }));
        let context = context(&server);
        let entry = ChildEntry::written(Child::ConfigMap.into(), digest.clone());
        context.index.enter(&key(), entry);
        reconcile(Arc::new(job(&begun())), context.into()).await.unwrap();
        let calls = server.calls.lock().unwrap();
        let first_pod =
            calls.iter().position(|(method, path, _)| *method == Method::POST && path.ends_with("/pods"));
        let before = &calls[..first_pod.expect("pods are made")];
        let patches = before.iter().filter(|(method, path, _)| {
            *method == Method::PATCH && path.ends_with("/configmaps/quickstart-manifest")
        });
        let sent: Vec<_> = patches.map(|(.., sent)| &sent["data"][build::MANIFEST_KEY]).collect();
        assert_eq!(sent, vec![&manifest; num_patches]);
    }
}
