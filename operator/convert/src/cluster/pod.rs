//! Conversion of pod templates: settings of another operator's pods become settings of all workers.

use serde_json::{Map, Value, json};

use super::fields::Target;
use super::{resources, variables, volumes};
use crate::ConvertError;

/// Prefixes of labels and annotations that other operators and tools set for themselves.
const FOREIGN: [&str; 5] = [
    "ray.io/",
    "trainer.kubeflow.org/",
    "kubectl.kubernetes.io/",
    "jobset.sigs.k8s.io/",
    "app.kubernetes.io/",
];
/// Prefix of Kueue's labels and annotations.
const KUEUE: &str = "kueue.x-k8s.io/";
/// Fields of a pod that code reads.
const OF_POD: [&str; 6] =
    ["containers", "initContainers", "volumes", "tolerations", "imagePullSecrets", "affinity"];
/// Fields of a container that code reads.
const OF_CONTAINER: [&str; 4] = ["env", "resources", "volumeMounts", "securityContext"];

/// Converts the pod template at `path`. The trainer's container is the one named `trainer`, or else the first
/// one.
pub(super) fn convert(
    template: &Value,
    trainer: Option<&str>,
    path: &str,
    target: &mut Target<'_>,
) -> Result<(), ConvertError> {
    metadata(&template["metadata"], path, target);
    let Some(spec) = template["spec"].as_object() else { return Ok(()) };
    target.apply("pod", path, spec, &OF_POD)?;
    tolerations(&template["spec"]["tolerations"], path, target);
    pull_secrets(&template["spec"]["imagePullSecrets"], path, target);
    affinity(&template["spec"]["affinity"], path, target);
    let others = |field: &str| template["spec"][field].as_array().cloned().unwrap_or_default();
    for container in others("initContainers") {
        let name = container["name"].as_str().unwrap_or_default();
        let reason = "say workers.podTemplate.spec.initContainers, if the job needs it";
        target.absent(&format!("{path}.initContainers.{name}"), &container["image"], reason);
    }
    let containers = others("containers");
    let is_trainer = |container: &Value| trainer.is_some_and(|name| container["name"] == name);
    let main = containers.iter().position(is_trainer).or(trainer.is_none().then_some(0));
    for (index, container) in containers.iter().enumerate() {
        let name = container["name"].as_str().unwrap_or_default();
        let path = format!("{path}.{name}");
        if Some(index) == main {
            one_container(container, &template["spec"]["volumes"], &path, target)?;
        } else {
            let reason = "say workers.podTemplate.spec.containers, if the job needs it";
            target.absent(&path, &container["image"], reason);
        }
    }
    Ok(())
}

fn one_container(
    container: &Value,
    pod_volumes: &Value,
    path: &str,
    target: &mut Target<'_>,
) -> Result<(), ConvertError> {
    let Some(fields) = container.as_object() else { return Ok(()) };
    target.apply("container", path, fields, &OF_CONTAINER)?;
    resources::convert(&container["resources"], &format!("{path}.resources"), target);
    variables::convert(&container["env"], &format!("{path}.env"), target);
    volumes::convert(pod_volumes, &container["volumeMounts"], &format!("{path}.volumeMounts"), target);
    security(&container["securityContext"], path, target)
}

/// Converts added capabilities; other settings of security have no equivalent.
fn security(context: &Value, path: &str, target: &mut Target<'_>) -> Result<(), ConvertError> {
    let Some(fields) = context.as_object() else { return Ok(()) };
    let added = context["capabilities"]["add"].as_array().cloned().unwrap_or_default();
    let key = format!("{path}.securityContext.capabilities");
    target.extend(&key, &context["capabilities"], "workers.pod.capabilities", added);
    let mut others = fields.clone();
    others.remove("capabilities");
    if others.is_empty() {
        return Ok(());
    }
    let context = Map::from_iter([("securityContext".to_owned(), Value::Object(others))]);
    target.apply("container", path, &context, &[])
}

/// Converts labels and annotations of a pod. Those of Kueue's topology become the topology of the workers.
fn metadata(metadata: &Value, path: &str, target: &mut Target<'_>) {
    for (kind, field) in [("labels", "workers.pod.labels"), ("annotations", "workers.pod.annotations")] {
        let given = &metadata[kind];
        let entries = given.as_object().cloned().unwrap_or_default();
        let key = format!("{path}.metadata.{kind}");
        target.merge(&key, given, field, of_users(&entries));
        for (name, value) in entries.iter().filter(|(name, _)| name.starts_with(KUEUE)) {
            topology(name, value, &format!("{key}.{name}"), target);
        }
    }
}

/// Returns the labels or annotations that users have set, without those of tools.
pub(super) fn of_users(entries: &Map<String, Value>) -> Map<String, Value> {
    let is_own = |name: &String| !FOREIGN.iter().chain([&KUEUE]).any(|other| name.starts_with(other));
    entries
        .iter()
        .filter(|(name, _)| is_own(name))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn topology(name: &str, value: &Value, key: &str, target: &mut Target<'_>) {
    match name.trim_start_matches(KUEUE) {
        "podset-required-topology" => target.set(key, value, "workers.topology.required", value.clone()),
        "podset-preferred-topology" => target.set(key, value, "workers.topology.preferred", value.clone()),
        _ => target.absent(key, value, "say workers.topology"),
    }
}

fn tolerations(tolerations: &Value, path: &str, target: &mut Target<'_>) {
    let key = format!("{path}.tolerations");
    let mut converted = Vec::new();
    for toleration in tolerations.as_array().into_iter().flatten() {
        let mut fields = toleration.as_object().cloned().unwrap_or_default();
        if fields.remove("tolerationSeconds").is_some() {
            let reason = "tolerations have no time: say them in workers.podTemplate";
            target.absent(&key, toleration, reason);
            continue;
        }
        fields.retain(|_, value| !value.is_null() && *value != "");
        converted.push(Value::Object(fields));
    }
    target.extend(&key, tolerations, "workers.tolerations", converted);
}

fn pull_secrets(secrets: &Value, path: &str, target: &mut Target<'_>) {
    let names = secrets.as_array().into_iter().flatten().map(|secret| secret["name"].clone()).collect();
    target.extend(&format!("{path}.imagePullSecrets"), secrets, "workers.imagePullSecrets", names);
}

/// Converts node affinity. Pod affinity has no equivalent: its labels select pods of the other operator.
fn affinity(affinity: &Value, path: &str, target: &mut Target<'_>) {
    for (kind, value) in affinity.as_object().into_iter().flatten() {
        let key = format!("{path}.affinity.{kind}");
        if kind == "nodeAffinity" {
            let field = "workers.podTemplate.spec.affinity";
            target.set(&key, value, field, json!({"nodeAffinity": value}));
            // Kubernetes' schema of a pod template requires containers.
            target.draft.set("workers.podTemplate.spec.containers", json!([{"name": "trainer"}]));
        } else {
            target.absent(&key, value, "say workers.topology: its labels are those of other pods");
        }
    }
}
