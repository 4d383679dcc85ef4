//! The overlays of the kustomize base: an API server accepts the rendered objects, and the operator accepts
//! its arguments.

use clap::Parser as _;
use rlt_objects::args::Args;
use rlt_objects::privileges::Privilege;
use serde_json::Value;

use super::*;

/// The rendered objects of an overlay.
fn rendered(cluster: &Cluster, overlay: &str) -> Vec<Value> {
    let text = kubectl(cluster, &["kustomize", &format!("charts/overlays/{overlay}")]);
    let documents = text.split("\n---\n");
    documents.map(|document| serde_saphyr::from_str(document).unwrap()).collect()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Vec<&'a Value> {
    objects.iter().filter(|object| object["kind"] == kind).collect()
}

/// The operator's parsed arguments of its container.
fn arguments(objects: &[Value]) -> Args {
    let container = &of_kind(objects, "Deployment")[0]["spec"]["template"]["spec"]["containers"][0];
    let flags = [
        ("RLT_TRAINER_IMAGE", "--trainer-image"),
        ("RLT_TRAINER_CUDA_IMAGE", "--trainer-cuda-image"),
        ("RLT_POD_PRIVILEGES", "--pod-privileges"),
        ("RLT_POD_DEFAULTS", "--pod-defaults"),
    ];
    let variables = container["env"].as_array().unwrap();
    let value = |name: &str| {
        let variable = variables.iter().find(|variable| variable["name"] == name)?;
        variable["value"].as_str()
    };
    let given = flags.iter().filter_map(|(name, flag)| Some(format!("{flag}={}", value(name)?)));
    Args::try_parse_from(["rlt-operator".to_owned()].into_iter().chain(given)).unwrap()
}

/// Applies each overlay on trial to a cluster that has the bundle, and reads what the overlays set.
pub(super) fn every_overlay_is_accepted_by_the_api_server_and_is_documented(cluster: &Cluster) {
    for overlay in std::fs::read_dir(root().join("charts/overlays")).unwrap() {
        let folder = overlay.unwrap().path();
        let folder = folder.to_str().unwrap();
        kubectl(cluster, &["apply", "--server-side", "--force-conflicts", "--dry-run=server", "-k", folder]);
    }
    let rdma = arguments(&rendered(cluster, "rdma")).pods();
    assert_eq!(rdma.privileges.allow, [Privilege::HostNetwork]);
    assert_eq!(
        (rdma.privileges.namespaces, rdma.privileges.capabilities),
        (vec!["team-a".to_owned()], vec!["IPC_LOCK".to_owned()])
    );
    assert!(rdma.defaults.workers().contains_key("tolerations"));
    let own = rendered(cluster, "own-registry");
    assert_eq!(arguments(&own).trainer_image, "registry.example.com/rlt-trainer:0.1.0");
    let pod = &of_kind(&own, "Deployment")[0]["spec"]["template"]["spec"];
    assert_eq!(pod["containers"][0]["image"], "registry.example.com/rlt-operator:0.1.0");
    let small = rendered(cluster, "small");
    assert_eq!(of_kind(&small, "Deployment")[0]["spec"]["replicas"], 1);
    assert!(of_kind(&small, "PodDisruptionBudget").is_empty());
}
