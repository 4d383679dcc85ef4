//! Jobs and workers for the tests of decisions.

use std::sync::Arc;

use rlt_api::plan::SPARE_GROUP;
use rlt_api::spec::Device;
use serde_json::{Value, json};

use crate::job::Job;
use crate::prepare::Prepared;
use crate::queue::{NO_QUEUE, Queueing, Workload};
use crate::worker::{Exit, Worker};
use crate::worker_id::{GroupName, WorkerId};

/// The quickstart's specification with another run policy.
pub(crate) fn job(run_policy: &Value) -> Job {
    let example = include_str!("../../../examples/quickstart/job.yaml");
    let mut manifest: Value = serde_saphyr::from_str(example).unwrap();
    manifest["spec"]["runPolicy"] = run_policy.clone();
    manifest["metadata"] = json!({"name": "quickstart", "namespace": "default", "uid": "u", "generation": 1});
    serde_json::from_value(manifest).unwrap()
}

/// A validated job of so many workers.
pub(crate) fn prepared(num_workers: u32, run_policy: Value) -> Prepared {
    let mut prepared = Prepared::new(&job(&run_policy)).unwrap();
    prepared.plan.worker_groups[0].num_workers = num_workers;
    prepared
}

/// The job with a second group of workers, of two ranks each on GPUs.
pub(crate) fn with_samplers(mut prepared: Prepared, num_workers: u32) -> Prepared {
    let mut samplers = prepared.plan.worker_groups[0].clone();
    samplers.name = "sampler".into();
    samplers.num_workers = num_workers;
    samplers.ranks_per_worker = 2;
    samplers.device = Device::Cuda;
    prepared.plan.worker_groups.push(samplers);
    prepared
}

/// The job with so many hot spares.
pub(crate) fn with_spares(mut prepared: Prepared, num_spares: u32) -> Prepared {
    let mut spares = prepared.plan.worker_groups[0].clone();
    spares.name = SPARE_GROUP.into();
    spares.num_workers = num_spares;
    prepared.plan.worker_groups.push(spares);
    prepared
}

/// A worker that waits for a node.
pub(crate) fn worker(idx: u32, attempt: u32) -> Worker {
    Worker {
        name: format!("quickstart-trainer-{idx}").into(),
        uid: format!("{idx}-{attempt}").into(),
        resource_version: 1,
        idx,
        attempt,
        ..Worker::default()
    }
}

/// What a queue says of a job that asks it, with this Workload.
pub(crate) fn asked(workload: Option<Workload>) -> Queueing {
    Queueing {
        queue: Some("team".into()),
        is_served: true,
        workload: workload.map(Arc::new),
        wanted: Some("d".into()),
        ..NO_QUEUE
    }
}

/// A Workload that waits for quota.
pub(crate) fn waiting() -> Workload {
    Workload { name: "w".into(), uid: "w".into(), digest: Some("d".into()), ..Workload::default() }
}

/// The indices of workers of the first group.
pub(crate) fn indices(ids: &[WorkerId]) -> Vec<u32> {
    ids.iter().filter(|id| id.group == GroupName::default()).map(|id| id.idx).collect()
}

/// How a process with this code ended.
pub(crate) fn exit(code: i32, seconds: i64) -> Box<Exit> {
    let finished_at = k8s_openapi::jiff::Timestamp::from_second(seconds).ok();
    Box::new(Exit {
        code,
        reason: if code == 0 { "Completed" } else { "Error" }.into(),
        message: String::new(),
        finished_at,
    })
}
