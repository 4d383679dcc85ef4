//! `spec.workers.podTemplate`: the fields that it may have, and its strategic merge over the operator's pod.
//! [`crate::privileges`] checks the fields that a cluster's settings have to allow.

use std::sync::LazyLock;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodTemplateSpec};
use rlt_api::{Problem, ValidatedJob};
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::worker::TRAINER_CONTAINER;

/// The path of the template in a manifest.
pub const PATH: &str = "spec.workers.podTemplate";

/// Maximum size of a template as JSON, in bytes: a hundred times a long template, and about a tenth of the
/// largest job that the API server stores.
pub const MAX_BYTES: usize = 128 * 1024;

/// Maximum number of problems that are reported for a template that matches the schema.
const MAX_PROBLEMS: usize = 100;

/// The schema of a template, as Kubernetes' types declare it.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let settings = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<PodTemplateSpec>().to_value();
    forget_descriptions(&mut schema);
    schema
});

/// The owner of a field that a template may not have.
#[derive(Clone, Copy)]
enum Owner {
    /// The operator sets the field.
    Operator,
    /// The job sets it by another field.
    Field(&'static str),
}

use Owner::{Field, Operator};

/// Fields of a pod's specification that a template may not have.
const OF_PODS: [(&str, Owner); 14] = [
    ("restartPolicy", Operator),
    ("hostname", Operator),
    ("subdomain", Operator),
    ("nodeName", Operator),
    ("schedulingGates", Operator),
    ("ephemeralContainers", Operator),
    ("activeDeadlineSeconds", Field("spec.runPolicy.activeDeadlineSeconds")),
    ("terminationGracePeriodSeconds", Field("spec.runPolicy.terminationGracePeriodSeconds")),
    ("serviceAccountName", Field("spec.workers.pod.serviceAccountName")),
    ("serviceAccount", Field("spec.workers.pod.serviceAccountName")),
    ("runtimeClassName", Field("spec.workers.pod.runtimeClassName")),
    ("schedulerName", Field("spec.workers.schedulerName")),
    ("priorityClassName", Field("spec.workers.priorityClassName")),
    ("priority", Field("spec.workers.priorityClassName")),
];

/// Fields of the trainer's container that a template may not have.
const OF_TRAINER: [(&str, Owner); 9] = [
    ("command", Operator),
    ("args", Operator),
    ("workingDir", Operator),
    ("terminationMessagePath", Operator),
    ("terminationMessagePolicy", Operator),
    ("restartPolicy", Operator),
    ("image", Field("spec.workers.image")),
    ("imagePullPolicy", Field("spec.workers.pod.imagePullPolicy")),
    ("resources", Field("spec.workers.resources")),
];

/// Names of the operator's volumes. Names of volumes from `spec.workers.pod.volumes` begin with `volume-`.
const OWN_VOLUMES: [&str; 4] = ["job", "storage", "tmp", "shared-memory"];
/// Prefixes of the labels and annotations of the operator and of Kueue.
const OWN_PREFIXES: [&str; 2] = ["rltraining.dev/", "kueue.x-k8s.io/"];
/// Other labels of the operator.
const OWN_LABELS: [&str; 2] = ["app.kubernetes.io/managed-by", "app.kubernetes.io/name"];

/// Returns the problems of a job's template; none without a template.
pub fn problems_of(job: &ValidatedJob) -> Vec<Problem> {
    job.spec().workers.pod_template.as_ref().map(problems).unwrap_or_default()
}

/// Returns the problems of a template: fields that a pod does not have, and fields that a template may not
/// set.
pub fn problems(template: &Value) -> Vec<Problem> {
    let num_bytes = template.to_string().len();
    if num_bytes > MAX_BYTES {
        let message = format!("has {num_bytes} bytes as JSON; at most {MAX_BYTES} are taken");
        return vec![problem(PATH, message)];
    }
    let of_schema = rlt_api::check_schema(PATH, &SCHEMA, template);
    if !of_schema.is_empty() {
        return of_schema;
    }
    let template: PodTemplateSpec = match serde_json::from_value(template.clone()) {
        Ok(template) => template,
        Err(error) => return vec![problem(PATH, format!("is not the template of a pod: {error}"))],
    };
    let mut found = of_metadata(&template);
    let spec = serde_json::to_value(&template.spec).unwrap_or_default();
    found.extend(owned(&spec, &OF_PODS, &format!("{PATH}.spec")));
    if let Some(spec) = &template.spec {
        found.extend(of_containers(spec));
        found.extend(of_volumes(spec));
    }
    found.truncate(MAX_PROBLEMS);
    found
}

fn of_metadata(template: &PodTemplateSpec) -> Vec<Problem> {
    let path = format!("{PATH}.metadata");
    let metadata = serde_json::to_value(&template.metadata).unwrap_or_default();
    let fields = metadata.as_object().into_iter().flatten().map(|(name, _)| name);
    let others = fields.filter(|name| !["labels", "annotations"].contains(&name.as_str()));
    let mut found: Vec<_> = others.map(|name| refusal(&format!("{path}.{name}"), Operator)).collect();
    let metadata = template.metadata.clone().unwrap_or_default();
    let is_own = |name: &String| OWN_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    let labels = metadata.labels.unwrap_or_default();
    let own_labels = labels.keys().filter(|name| is_own(name) || OWN_LABELS.contains(&name.as_str()));
    found.extend(own_labels.map(|name| refusal(&format!("{path}.labels.{name}"), Operator)));
    let annotations = metadata.annotations.unwrap_or_default();
    let own = annotations.keys().filter(|name| is_own(name));
    found.extend(own.map(|name| refusal(&format!("{path}.annotations.{name}"), Operator)));
    found
}

fn of_containers(spec: &PodSpec) -> Vec<Problem> {
    let mut found = Vec::new();
    let path = |name: &str| format!("{PATH}.spec.containers[{name}]");
    for container in &spec.containers {
        let path = path(&container.name);
        if container.name == TRAINER_CONTAINER {
            let fields = serde_json::to_value(container).unwrap_or_default();
            found.extend(owned(&fields, &OF_TRAINER, &path));
            found.extend(of_trainer(container, &path));
        } else if container.image.is_none() {
            let hint = format!("the trainer's container is `{TRAINER_CONTAINER}`");
            let message = format!("is missing, and the operator makes no such container; {hint}");
            found.push(problem(&format!("{path}.image"), message));
        }
    }
    let init = spec.init_containers.iter().flatten();
    let taken = init.filter(|container| container.name == TRAINER_CONTAINER);
    found.extend(taken.map(|one| refusal(&format!("{PATH}.spec.initContainers[{}]", one.name), Operator)));
    found
}

/// Returns a problem for each reserved variable and each reserved mount path of the trainer's container.
fn of_trainer(container: &Container, path: &str) -> Vec<Problem> {
    let names = container.env.iter().flatten().map(|variable| &variable.name);
    let reserved = names.filter(|name| rlt_api::is_reserved_variable(name));
    let variables = reserved.map(|name| refusal(&format!("{path}.env[{name}]"), Operator));
    let folders = container.volume_mounts.iter().flatten().map(|mount| &mount.mount_path);
    let reserved = folders.filter(|folder| is_reserved(folder));
    let folders = reserved.map(|folder| refusal(&format!("{path}.volumeMounts[{folder}]"), Operator));
    variables.chain(folders).collect()
}

/// Whether a folder is reserved after empty segments and `.` are removed. A path with `..` always is.
fn is_reserved(folder: &str) -> bool {
    let parts: Vec<&str> = folder.split('/').filter(|part| !["", "."].contains(part)).collect();
    parts.contains(&"..") || rlt_api::is_reserved_folder(&format!("/{}", parts.join("/")))
}

fn of_volumes(spec: &PodSpec) -> Vec<Problem> {
    let names = spec.volumes.iter().flatten().map(|volume| volume.name.as_str());
    let own = names.filter(|name| OWN_VOLUMES.contains(name) || name.starts_with("volume-"));
    own.map(|name| refusal(&format!("{PATH}.spec.volumes[{name}]"), Operator)).collect()
}

/// Returns a problem for each of `fields` that the object sets.
fn owned(object: &Value, fields: &[(&str, Owner)], path: &str) -> Vec<Problem> {
    let given = fields.iter().filter(|(name, _)| object.get(name).is_some_and(|value| !value.is_null()));
    given.map(|(name, owner)| refusal(&format!("{path}.{name}"), *owner)).collect()
}

fn refusal(path: &str, owner: Owner) -> Problem {
    match owner {
        Operator => problem(path, "is set by the operator".into()),
        Field(field) => problem(path, format!("is set by {field}")),
    }
}

fn problem(path: &str, message: String) -> Problem {
    Problem { path: path.to_owned(), message, ..Problem::default() }
}

/// Merges a template over a pod. [`problems`] refuses templates that set names or labels by which the
/// operator identifies pods.
///
/// # Errors
/// When the result is not a pod, which [`problems`] rules out.
pub fn lay_over(pod: Pod, template: &Value) -> Result<Pod, serde_json::Error> {
    let mut template = template.clone();
    harden(&mut template);
    let mut merged = serde_json::to_value(pod)?;
    rlt_api::overlay(&mut merged, &template);
    serde_json::from_value(merged)
}

/// Restricts the containers that a template adds like the trainer's container, unless the template sets these
/// fields. Kubernetes' defaults would grant more privileges.
fn harden(template: &mut Value) {
    for list in ["containers", "initContainers"] {
        let containers = template.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            if container["name"] == TRAINER_CONTAINER {
                continue;
            }
            let restricted = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
            let own = container["securityContext"].take();
            let mut context = restricted;
            if own["privileged"] == true {
                // Kubernetes refuses a privileged container that may not gain privileges.
                context["allowPrivilegeEscalation"] = true.into();
            }
            rlt_api::overlay(&mut context, &own);
            container["securityContext"] = context;
        }
    }
}

