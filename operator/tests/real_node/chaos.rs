//! A chaos run: a job of two workers with two ranks each trains on a real node, while ranks, pods, the
//! operator, objects, the API server, the disk and the chart's settings fail it by a seeded plan. It ends
//! with the weights of an undisturbed run, bit for bit, and status and Events tell what happened. The suite
//! runs two minutes of it, `make bench-chaos` an hour.

#![expect(clippy::print_stderr, reason = "a long run shows its progress")]

#[path = "chaos/disk.rs"]
mod disk;
#[path = "chaos/effects.rs"]
mod effects;
#[path = "chaos/limits.rs"]
mod limits;
#[path = "chaos/manifests.rs"]
mod manifests;
#[path = "chaos/outcome.rs"]
mod outcome;
#[path = "chaos/plan.rs"]
pub(crate) mod plan;
#[path = "chaos/quiet_run.rs"]
mod quiet_run;
#[path = "chaos/site.rs"]
mod site;

use std::time::{Duration, Instant};

use limits::Limits;
use plan::{FAULTS_PER_ROUND, Fault, Step};
use site::Site;

use crate::TIMEOUT;

/// Pause between two faults at least, also in a run that is late.
const MIN_PAUSE: Duration = Duration::from_secs(3);

/// Faults of a run so far.
struct Tally {
    begun: Instant,
    num_planned: usize,
    num_applied: usize,
    /// Faults that had no target, such as a rank of a gang that starts, or no effect.
    deferred: Vec<Fault>,
}

impl Tally {
    /// Counts a fault, and prints it with the counts so far.
    fn count(&mut self, fault: Fault, is_applied: bool) {
        if is_applied {
            self.num_applied += 1;
        } else {
            self.deferred.push(fault);
        }
        self.print(&format!("{fault:?} is {}", if is_applied { "applied" } else { "deferred" }));
    }

    /// Prints what happens now, with the time and the counts so far.
    fn print(&self, now: &str) {
        let Self { begun, num_planned, num_applied, deferred } = self;
        let (seconds, num_deferred) = (begun.elapsed().as_secs(), deferred.len());
        eprintln!(
            "chaos: {seconds} s: {now}; {num_applied} of {num_planned} faults applied, {num_deferred} deferred"
        );
    }
}

/// Runs the plan of a duration and a seed, and checks the outcome; `false` where the machine cannot run it.
/// The weights are compared first, whatever else is wrong.
pub(crate) async fn run(duration: Duration, seed: u64) -> bool {
    let begun = Instant::now();
    let Some(mut site) = Site::start().await else { return false };
    let (steps, limits) = (plan::plan(duration, seed), Limits::of(duration));
    let mut tally = Tally { begun, num_planned: steps.len(), num_applied: 0, deferred: Vec::new() };
    tally.print("the job trains");
    disturb(&mut site, &steps, limits, &mut tally).await;
    try_again(&mut site, limits, &mut tally).await;
    tally.print("the job trains its last steps");
    let num_steps = site.finish().await;
    tally.print(&format!("an undisturbed run trains the rest of {num_steps} steps, and all are compared"));
    outcome::check(&mut site, num_steps).await;
    tally.print("the job is made again over its result");
    site.make_again(num_steps).await;
    tally.print(&format!("seed {seed}, {} kills, {num_steps} equal steps", site.num_kills));
    let Tally { num_planned, num_applied, deferred, .. } = tally;
    assert!(
        limits.are_met(num_applied, deferred.len(), num_planned),
        "{num_applied} of {num_planned} planned faults had an effect; deferred: {deferred:?}; {limits:?}"
    );
    true
}

/// Applies each fault at its time. A run that is late begins no further round; the round that has begun ends
/// its lasting faults.
async fn disturb(site: &mut Site, steps: &[Step], limits: Limits, tally: &mut Tally) {
    let begun = Instant::now();
    for round in steps.chunks(FAULTS_PER_ROUND) {
        if begun.elapsed() > limits.rounds {
            tally.print("the run is late, no further round begins");
            return;
        }
        for step in round {
            tokio::time::sleep(step.at.saturating_sub(begun.elapsed()).max(MIN_PAUSE)).await;
            let is_applied = site.apply(step.fault, limits.patience).await;
            tally.count(step.fault, is_applied);
            site.note_events();
            site.assert_advances().await;
        }
    }
}

/// Tries the deferred faults once more, each on a gang that trains again. Faults for which no time is left
/// stay deferred. Before and after them the leader is killed: the next one makes a deleted Secret again at
/// its start.
async fn try_again(site: &mut Site, limits: Limits, tally: &mut Tally) {
    kill_operator(site).await;
    let begun = Instant::now();
    for fault in std::mem::take(&mut tally.deferred) {
        let left = limits.second_tries.saturating_sub(begun.elapsed()).min(TIMEOUT);
        let is_applied = !left.is_zero() && site.apply(fault, left).await;
        if fault == Fault::TightenChart && !left.is_zero() {
            site.apply(Fault::RelaxChart, TIMEOUT).await;
        }
        tally.count(fault, is_applied);
        tokio::time::sleep(MIN_PAUSE).await;
        site.note_events();
    }
    kill_operator(site).await;
}

async fn kill_operator(site: &mut Site) {
    assert!(site.apply(Fault::KillOperator, TIMEOUT).await, "no operator leads");
    tokio::time::sleep(MIN_PAUSE).await;
    site.note_events();
}
