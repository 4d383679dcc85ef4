//! Number of pods, and of processes in each, in the manifest of another operator.

use crate::draft::Draft;
use crate::launch::{Launch, Project};

/// Pods that train: their number and the resources of each, as far as the manifest states them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) num_pods: Option<u64>,
    /// Number of GPUs, or of processes, of a pod.
    pub(super) per_pod: Option<u64>,
}

/// Completes a launch with the numbers of machines and processes that its command omits. The command runs in
/// all pods or in one.
pub(super) fn complete(launch: &mut Launch, shape: Shape, runs_in_all_pods: bool) {
    let is_ray = match launch.project {
        Project::Verl => !launch.trainer.contains("sft"),
        Project::OpenInstruct => ["grpo", "ppo"].iter().any(|own| launch.trainer.starts_with(own)),
        Project::Trl => false,
    };
    // A command in a Ray cluster runs in one pod. verl reaches the other pods through Ray; open-instruct's
    // arguments give the number of learners.
    let spreads = if is_ray { launch.project == Project::Verl } else { runs_in_all_pods };
    if !spreads {
        return;
    }
    launch.machines = launch.machines.or(shape.num_pods);
    let machines = launch.machines.unwrap_or(1).max(1);
    let of_launch = |per_pod: u64| match launch.project {
        Project::Verl => per_pod,
        Project::Trl | Project::OpenInstruct => per_pod.saturating_mul(machines),
    };
    launch.processes = launch.processes.or(shape.per_pod.map(of_launch));
}

const COUNT: &str = "workers.count";
const PER_WORKER: &str = "workers.ranksPerWorker";

/// Compares the workers of a draft with the pods of a job of this kind. If only the size of the pods differs,
/// but not the number of ranks, the workers get that size. Any other difference becomes a remark.
pub(super) fn compare(kind: &str, shape: Shape, draft: &mut Draft) {
    let of = |path: &str| draft.count(path).unwrap_or(1);
    let (count, per_worker) = (of(COUNT), of(PER_WORKER));
    let ranks = count.saturating_mul(per_worker);
    let Some(per_pod) = shape.per_pod else {
        if draft.text("workers.device").is_some_and(|device| device == "Cuda") {
            let text = format!(
                "the {kind} requests no GPUs, and each rank has one here: say device: Cpu to train without."
            );
            draft.remark("workers", text);
        }
        return;
    };
    let num_pods = shape.num_pods.unwrap_or(1);
    let total = num_pods.saturating_mul(per_pod);
    if total == ranks {
        draft.set(COUNT, num_pods);
        draft.set(PER_WORKER, per_pod);
        return;
    }
    let text = format!(
        "the {kind} has {num_pods} pods with {per_pod} GPUs each, and the command trains on {ranks}: the job has {count} workers \
         with {per_worker} ranks each. For other numbers change count, ranksPerWorker and mesh."
    );
    draft.remark("workers", text);
    if per_worker != per_pod {
        draft.remark("workers", format!("resources are those of a pod with {per_pod} GPUs."));
    }
}
