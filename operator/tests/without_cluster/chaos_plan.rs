//! The plan of a chaos run: every kind of fault happens in two minutes, and lasting faults end.

#![expect(clippy::unwrap_used, reason = "a test panics where it fails")]

#[path = "../real_node/chaos/limits.rs"]
mod limits;
#[path = "../real_node/chaos/plan.rs"]
mod plan;

use std::collections::BTreeSet;
use std::time::Duration;

use limits::Limits;
use plan::{FAULTS_PER_ROUND, Fault, NUM_WORKERS, RANKS_PER_WORKER, ROUND, Step, plan};

/// Number of seeds of each test.
const NUM_SEEDS: u64 = 2000;

/// Name of a fault's kind, without the rank or worker.
fn kind(fault: Fault) -> &'static str {
    match fault {
        Fault::KillRank(_) => "rank",
        Fault::KillPod(_) => "pod",
        Fault::KillOperator => "operator",
        Fault::DeleteConfigMap => "ConfigMap",
        Fault::DeleteSecret => "Secret",
        Fault::DeleteClaim => "claim",
        Fault::DeleteRoles => "roles",
        Fault::RestoreRoles => "roles again",
        Fault::RestartApiServer => "API server",
        Fault::FillDisk => "disk",
        Fault::TightenChart => "stricter chart",
        Fault::RelaxChart => "earlier chart",
    }
}

fn index_of(round: &[Step], fault: Fault) -> usize {
    round.iter().position(|step| step.fault == fault).unwrap()
}

#[test]
fn every_kind_of_fault_happens_once_in_each_two_minutes() {
    assert_eq!(ROUND, Duration::from_secs(120));
    for seed in 0..NUM_SEEDS {
        let steps = plan(3 * ROUND, seed);
        assert_eq!(steps.len(), 3 * FAULTS_PER_ROUND);
        for (idx, round) in steps.chunks(FAULTS_PER_ROUND).enumerate() {
            let kinds: BTreeSet<_> = round.iter().map(|step| kind(step.fault)).collect();
            assert_eq!(kinds.len(), FAULTS_PER_ROUND, "seed {seed}: {round:?}");
            let begin = ROUND * idx as u32;
            assert!(round.iter().all(|step| (begin..begin + ROUND).contains(&step.at)), "seed {seed}");
        }
        assert!(steps.is_sorted_by(|a, b| a.at < b.at), "seed {seed}");
    }
}

#[test]
fn a_short_run_has_one_round_and_an_hour_thirty() {
    for (seconds, num_rounds) in [(0, 1), (119, 1), (120, 1), (359, 2), (3600, 30)] {
        let steps = plan(Duration::from_secs(seconds), 1);
        assert_eq!(steps.len(), num_rounds * FAULTS_PER_ROUND, "{seconds} s");
    }
}

#[test]
fn a_lasting_fault_ends_in_its_round() {
    for seed in 0..NUM_SEEDS {
        for round in plan(ROUND, seed).chunks(FAULTS_PER_ROUND) {
            let deleted = index_of(round, Fault::DeleteRoles);
            let restored = index_of(round, Fault::RestoreRoles);
            assert_eq!(restored, deleted + 2, "seed {seed}: one fault happens without roles");
            let between = round[deleted + 1].fault;
            let waits = [Fault::FillDisk, Fault::TightenChart, Fault::RelaxChart];
            assert!(!waits.contains(&between), "seed {seed}: {between:?} without roles");
            assert!(index_of(round, Fault::TightenChart) < index_of(round, Fault::RelaxChart), "seed {seed}");
        }
    }
}

#[test]
fn a_seed_gives_one_plan_and_seeds_give_every_order_rank_and_worker() {
    let (mut firsts, mut ranks, mut workers) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for seed in 0..NUM_SEEDS {
        let steps = plan(ROUND, seed);
        assert_eq!(plan(ROUND, seed), steps);
        firsts.insert(kind(steps[0].fault));
        for step in &steps {
            match step.fault {
                Fault::KillRank(rank) => {
                    ranks.insert(rank);
                }
                Fault::KillPod(worker) => {
                    workers.insert(worker);
                }
                _ => {}
            }
        }
    }
    // Neither roles nor settings are restored first.
    assert_eq!(firsts.len(), FAULTS_PER_ROUND - 2, "{firsts:?}");
    assert!(ranks.into_iter().eq(0..NUM_WORKERS * RANKS_PER_WORKER));
    assert!(workers.into_iter().eq(0..NUM_WORKERS));
}

#[test]
fn a_run_of_one_round_applies_every_fault_and_a_longer_one_ends_in_bounded_time() {
    for seconds in [0, 120, 239] {
        let limits = Limits::of(Duration::from_secs(seconds));
        assert_eq!((limits.patience, limits.min_percent), (Duration::from_secs(30), 100));
        assert_eq!((limits.rounds, limits.second_tries), (Duration::MAX, Duration::MAX));
        assert!(limits.are_met(12, 0, 12) && !limits.are_met(11, 1, 12) && !limits.are_met(11, 0, 12));
    }
    let hour = Duration::from_secs(3600);
    let limits = Limits::of(hour);
    assert!(limits.patience > Limits::of(ROUND).patience && limits.patience <= ROUND);
    assert!(limits.rounds >= hour && limits.rounds + limits.second_tries <= 3 * hour);
    assert!(limits.are_met(288, 72, 360) && !limits.are_met(287, 73, 360));
    assert!(limits.are_met(144, 36, 360) && !limits.are_met(144, 35, 360), "half of the plan is tried");
}
