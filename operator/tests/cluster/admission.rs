//! The API server refuses with our messages.

use kube::api::PostParams;
use serde_json::{Value, json};

/// The messages that `rlctl validate` has for a manifest.
fn our_messages(manifest: &impl serde::Serialize) -> Vec<String> {
    let yaml = serde_saphyr::to_string(manifest).unwrap();
    rlt_api::validate(&yaml).unwrap_err().into_iter().map(|problem| problem.message).collect()
}

#[tokio::test]
async fn names_that_do_not_fit_pods_are_refused() {
    let Some(test) = crate::set("names").await else { return };
    for name in ["a".repeat(53).as_str(), "a.b", "1a", "4", "x.y.z"] {
        let manifest = test.manifest(name, &json!({}));
        let refusal = test.jobs().create(&PostParams::default(), &manifest).await.unwrap_err().to_string();
        let messages = our_messages(&manifest);
        assert!(messages.iter().all(|message| refusal.contains(message)), "{name}: {refusal}");
    }
    test.post(&"a".repeat(52), json!({})).await;
}

#[tokio::test]
async fn initial_fields_are_immutable_and_the_others_change_only_while_suspended() {
    let Some(test) = crate::set("changes").await else { return };
    test.post("fixed", json!({})).await;
    let change = async |patch: Value| {
        let patch = kube::api::Patch::Merge(json!({"spec": patch}));
        test.jobs().patch("fixed", &Default::default(), &patch).await.map_err(|error| error.to_string())
    };
    let refused = change(json!({"model": {"architecture": {"numLayers": 3}}})).await.unwrap_err();
    assert!(refused.contains("make a new job"), "{refused}");
    // A change of the specification cannot pass as a write of the status.
    let claim = json!({"spec": {"rollout": {"temperature": 0.5}}, "status": {"writes": 99}});
    let claim = kube::api::Patch::Merge(claim);
    let refused = test.jobs().patch("fixed", &Default::default(), &claim).await.unwrap_err().to_string();
    assert!(refused.contains("spec.rollout") && refused.contains("make a new job"), "{refused}");
    let refused = change(json!({"training": {"promptsPerStep": 64}})).await.unwrap_err();
    let these = "only steps, epochs, evaluateEvery, offload, reshardAfterForward and unshardedLayers";
    assert!(refused.contains(these), "{refused}");
    let refused = change(json!({"workers": {"resources": {"cpu": "2"}}})).await.unwrap_err();
    assert!(refused.contains("while runPolicy.suspend is true"), "{refused}");
    change(json!({"runPolicy": {"suspend": true}})).await.unwrap();
    change(json!({"workers": {"resources": {"cpu": "2"}}, "training": {"steps": 99}})).await.unwrap();
}

#[tokio::test]
async fn unknown_fields_are_refused_by_kubectl_and_applying_twice_changes_nothing() {
    let Some(test) = crate::set("kubectl").await else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("job.yaml");
    let write = |manifest: &Value| std::fs::write(&file, manifest.to_string()).unwrap();
    let apply = || test.cluster.kubectl().args(["apply", "-f"]).arg(&file).output().unwrap();
    let mut manifest = serde_json::to_value(test.manifest("applied", &json!({}))).unwrap();
    manifest["spec"]["rollout"]["topPP"] = 1.into();
    write(&manifest);
    let refused = apply();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("unknown field \"spec.rollout.topPP\""));
    manifest["spec"]["rollout"].as_object_mut().unwrap().remove("topPP");
    write(&manifest);
    assert!(apply().status.success());
    let version = async || {
        let metadata = test.jobs().get("applied").await.unwrap().metadata;
        (metadata.resource_version, metadata.generation)
    };
    // With the first change of a job that no operator has seen, its default status is stored.
    assert!(apply().status.success());
    let before = version().await;
    assert!(apply().status.success());
    assert_eq!(before.1, Some(1));
    assert_eq!(version().await, before, "applying the same again changes nothing");
}
