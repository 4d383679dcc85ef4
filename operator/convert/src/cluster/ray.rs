//! KubeRay's RayJob: the command that is submitted to a Ray cluster, and the pods of that cluster.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fields::Target;
use super::job::ClusterJob;
use super::reader::{JobCommand, JobReader};
use super::resources::{count, num_gpus};
use super::shape::Shape;
use super::{pod, variables};
use crate::ConvertError;
use crate::launch::Launch;
use crate::settings::text_of;

/// Fields of a RayJob that code reads.
const OF_JOB: [&str; 7] = [
    "entrypoint",
    "runtimeEnvYAML",
    "rayClusterSpec",
    "backoffLimit",
    "ttlSecondsAfterFinished",
    "suspend",
    "managedBy",
];
/// Fields of a group of pods that code reads.
const OF_GROUP: [&str; 3] = ["replicas", "numOfHosts", "template"];

/// Reader of the jobs of KubeRay, whose command runs in one pod of a Ray cluster.
pub(super) struct RayJobs;

impl JobReader for RayJobs {
    fn field(&self) -> &'static str {
        "spec.entrypoint"
    }

    fn hint(&self) -> &'static str {
        "convert the script that is submitted to its Ray cluster"
    }

    fn runs_in_all_pods(&self) -> bool {
        false
    }

    fn command(&self, job: &ClusterJob) -> JobCommand {
        let text = job.spec.get("entrypoint").and_then(Value::as_str);
        JobCommand::Script(text.unwrap_or_default().to_owned())
    }

    fn environment(&self, job: &ClusterJob) -> BTreeMap<String, String> {
        environment(job)
    }

    fn shape(&self, job: &ClusterJob) -> Shape {
        shape(job)
    }

    fn translate(&self, _: &ClusterJob, _: &mut Launch) {}

    fn convert(&self, job: &ClusterJob, _: &Launch, target: &mut Target<'_>) -> Result<(), ConvertError> {
        target.apply("ray_job", job.kind_name(), &job.spec, &OF_JOB)?;
        retries(job, target);
        deletion(job, target);
        if let Some(cluster) = job.spec.get("rayClusterSpec") {
            pods(cluster, target)?;
        }
        runtime(job, target)
    }
}

/// A set of equal pods of a Ray cluster: the head, or a group of workers.
struct Group<'a> {
    /// Path of the group in the manifest.
    path: String,
    num_pods: u64,
    gpus_per_pod: u64,
    spec: &'a Value,
}

impl Group<'_> {
    fn num_gpus(&self) -> u64 {
        self.num_pods.saturating_mul(self.gpus_per_pod)
    }

    fn is_head(&self) -> bool {
        self.path.ends_with("headGroupSpec")
    }
}

/// Returns the groups of a Ray cluster, the head first.
fn groups(cluster: &Value) -> Vec<Group<'_>> {
    let group = |path: String, num_pods: u64, spec| {
        let gpus_per_pod = num_gpus(&ray_container(spec)["resources"]);
        Group { path, num_pods, gpus_per_pod, spec }
    };
    let head = &cluster["headGroupSpec"];
    let head = head.is_object().then(|| group("RayJob.headGroupSpec".to_owned(), 1, head));
    let workers = cluster["workerGroupSpecs"].as_array().into_iter().flatten().enumerate();
    let workers = workers.map(|(index, spec)| {
        let replicas = count(&spec["replicas"]).max(count(&spec["minReplicas"]));
        let num_pods = replicas.saturating_mul(count(&spec["numOfHosts"]).max(1));
        group(format!("RayJob.workerGroupSpecs[{index}]"), num_pods, spec)
    });
    head.into_iter().chain(workers).collect()
}

/// Returns the container of Ray, which is the first one of a pod.
fn ray_container(group: &Value) -> &Value {
    &group["template"]["spec"]["containers"][0]
}

