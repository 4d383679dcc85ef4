//! Kubeflow Trainer's TrainJob: the command of its trainer, and the settings of its pods.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::fields::Target;
use super::job::ClusterJob;
use super::reader::{JobCommand, JobReader};
use super::resources::{self, count, num_gpus};
use super::shape::Shape;
use super::{pod, variables};
use crate::ConvertError;
use crate::launch::Launch;
use crate::rewards::is_hub_name;

/// Name of the job of a runtime, and of its container, that trains.
const NODE: &str = "node";
/// Fields of a TrainJob that code reads.
const OF_JOB: [&str; 7] = [
    "trainer",
    "initializer",
    "suspend",
    "managedBy",
    "runtimePatches",
    "podTemplateOverrides",
    "podSpecOverrides",
];
/// Fields of a trainer that code reads.
const OF_TRAINER: [&str; 6] = ["command", "args", "env", "numNodes", "numProcPerNode", "resourcesPerNode"];
/// Scheme of the hub in the address of a model or a data set.
const HUB: &str = "hf://";
/// Kinds of files that initializers load, each with its folder in a pod, and the field that replaces it.
const LOADED: [(&str, &str, &str); 2] =
    [("model", "/workspace/model", "model.hub"), ("dataset", "/workspace/dataset", "data.datasets")];

/// Reader of the jobs of Kubeflow Trainer, whose pods all run the command.
pub(super) struct TrainJobs;

impl JobReader for TrainJobs {
    fn field(&self) -> &'static str {
        "spec.trainer.command"
    }

    fn hint(&self) -> &'static str {
        "convert the script that its runtime starts"
    }

    fn runs_in_all_pods(&self) -> bool {
        true
    }

    fn command(&self, job: &ClusterJob) -> JobCommand {
        let lists = ["command", "args"].iter().filter_map(|field| trainer(job)[*field].as_array());
        JobCommand::Words(lists.flatten().filter_map(|word| word.as_str().map(str::to_owned)).collect())
    }

    fn environment(&self, job: &ClusterJob) -> BTreeMap<String, String> {
        environment(job)
    }

    fn shape(&self, job: &ClusterJob) -> Shape {
        shape(job)
    }

    fn translate(&self, job: &ClusterJob, launch: &mut Launch) {
        name_loaded(job, launch);
    }

    fn convert(
        &self,
        job: &ClusterJob,
        launch: &Launch,
        target: &mut Target<'_>,
    ) -> Result<(), ConvertError> {
        target.apply("train_job", job.kind_name(), &job.spec, &OF_JOB)?;
        let trainer = trainer(job);
        let fields = trainer.as_object().cloned().unwrap_or_default();
        target.apply("trainer", "TrainJob.trainer", &fields, &OF_TRAINER)?;
        resources::convert(&trainer["resourcesPerNode"], "TrainJob.trainer.resourcesPerNode", target);
        patches(job, target)?;
        variables::convert(&trainer["env"], "TrainJob.trainer.env", target);
        initializers(job, launch, target);
        Ok(())
    }
}

fn trainer(job: &ClusterJob) -> &Value {
    job.spec.get("trainer").unwrap_or(&Value::Null)
}

/// Returns the number of nodes, and of processes in each, which defaults to the number of GPUs.
fn shape(job: &ClusterJob) -> Shape {
    let trainer = trainer(job);
    let given = |number: u64| Some(number).filter(|number| *number > 0);
    let of_node = given(count(&trainer["numProcPerNode"]));
    Shape {
        num_pods: given(count(&trainer["numNodes"])),
        per_pod: of_node.or_else(|| given(num_gpus(&trainer["resourcesPerNode"]))),
    }
}

/// Returns the variables of the command, with those that Trainer sets for torchrun.
fn environment(job: &ClusterJob) -> BTreeMap<String, String> {
    let mut environment = variables::values(&trainer(job)["env"]);
    let shape = shape(job);
    let mut set = |name: &str, value: Option<u64>| {
        if let Some(value) = value {
            environment.insert(name.to_owned(), value.to_string());
        }
    };
    set("PET_NNODES", shape.num_pods);
    set("PET_NPROC_PER_NODE", shape.per_pod);
    set("PET_NODE_RANK", Some(0));
    environment
}

/// Returns the hub name of the model or data set that an initializer loads.
fn hub_name(job: &ClusterJob, kind: &str) -> Option<String> {
    let address = job.spec.get("initializer")?[kind]["storageUri"].as_str()?;
    let parts: Vec<_> = address.strip_prefix(HUB)?.split('/').filter(|part| !part.is_empty()).collect();
    // The address of a data set may end with the folder whose files are loaded.
    let is_name = parts.len() == 2 || kind == "dataset";
    let name = parts.get(..2)?.join("/");
    (is_name && is_hub_name(&name)).then_some(name)
}

