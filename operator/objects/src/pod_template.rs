//! `spec.workers.podTemplate`: which fields it may have, and its strategic merge over the operator's pod.
//! What a cluster's settings have to allow is in [`crate::privileges`]. Pure.

use std::sync::LazyLock;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, PodTemplateSpec};
use rlt_api::{Problem, ValidatedJob};
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::worker::TRAINER_CONTAINER;

/// The path of the template in a manifest.
pub const PATH: &str = "spec.workers.podTemplate";

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

/// Volumes of the operator; those of `spec.workers.pod.volumes` begin with `volume-`.
const OWN_VOLUMES: [&str; 4] = ["job", "storage", "tmp", "shared-memory"];
/// Beginnings of labels and annotations of the operator and of queues.
const OWN_PREFIXES: [&str; 2] = ["rltraining.dev/", "kueue.x-k8s.io/"];
/// Other labels of the operator.
const OWN_LABELS: [&str; 2] = ["app.kubernetes.io/managed-by", "app.kubernetes.io/name"];

/// The problems of a job's template, if it has one.
pub fn problems_of(job: &ValidatedJob) -> Vec<Problem> {
    job.spec().workers.pod_template.as_ref().map(problems).unwrap_or_default()
}

/// The problems of a template: fields that a pod does not have, and fields that it may not set.
pub fn problems(template: &Value) -> Vec<Problem> {
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

/// Variables and folders by which the operator identifies the trainer.
fn of_trainer(container: &Container, path: &str) -> Vec<Problem> {
    let names = container.env.iter().flatten().map(|variable| &variable.name);
    let reserved = names.filter(|name| rlt_api::is_reserved_variable(name));
    let variables = reserved.map(|name| refusal(&format!("{path}.env[{name}]"), Operator));
    let folders = container.volume_mounts.iter().flatten().map(|mount| &mount.mount_path);
    let reserved = folders.filter(|folder| is_reserved(folder));
    let folders = reserved.map(|folder| refusal(&format!("{path}.volumeMounts[{folder}]"), Operator));
    variables.chain(folders).collect()
}

/// Whether a folder is reserved however it is written.
fn is_reserved(folder: &str) -> bool {
    let parts: Vec<&str> = folder.split('/').filter(|part| !["", "."].contains(part)).collect();
    parts.contains(&"..") || rlt_api::is_reserved_folder(&format!("/{}", parts.join("/")))
}

fn of_volumes(spec: &PodSpec) -> Vec<Problem> {
    let names = spec.volumes.iter().flatten().map(|volume| volume.name.as_str());
    let own = names.filter(|name| OWN_VOLUMES.contains(name) || name.starts_with("volume-"));
    own.map(|name| refusal(&format!("{PATH}.spec.volumes[{name}]"), Operator)).collect()
}

/// The fields of an object that a template may not have.
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

/// A pod with a template merged over it. Names and labels that identify pods stay the operator's.
///
/// # Errors
/// When both together are no pod, which [`problems`] rules out.
pub fn lay_over(pod: Pod, template: &Value) -> Result<Pod, serde_json::Error> {
    let mut template = template.clone();
    harden(&mut template);
    let mut merged = serde_json::to_value(pod)?;
    rlt_api::overlay(&mut merged, &template);
    serde_json::from_value(merged)
}

/// Containers that the template adds are as restricted as the trainer's, unless it says otherwise: without
/// this Kubernetes' own defaults would hold, which are wider.
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
