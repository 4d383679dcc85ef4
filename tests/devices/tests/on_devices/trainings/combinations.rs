//! Combinations that the table of conflicts does not refuse on GPUs: every two facts of it are together in a
//! job, and each of these jobs trains on emulated devices. `tests/tests/local_run` trains those for CPUs.

use std::collections::BTreeSet;

use rlt_api::conflicts::{CONFLICTS, ChosenDevice, Fact};

use crate::combined_jobs::{Job, facts_of_settings, jobs};
use crate::run::Run;

/// Trains a job with a device for each rank. Returns the reason if it makes no step, does not sample although
/// the job does, or has a rank that allocates nothing on a device.
fn failure(job: &Job) -> Option<String> {
    let spec = &job.manifest["spec"];
    let num_ranks = spec["workers"]["count"].as_u64().unwrap() as usize;
    let reason = match Run::attempt(num_ranks, &job.manifest) {
        Err(printed) => printed,
        Ok(run) if !job.is_trained(&run.steps()) => format!("{:?}", run.steps()),
        Ok(run) => {
            let counts = run.counts();
            let uses_device = |peaks: &[u64]| peaks.iter().any(|bytes| *bytes > 0);
            let num_used = counts.iter().filter(|counts| uses_device(&counts.peak_bytes)).count();
            if num_used == num_ranks {
                return None;
            }
            format!("{num_used} of {num_ranks} ranks use a device")
        }
    };
    Some(format!("{:?}\n{spec}\n{reason}", job.facts))
}

#[test]
fn every_pair_of_facts_without_a_row_trains_and_samples_a_step_on_devices() {
    let jobs = jobs(ChosenDevice::Cuda);
    assert!((10..=30).contains(&jobs.len()), "{} jobs", jobs.len());
    let failures: Vec<String> = jobs.iter().filter_map(failure).collect();
    let num_failed = failures.len();
    assert!(failures.is_empty(), "{num_failed} of {} jobs:\n{}", jobs.len(), failures.join("\n\n"));
}

#[test]
fn jobs_on_devices_have_every_fact_that_no_row_refuses_there() {
    let refused_alone = |fact: &Fact| {
        CONFLICTS.iter().any(|conflict| match (conflict.fact, conflict.with) {
            (Fact::OnGpu, [with]) => with == fact,
            (refused, [Fact::OnGpu]) => refused == *fact,
            _ => false,
        })
    };
    let mut expected = facts_of_settings(ChosenDevice::Cuda);
    expected.retain(|fact| !refused_alone(fact));
    let in_jobs: BTreeSet<Fact> = jobs(ChosenDevice::Cuda).into_iter().flat_map(|job| job.facts).collect();
    assert_eq!(in_jobs, expected);
}
