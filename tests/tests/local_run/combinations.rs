//! Combinations that the table of conflicts does not refuse: every two facts of it are together in a job, and
//! each of these jobs trains. `tests/devices` trains those for GPUs.

use std::collections::BTreeSet;

use rlt_api::conflicts::{ChosenDevice, Fact};
use rlt_plan::{planned_model, refusals};

use crate::combined_jobs::{Job, facts_of_settings, jobs};
use crate::job::Place;

const DEVICES: [ChosenDevice; 2] = [ChosenDevice::Cpu, ChosenDevice::Cuda];

/// Facts that no job here has.
const ELSEWHERE: [Fact; 6] = [
    // These need the folder of an adapter, or rows in files.
    Fact::StartingAdapter,
    Fact::ResizedAdapter,
    Fact::Streaming,
    // Models have these only by their files, or in sizes that are not tiny.
    Fact::ExpertGroups,
    Fact::ManyExperts,
    Fact::QkNormEachHead,
];

/// Facts that only a manifest has: a job whose model is known has none of them.
const OF_MANIFESTS: [Fact; 10] = [
    Fact::CriticPrecision,
    Fact::CriticShards,
    Fact::MaxTrainPrompts,
    Fact::NoCritic,
    Fact::NoReference,
    Fact::ReferenceOffload,
    Fact::ReferencePrecision,
    Fact::ReferenceShards,
    Fact::ReferenceSync,
    Fact::ScoredCompletions,
];

/// Trains a job on the CPU. Returns its output if it makes no step, or does not sample although its algorithm
/// does.
fn failure(job: &Job) -> Option<String> {
    let place = Place::new();
    let ended = place.train(&job.manifest);
    let is_expected = ended.code == Some(0) && job.is_trained(&place.metrics());
    let spec = &job.manifest["spec"];
    (!is_expected).then(|| format!("{:?}\n{spec}\n{}{}", job.facts, ended.stdout, ended.stderr))
}

#[test]
fn every_pair_of_facts_without_a_row_trains_and_samples_a_step() {
    let jobs = jobs(ChosenDevice::Cpu);
    assert!((20..=40).contains(&jobs.len()), "{} jobs", jobs.len());
    let failures: Vec<String> = jobs.iter().filter_map(failure).collect();
    let num_failed = failures.len();
    assert!(failures.is_empty(), "{num_failed} of {} jobs:\n{}", jobs.len(), failures.join("\n\n"));
}

#[test]
fn each_job_has_the_facts_for_which_it_was_made_and_is_not_refused() {
    for device in DEVICES {
        for Job { manifest, facts } in jobs(device) {
            let job = rlt_api::validate(&manifest.to_string()).unwrap();
            let model = planned_model(&job).unwrap().unwrap();
            let of_job = model.facts().with_job(job.spec(), device);
            let is_missing = |fact: &&Fact| !of_job.has(**fact) && !OF_MANIFESTS.contains(fact);
            let missing: Vec<&Fact> = facts.iter().filter(is_missing).collect();
            assert!(missing.is_empty(), "{missing:?} are not in {manifest}");
            let refused = refusals(job.spec(), &model, device);
            assert!(refused.is_empty(), "{refused:?}: {manifest}");
        }
    }
}

#[test]
fn every_fact_of_the_table_is_in_a_job_or_left_to_other_tests() {
    let in_jobs: BTreeSet<Fact> = DEVICES.into_iter().flat_map(facts_of_settings).collect();
    let elsewhere = BTreeSet::from(ELSEWHERE);
    assert_eq!(&in_jobs | &elsewhere, Fact::ALL.iter().copied().collect::<BTreeSet<_>>());
    assert!(in_jobs.is_disjoint(&elsewhere));
}