fn forget_descriptions(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    fields.retain(|name, value| name != "description" || !value.is_string());
    for (name, value) in fields.iter_mut() {
        match name.as_str() {
            "properties" => {
                value
                    .as_object_mut()
                    .into_iter()
                    .flat_map(|all| all.values_mut())
                    .for_each(forget_descriptions);
            }
            "items" | "additionalProperties" => forget_descriptions(value),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_of_any_size_costs_a_bounded_number_of_short_problems() {
        let fields = |num: usize| -> Value {
            (0..num)
                .map(|idx| (format!("field{idx}"), json!({"a": [1, 2, 3]})))
                .collect::<serde_json::Map<_, _>>()
                .into()
        };
        let variables: Vec<_> = (0..2000).map(|_| json!({"name": "RANK", "value": "1"})).collect();
        let reserved = json!({"spec": {"containers": [{"name": TRAINER_CONTAINER, "env": variables}]}});
        for (template, num_problems) in [
            (json!({"spec": fields(60_000)}), 1),
            (json!({"spec": fields(3_000)}), 101),
            (json!({"spec": {"containers": [], "a".repeat(100_000): 1}}), 1),
            (reserved, 100),
        ] {
            let found = problems(&template);
            assert_eq!(found.len(), num_problems);
            assert!(found.iter().all(|problem| problem.to_string().len() < 4096));
        }
    }

    #[test]
    fn a_template_that_is_too_large_is_refused_by_its_size() {
        let annotations = json!({"note": "a".repeat(MAX_BYTES)});
        let found = problems(&json!({"metadata": {"annotations": annotations}}));
        assert!(found[0].message.contains("at most 131072 are taken"), "{found:?}");
    }
}