/// Replaces the folders of initializers in the arguments of a launch by hub names.
fn name_loaded(job: &ClusterJob, launch: &mut Launch) {
    for (kind, folder, _) in LOADED {
        let Some(name) = hub_name(job, kind) else { continue };
        for argument in &mut launch.arguments {
            let before = argument.trim_end_matches('/').strip_suffix(folder);
            if let Some(before) = before.filter(|before| before.is_empty() || before.ends_with('=')) {
                *argument = format!("{before}{name}");
            }
        }
    }
}

/// Converts the initializers.
fn initializers(job: &ClusterJob, launch: &Launch, target: &mut Target<'_>) {
    for (kind, folder, field) in LOADED {
        let Some(initializer) = job.spec.get("initializer").map(|all| &all[kind]) else { continue };
        let Some(address) = initializer.get("storageUri") else { continue };
        let key = format!("TrainJob.initializer.{kind}");
        let uri = format!("{key}.storageUri");
        let name = hub_name(job, kind);
        let is_named = |name: &String| {
            let ending = format!("={name}");
            launch.arguments.iter().any(|argument| argument == name || argument.ends_with(&ending))
        };
        match name {
            Some(name) if is_named(&name) => {
                target.converted(&uri, address, field);
                if address.as_str().is_some_and(|address| !address.trim_end_matches('/').ends_with(&name)) {
                    let text =
                        format!("{uri} loads one folder of {name}: say its files by config and split.");
                    target.draft.remark("data", text);
                }
            }
            Some(_) => {
                target.absent(&uri, address, &format!("no setting of the command is {folder}: say {field}"));
            }
            None => {
                let reason = format!(
                    "only repositories of the hub (hf://OWNER/NAME) are downloaded: mount others by workers.pod.volumes, in place of {folder}"
                );
                target.absent(&uri, address, &reason);
            }
        }
        variables::convert(&initializer["env"], &format!("{key}.env"), target);
        if let Some(secret) = initializer["secretRef"]["name"].as_str() {
            let token = json!([{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": secret, "key": "HF_TOKEN"}}}]);
            variables::convert(&token, &format!("{key}.secretRef"), target);
        }
    }
}

/// Converts patches of the runtime's pods: those of Trainer 2.3, and overrides of earlier releases.
fn patches(job: &ClusterJob, target: &mut Target<'_>) -> Result<(), ConvertError> {
    let list = |field: &str| job.spec.get(field).and_then(Value::as_array).cloned().unwrap_or_default();
    for patch in list("runtimePatches") {
        let template = &patch["trainingRuntimeSpec"]["template"];
        labels(&template["metadata"], "TrainJob.runtimePatches", target);
        for replicated in template["spec"]["replicatedJobs"].as_array().into_iter().flatten() {
            let name = replicated["name"].as_str().unwrap_or_default();
            let pod = &replicated["template"]["spec"]["template"];
            one_patch(name, pod, "TrainJob.runtimePatches", target)?;
        }
    }
    for field in ["podTemplateOverrides", "podSpecOverrides"] {
        for patch in list(field) {
            for job in patch["targetJobs"].as_array().into_iter().flatten() {
                let name = job["name"].as_str().unwrap_or_default();
                one_patch(name, &patch, &format!("TrainJob.{field}"), target)?;
            }
        }
    }
    Ok(())
}

fn one_patch(job: &str, pod: &Value, path: &str, target: &mut Target<'_>) -> Result<(), ConvertError> {
    let path = format!("{path}.{job}");
    if job != NODE {
        target.absent(&path, pod, "there is one kind of pods, the workers, which download models and data");
        return Ok(());
    }
    pod::convert(pod, Some(NODE), &path, target)
}

/// Converts labels and annotations of the runtime's JobSet, which its pods do not have.
fn labels(metadata: &Value, path: &str, target: &mut Target<'_>) {
    for kind in ["labels", "annotations"] {
        let entries: Map<String, Value> = pod::of_users(metadata[kind].as_object().unwrap_or(&Map::new()));
        if !entries.is_empty() {
            let reason = format!("there is no JobSet: say them in metadata.{kind} or workers.pod.{kind}");
            target.absent(&format!("{path}.{kind}"), &metadata[kind], &reason);
        }
    }
}
