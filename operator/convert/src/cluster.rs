//! Jobs of other operators: KubeRay's RayJob and Kubeflow Trainer's TrainJob.
//!
//! The command of a job is read as a script, and its pods become the workers. Each field of the manifest has
//! an outcome, whose key begins with the kind.

mod command;
mod document;
mod fields;
pub(crate) mod job;
mod pod;
mod ray;
mod reader;
mod references;
mod resources;
mod shape;
mod train;
mod variables;
mod volumes;

use std::collections::BTreeMap;

use rlt_api::queue::{MULTIKUEUE, PRIORITY_LABEL, QUEUE_LABEL};
use serde_json::{Map, Value};

use crate::ConvertError;
use crate::draft::Draft;
use crate::launch::Launch;
use crate::outcome::Outcome;
use crate::shell::limits::Budget;
pub use document::Manifest;
use fields::Target;
use job::{ClusterJob, Kind};
use ray::RayJobs;
use reader::JobReader;
use train::TrainJobs;

/// Label by which a RayJob names the PriorityClass of its pods.
const RAY_PRIORITY_LABEL: &str = "ray.io/priority-class-name";

fn reader_of(kind: Kind) -> &'static dyn JobReader {
    match kind {
        Kind::RayJob => &RayJobs,
        Kind::TrainJob => &TrainJobs,
    }
}

/// Returns the launches of all jobs of a manifest.
pub(crate) fn launches(
    manifest: &Manifest,
    environment: &BTreeMap<String, String>,
    arguments: &[String],
) -> Result<(Vec<Launch>, Vec<String>), ConvertError> {
    let (mut all, mut notes, mut first_error) = (Vec::new(), Vec::new(), None);
    let mut budget = Budget::default();
    for job in &manifest.jobs {
        match command::launches(&mut budget, reader_of(job.kind), job, &manifest.files, environment) {
            Ok((launches, more)) => {
                all.extend(launches);
                notes.extend(more);
            }
            Err(error) => {
                let name = job.name().unwrap_or_default();
                notes.push(format!("the {} {name} is left out: {error}", job.kind_name()));
                first_error.get_or_insert(error);
            }
        }
    }
    if let Some(error) = first_error.filter(|_| all.is_empty()) {
        return Err(error);
    }
    all.iter_mut().for_each(|launch| launch.take(arguments));
    Ok((all, notes))
}

/// Converts the fields of the job to which a launch belongs, if there is one.
pub(crate) fn convert(
    launch: &Launch,
    draft: &mut Draft,
    outcomes: &mut Vec<Outcome>,
) -> Result<(), ConvertError> {
    let Some(job) = &launch.cluster else { return Ok(()) };
    let mut target = Target { draft, outcomes };
    metadata(job, &mut target);
    suspension(job, &mut target);
    controller(job, &mut target);
    let reader = reader_of(job.kind);
    reader.convert(job, launch, &mut target)?;
    shape::compare(job.kind_name(), reader.shape(job), target.draft);
    if !target.draft.has("workers.storage") {
        target.draft.remark(
            "workers",
            "without storage checkpoints are lost with their pods, and a restart begins at the first step: say \
             storage.claimName of a claim that exists, or storage.size.",
        );
    }
    Ok(())
}

/// Converts namespace, labels and annotations of a job. Labels of its queue are those of Kueue for every
/// kind.
fn metadata(job: &ClusterJob, target: &mut Target<'_>) {
    if let Some(namespace) = job.metadata.get("namespace") {
        target.draft.set_metadata("namespace", namespace.clone());
    }
    for kind in ["labels", "annotations"] {
        let empty = Map::new();
        let entries = job.metadata.get(kind).and_then(Value::as_object).unwrap_or(&empty);
        let mut kept = pod::of_users(entries);
        for (name, value) in entries.iter().filter(|(name, _)| name.starts_with("kueue.x-k8s.io/")) {
            if [QUEUE_LABEL, PRIORITY_LABEL].contains(&name.as_str()) {
                kept.insert(name.clone(), value.clone());
            } else {
                let key = format!("{}.metadata.{kind}.{name}", job.kind_name());
                target.absent(&key, value, "the operator reads the queue and its priority alone");
            }
        }
        if !kept.is_empty() {
            target.draft.set_metadata(kind, kept);
        }
        if let Some(class) = entries.get(RAY_PRIORITY_LABEL) {
            let key = format!("RayJob.metadata.{kind}.{RAY_PRIORITY_LABEL}");
            target.set(&key, class, "workers.priorityClassName", class.clone());
        }
    }
}

/// Converts the suspension of a job, unless the job is suspended because it waits for its queue.
fn suspension(job: &ClusterJob, target: &mut Target<'_>) {
    let Some(suspend) = job.spec.get("suspend").filter(|suspend| !suspend.is_null()) else { return };
    let key = format!("{}.suspend", job.kind_name());
    let has_queue = job.metadata.get("labels").is_some_and(|labels| labels[QUEUE_LABEL].is_string());
    if has_queue {
        let reason = "a job with a queue waits for it by itself, and Kueue does not write runPolicy.suspend";
        target.inherent(&key, suspend, reason);
    } else {
        target.set(&key, suspend, "runPolicy.suspend", suspend.clone());
    }
}

fn controller(job: &ClusterJob, target: &mut Target<'_>) {
    let Some(controller) = job.spec.get("managedBy").filter(|controller| !controller.is_null()) else {
        return;
    };
    let key = format!("{}.managedBy", job.kind_name());
    if controller == MULTIKUEUE {
        target.set(&key, controller, "managedBy", MULTIKUEUE);
    } else {
        target.inherent(&key, controller, "the operator reconciles the job");
    }
}