/// Returns the index of the group that trains: the group with most GPUs, else the first group of workers.
fn training_group(groups: &[Group<'_>]) -> Option<usize> {
    let with_gpus = groups.iter().enumerate().filter(|(_, group)| group.num_gpus() > 0);
    // `max_by_key` returns the last of several groups: workers rather than the head.
    let most = with_gpus.max_by_key(|(_, group)| group.num_gpus()).map(|(index, _)| index);
    most.or_else(|| groups.iter().position(|group| !group.is_head())).or((!groups.is_empty()).then_some(0))
}

/// Returns the number of pods with GPUs, and the number of GPUs of each.
fn shape(job: &ClusterJob) -> Shape {
    let cluster = job.spec.get("rayClusterSpec").unwrap_or(&Value::Null);
    let groups = groups(cluster);
    let Some(training) = training_group(&groups).map(|index| &groups[index]) else { return Shape::default() };
    let alike = groups.iter().filter(|group| group.gpus_per_pod == training.gpus_per_pod);
    let all = alike.fold(0, |all: u64, group| all.saturating_add(group.num_pods));
    let num_pods = if training.gpus_per_pod == 0 { training.num_pods } else { all };
    Shape { num_pods: Some(num_pods.max(1)), per_pod: Some(training.gpus_per_pod).filter(|gpus| *gpus > 0) }
}

/// Returns the variables of the command: those of the head's container and of the runtime environment.
fn environment(job: &ClusterJob) -> BTreeMap<String, String> {
    let cluster = job.spec.get("rayClusterSpec").unwrap_or(&Value::Null);
    let mut environment = variables::values(&ray_container(&cluster["headGroupSpec"])["env"]);
    let runtime = runtime_environment(job).unwrap_or_default();
    let own = runtime.get("env_vars").and_then(Value::as_object).into_iter().flatten();
    environment.extend(own.map(|(name, value)| (name.clone(), text_of(value))));
    environment
}

/// Reads the runtime environment, a YAML text within the manifest.
fn runtime_environment(job: &ClusterJob) -> Option<Map<String, Value>> {
    let text = job.spec.get("runtimeEnvYAML")?.as_str()?;
    rlt_api::read_yaml::<Value>(text).ok()?.as_object().cloned()
}

/// Converts the runtime environment.
fn runtime(job: &ClusterJob, target: &mut Target<'_>) -> Result<(), ConvertError> {
    let key = "RayJob.runtimeEnvYAML";
    match (runtime_environment(job), job.spec.get("runtimeEnvYAML")) {
        (Some(runtime), _) => {
            let list = runtime.get("env_vars").and_then(Value::as_object).map(variables::list);
            variables::convert(&list.unwrap_or_default(), &format!("{key}.env_vars"), target);
            target.apply("runtime_env", key, &runtime, &["env_vars"])?;
        }
        (None, Some(text)) if text.as_str() != Some("") => {
            target.absent(key, text, "a map in YAML is expected");
        }
        _ => {}
    }
    Ok(())
}

/// Converts the number of retries, which KubeRay counts for all causes together.
fn retries(job: &ClusterJob, target: &mut Target<'_>) {
    let Some(limit) = job.spec.get("backoffLimit").filter(|limit| !limit.is_null()) else { return };
    target.set("RayJob.backoffLimit", limit, "runPolicy.retries.failure", limit.clone());
    target.draft.remark(
        "runPolicy",
        "backoffLimit counts all failures; here each cause has a limit of its own (runPolicy.retries), a new checkpoint \
         resets the counts, and evicted workers and lost nodes are not counted.",
    );
}

/// Converts the time after which KubeRay deletes the Ray cluster of a job that has ended. KubeRay's default
/// is 0.
fn deletion(job: &ClusterJob, target: &mut Target<'_>) {
    let Some(seconds) = job.spec.get("ttlSecondsAfterFinished").filter(|seconds| count(seconds) > 0) else {
        return;
    };
    let key = "RayJob.ttlSecondsAfterFinished";
    target.set(key, seconds, "runPolicy.ttlSecondsAfterFinished", seconds.clone());
    target.draft.remark(
        "runPolicy",
        "after ttlSecondsAfterFinished KubeRay deletes the RayCluster, and the operator deletes the job itself; the claim \
         of its workers.storage stays.",
    );
}

/// Converts the pods of a Ray cluster: the pods of one group become the workers.
fn pods(cluster: &Value, target: &mut Target<'_>) -> Result<(), ConvertError> {
    let fields = cluster.as_object().cloned().unwrap_or_default();
    target.apply("ray_cluster", "RayJob", &fields, &["headGroupSpec", "workerGroupSpecs"])?;
    let groups = groups(cluster);
    let Some(training) = training_group(&groups) else { return Ok(()) };
    for (index, group) in groups.iter().enumerate() {
        if index == training {
            let fields = group.spec.as_object().cloned().unwrap_or_default();
            target.apply("group", &group.path, &fields, &OF_GROUP)?;
            pod::convert(&group.spec["template"], None, &format!("{}.template", group.path), target)?;
        } else {
            other(group, &groups[training], target);
        }
    }
    Ok(())
}

/// Records a group that does not become the workers, unless its pods equal theirs.
fn other(group: &Group<'_>, training: &Group<'_>, target: &mut Target<'_>) {
    let value: Value = format!("{} pods with {} GPUs each", group.num_pods, group.gpus_per_pod).into();
    if group.gpus_per_pod == 0 && group.is_head() {
        let reason = "there is no head: the operator starts the ranks";
        target.inherent(&group.path, &value, reason);
    } else if group.gpus_per_pod == 0 {
        let reason = "all workers train: what needs more cores, such as a reward, runs behind a server (docs/rewards.md)";
        target.absent(&group.path, &value, reason);
    } else if !are_alike(group.spec, training.spec) {
        let reason = format!("all workers are alike, and have the pod of {}", training.path);
        target.absent(&group.path, &value, &reason);
    } else {
        target.inherent(&group.path, &value, "these pods are workers, too");
    }
}

/// Whether two groups have the same pods, apart from names and ports.
fn are_alike(one: &Value, other: &Value) -> bool {
    let compared = |group: &Value| {
        let mut spec = group["template"]["spec"].clone();
        let container = spec.get_mut("containers").and_then(|containers| containers.get_mut(0));
        if let Some(container) = container.and_then(Value::as_object_mut) {
            container.retain(|name, _| !matches!(name.as_str(), "name" | "ports" | "lifecycle"));
        }
        spec
    };
    compared(one) == compared(other)
}
