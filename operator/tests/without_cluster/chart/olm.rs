//! The bundle for the Operator Lifecycle Manager: the objects of the plain bundle in its form, judged by its
//! own library.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::{objects, of_kind, read, root};

/// Folder of the bundle, as `opm` and `operator-sdk` expect it.
const FOLDER: &str = "charts/olm";
/// Kinds that the plain bundle has and OLM makes itself, of `ClusterServiceVersion`, or the operator does.
const NOT_IN_BUNDLE: [&str; 10] = [
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "Deployment",
    "Lease",
    "NetworkPolicy",
    "Role",
    "RoleBinding",
    "Secret",
    "ServiceAccount",
];

/// The files of the bundle by their paths in it.
fn files() -> BTreeMap<String, String> {
    let plain = objects(&read("charts/kustomize/rl-operator.yaml"));
    let mut files = BTreeMap::new();
    let mut add = |name: &str, object: &Value| {
        files.insert(format!("manifests/{name}.yaml"), serde_saphyr::to_string(object).unwrap());
    };
    add("rl-operator.clusterserviceversion", &cluster_service_version(&plain));
    add("rltraining.dev_rltrainingjobs", of_kind(&plain, "CustomResourceDefinition")[0]);
    for object in plain.iter().filter(|object| !NOT_IN_BUNDLE.contains(&object["kind"].as_str().unwrap())) {
        let (kind, name) = (object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap());
        add(&format!("{name}_{}", kind.to_lowercase()), &of_any_namespace(object));
    }
    for role in of_kind(&plain, "ClusterRole").into_iter().filter(|role| is_for_people(role)) {
        add(&format!("{}_clusterrole", role["metadata"]["name"].as_str().unwrap()), role);
    }
    let package = "operators.operatorframework.io.bundle";
    let annotations = json!({"annotations": {
        format!("{package}.mediatype.v1"): "registry+v1",
        format!("{package}.manifests.v1"): "manifests/",
        format!("{package}.metadata.v1"): "metadata/",
        format!("{package}.package.v1"): "rl-operator",
        format!("{package}.channels.v1"): "alpha",
        format!("{package}.channel.default.v1"): "alpha",
    }});
    files.insert("metadata/annotations.yaml".into(), serde_saphyr::to_string(&annotations).unwrap());
    files
}

/// The roles for people; the operator's own is in the `ClusterServiceVersion`.
fn is_for_people(role: &Value) -> bool {
    role["metadata"]["name"] != "rl-operator"
}

/// OLM chooses the namespace.
fn of_any_namespace(object: &Value) -> Value {
    let mut object = object.clone();
    object["metadata"].as_object_mut().unwrap().remove("namespace");
    object
}

fn cluster_service_version(plain: &[Value]) -> Value {
    let deployment = of_kind(plain, "Deployment")[0];
    let own_role = of_kind(plain, "ClusterRole").into_iter().find(|role| !is_for_people(role)).unwrap();
    let rules = |role: &Value| json!([{"serviceAccountName": "rl-operator", "rules": role["rules"]}]);
    let version = env!("CARGO_PKG_VERSION");
    let example: Value = serde_saphyr::from_str(&read("examples/quickstart/job.yaml")).unwrap();
    let mode = |name: &str| json!({"type": name, "supported": name == "AllNamespaces"});
    let modes = ["OwnNamespace", "SingleNamespace", "MultiNamespace", "AllNamespaces"].map(mode);
    json!({
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": format!("rl-operator.v{version}"),
            "namespace": "placeholder",
            "annotations": {
                "alm-examples": serde_json::to_string_pretty(&json!([example])).unwrap(),
                "capabilities": "Full Lifecycle",
                "categories": "AI/Machine Learning",
                "containerImage": deployment["spec"]["template"]["spec"]["containers"][0]["image"],
                "description": "Reinforcement learning and supervised training of language models",
            },
        },
        "spec": {
            "displayName": "rltraining",
            "description": "Trains language models by reinforcement learning. One resource, `RLTrainingJob`, is the \
                            whole interface: data, rewards, algorithm, and the workers that train.",
            "version": version,
            "maturity": "alpha",
            "minKubeVersion": "1.33.0",
            "keywords": ["reinforcement learning", "language models", "training"],
            "provider": {"name": "rltraining"},
            "installModes": modes,
            "install": {"strategy": "deployment", "spec": {
                "permissions": rules(of_kind(plain, "Role")[0]),
                "clusterPermissions": rules(own_role),
                "deployments": [{
                    "name": "rl-operator",
                    "label": deployment["metadata"]["labels"],
                    "spec": deployment["spec"],
                }],
            }},
            "customresourcedefinitions": {"owned": [{
                "name": "rltrainingjobs.rltraining.dev",
                "version": "v1alpha1",
                "kind": "RLTrainingJob",
                "displayName": "RL training job",
                "description": "A reinforcement learning or supervised training job.",
            }]},
        },
    })
}

/// Every file that is there, by its path in the folder.
fn present() -> BTreeMap<String, String> {
    let mut present = BTreeMap::new();
    for part in ["manifests", "metadata"] {
        for entry in std::fs::read_dir(root().join(FOLDER).join(part)).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            present.insert(format!("{part}/{name}"), std::fs::read_to_string(path).unwrap());
        }
    }
    present
}

/// Writes the bundle from the plain one.
pub(crate) fn write() {
    for (path, text) in files() {
        let path = root().join(FOLDER).join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
}

#[test]
fn the_bundle_for_olm_is_the_plain_one_in_its_form_and_its_library_finds_nothing_wrong() {
    let folder = root().join(FOLDER);
    assert!(present() == files(), "{FOLDER} is old: run `make generate`");
    let Some(found) = errors(&folder) else { return };
    assert_eq!(found, Vec::<String>::new());
    // Hidden folders, such as temporary ones, are passed over by the library.
    let temporary = tempfile::tempdir().unwrap();
    let without_definition = temporary.path().join("bundle");
    std::fs::create_dir(&without_definition).unwrap();
    let service_version = "rl-operator.clusterserviceversion.yaml";
    let from = folder.join("manifests").join(service_version);
    std::fs::copy(from, without_definition.join(service_version)).unwrap();
    let found = errors(&without_definition).unwrap_or_default();
    assert!(found.iter().any(|error| error.contains("RLTrainingJob")), "{found:?}");
}

/// The library's errors for a bundle. It also warns that there is no icon, and of APIs that
/// Kubernetes 1.25 removed: it takes roles about EndpointSlices and Events, which name no version, for such.
fn errors(folder: &Path) -> Option<Vec<String>> {
    let found = rlt_cluster::olm_bundle().unwrap()?.arg(folder).output().unwrap();
    assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
    let lines = String::from_utf8(found.stdout).unwrap();
    Some(lines.lines().filter(|line| line.starts_with("error:")).map(str::to_owned).collect())
}
