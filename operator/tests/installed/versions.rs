//! A second version of the API beside the first one: as long as their schemas are equal no webhook converts,
//! and jobs that run notice nothing.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use rlt_api::status::Phase;
use serde_json::{Value, json};

use super::*;

const CRD: &str = "rltrainingjobs.rltraining.dev";

/// The definition with the next version, equal to the first and stored from now on, as a later chart brings
/// it.
fn with_next_version() -> Value {
    let mut definition = rlt_api::custom_resource_definition().unwrap();
    let versions = definition["spec"]["versions"].as_array_mut().unwrap();
    let mut next = versions[0].clone();
    next["name"] = "v1beta1".into();
    versions[0]["storage"] = false.into();
    versions.push(next);
    definition
}

fn jobs_of(client: &Client, version: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("rltraining.dev", version, "RLTrainingJob");
    Api::namespaced_with(client.clone(), "team", &ApiResource::from_gvk(&kind))
}

async fn stored_versions(client: &Client) -> Vec<String> {
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    definitions.get(CRD).await.unwrap().status.unwrap().stored_versions.unwrap_or_default()
}

/// Plays the kubelet of a pod.
async fn set_status(client: &Client, pod: &str, status: Value) {
    let pods = Api::<Pod>::namespaced(client.clone(), "team");
    let patch = Patch::Merge(json!({"status": status}));
    pods.patch_status(pod, &PatchParams::default(), &patch).await.unwrap();
}

fn container(state: Value) -> Value {
    json!([{
        "name": "trainer", "image": "i", "imageID": "", "ready": state.get("running").is_some(), "restartCount": 0,
        "state": state,
    }])
}

async fn has_phase(jobs: &Api<DynamicObject>, name: &str, phase: Phase) -> DynamicObject {
    let wanted = serde_json::to_value(phase).unwrap();
    eventually(&format!("{name} is {wanted}"), async || {
        let job = jobs.get(name).await.unwrap();
        (job.data["status"]["phase"] == wanted).then_some(job)
    })
    .await
}

#[tokio::test]
async fn a_job_runs_through_an_upgrade_to_the_next_version_of_the_api() {
    let Some(cluster) = installed(&Options::control_plane().without_scheduler()) else { return };
    let client = cluster.client().await.unwrap();
    let mut operator = start(&cluster, 0, &[], None).await;
    kubectl(&cluster, &["create", "namespace", "team"]);
    kubectl(&cluster, &["apply", "-n", "team", "-f", "examples/quickstart/job.yaml"]);
    let (alpha, beta) = (jobs_of(&client, "v1alpha1"), jobs_of(&client, "v1beta1"));
    let pods = Api::<Pod>::namespaced(client.clone(), "team");
    let pod = eventually("a pod is made", async || pods.get_opt("quickstart-trainer-0").await.unwrap()).await;
    let begun = "2026-01-01T00:00:00Z";
    let running = json!({
        "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": container(json!({"running": {"startedAt": begun}})),
    });
    set_status(&client, "quickstart-trainer-0", running).await;
    let before = has_phase(&alpha, "quickstart", Phase::Running).await;

    // The upgrade: another definition, and another process of the operator.
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), with_next_version().to_string()).unwrap();
    kubectl(&cluster, &["apply", "--server-side", "--force-conflicts", "-f", file.path().to_str().unwrap()]);
    terminate(&mut operator);
    let _operator = start(&cluster, 0, &[], None).await;
    let next = eventually("the next version is served", async || beta.get("quickstart").await.ok()).await;
    assert_eq!(next.data, before.data, "nothing is lost or added");
    assert_eq!(stored_versions(&client).await, ["v1alpha1", "v1beta1"]);
    let patch = Patch::Merge(json!({"metadata": {"labels": {"team": "a"}}}));
    beta.patch("quickstart", &PatchParams::default(), &patch).await.unwrap();
    assert_eq!(pods.get("quickstart-trainer-0").await.unwrap().metadata.uid, pod.metadata.uid);

    let ended = json!({"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": begun, "finishedAt": begun}});
    let succeeded = json!({
        "phase": "Succeeded", "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": container(ended),
    });
    set_status(&client, "quickstart-trainer-0", succeeded).await;
    let complete = has_phase(&beta, "quickstart", Phase::Succeeded).await;
    assert_eq!(complete.data["status"]["attempt"], 1);

    // A job of the next version is one like any other, and held against the same rules.
    let example = std::fs::read_to_string(root().join("examples/quickstart/job.yaml")).unwrap();
    let mut manifest: Value = serde_saphyr::from_str(&example.replace("v1alpha1", "v1beta1")).unwrap();
    manifest["metadata"]["name"] = "next".into();
    beta.create(&PostParams::default(), &serde_json::from_value(manifest.clone()).unwrap()).await.unwrap();
    eventually("its pod is made", async || pods.get_opt("next-trainer-0").await.unwrap()).await;
    manifest["metadata"]["name"] = "wrong".into();
    manifest["spec"]["workers"] = json!({"storage": {}});
    let wrong = serde_json::from_value(manifest).unwrap();
    let refused = beta.create(&PostParams::default(), &wrong).await.unwrap_err().to_string();
    assert!(refused.contains("storage needs either the claimName"), "{refused}");

    // Objects that are written again are stored in the next version, after which the first one can be
    // removed.
    for job in alpha.list(&ListParams::default()).await.unwrap() {
        let name = job.metadata.name.unwrap();
        let touch = Patch::Merge(json!({"metadata": {"annotations": {"example.com/stored": "v1beta1"}}}));
        beta.patch(&name, &PatchParams::default(), &touch).await.unwrap();
    }
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let stored = Patch::Merge(json!({"status": {"storedVersions": ["v1beta1"]}}));
    definitions.patch_status(CRD, &PatchParams::default(), &stored).await.unwrap();
    assert_eq!(stored_versions(&client).await, ["v1beta1"]);
}
