//! Jobs for tests, here and of packages that depend on this one with the feature `fixtures`.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

use rlt_api::spec::Device;
use rlt_plan::SPARE_GROUP;
use serde_json::{Value, json};

use crate::job::Job;
use crate::prepare::Prepared;

/// Returns the quickstart's job with another run policy.
pub fn job(run_policy: &Value) -> Job {
    let example = include_str!("../../../examples/quickstart/job.yaml");
    let mut manifest: Value = serde_saphyr::from_str(example).unwrap();
    manifest["spec"]["runPolicy"] = run_policy.clone();
    manifest["metadata"] = json!({"name": "quickstart", "namespace": "default", "uid": "u", "generation": 1});
    serde_json::from_value(manifest).unwrap()
}

/// Returns a validated job of `num_workers` workers.
pub fn prepared(num_workers: u32, run_policy: Value) -> Prepared {
    let mut prepared = Prepared::new(&job(&run_policy)).unwrap();
    prepared.plan.worker_groups[0].num_workers = num_workers;
    prepared
}

/// Adds a second group of workers to the job, with two ranks each on GPUs.
pub fn with_samplers(mut prepared: Prepared, num_workers: u32) -> Prepared {
    let mut samplers = prepared.plan.worker_groups[0].clone();
    samplers.name = "sampler".into();
    samplers.num_workers = num_workers;
    samplers.ranks_per_worker = 2;
    samplers.device = Device::Cuda;
    prepared.plan.worker_groups.push(samplers);
    prepared
}

/// Adds `num_spares` hot spares to the job.
pub fn with_spares(mut prepared: Prepared, num_spares: u32) -> Prepared {
    let mut spares = prepared.plan.worker_groups[0].clone();
    spares.name = SPARE_GROUP.into();
    spares.num_workers = num_spares;
    prepared.plan.worker_groups.push(spares);
    prepared
}
