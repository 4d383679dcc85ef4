//! A chaos run: a job of two workers with two ranks each trains on a real node, while ranks, pods, the
//! operator, objects, the API server, the disk and the chart's settings fail it by a seeded plan. It ends
//! with the weights of an undisturbed run, bit for bit, and status and Events tell what happened. The suite
//! runs two minutes of it, `make bench-chaos` an hour.

#![expect(clippy::print_stderr, reason = "a long run shows its progress")]

#[path = "chaos/disk.rs"]
mod disk;
#[path = "chaos/effects.rs"]
mod effects;
#[path = "chaos/manifests.rs"]
mod manifests;
#[path = "chaos/outcome.rs"]
mod outcome;
#[path = "chaos/plan.rs"]
pub(crate) mod plan;
#[path = "chaos/site.rs"]
mod site;

use std::time::{Duration, Instant};

use plan::{Fault, Step};
use site::Site;

use crate::TIMEOUT;

/// Time that a fault waits for its target before it is put off.
const TARGET_PATIENCE: Duration = Duration::from_secs(30);
/// Pause between two faults at least, also in a run that is late.
const MIN_PAUSE: Duration = Duration::from_secs(3);

/// Runs the plan of a duration and a seed, and checks the outcome; `false` where the machine cannot run it.
pub(crate) async fn run(duration: Duration, seed: u64) -> bool {
    let begun = Instant::now();
    let Some(mut site) = Site::start().await else { return false };
    let deferred = disturb(&mut site, &plan::plan(duration, seed)).await;
    apply_deferred(&mut site, deferred).await;
    let num_steps = site.finish().await;
    outcome::check(&site, num_steps).await;
    site.make_again(num_steps).await;
    let (num_kills, elapsed) = (site.num_kills, begun.elapsed().as_secs());
    eprintln!("chaos: seed {seed}, {num_kills} kills, {num_steps} equal steps, {elapsed} s in total");
    true
}

/// Applies each fault at its time; returns those that had no target, such as a rank of a gang that starts.
async fn disturb(site: &mut Site, steps: &[Step]) -> Vec<Fault> {
    let begun = Instant::now();
    let mut deferred = Vec::new();
    for step in steps {
        tokio::time::sleep(step.at.saturating_sub(begun.elapsed()).max(MIN_PAUSE)).await;
        let is_applied = site.apply(step.fault, TARGET_PATIENCE).await;
        eprintln!("chaos: {} s: {:?}, applied: {is_applied}", begun.elapsed().as_secs(), step.fault);
        if !is_applied {
            deferred.push(step.fault);
        }
        site.note_events();
    }
    deferred
}

/// Applies the faults that were put off, each to a gang that trains again. Before and after them the leader
/// is killed: the next one makes a deleted Secret again at its start.
async fn apply_deferred(site: &mut Site, deferred: Vec<Fault>) {
    let kill = [Fault::KillOperator];
    for fault in kill.into_iter().chain(deferred).chain(kill) {
        assert!(site.apply(fault, TIMEOUT).await, "{fault:?} has no effect");
        if fault == Fault::TightenChart {
            site.apply(Fault::RelaxChart, TIMEOUT).await;
        }
        tokio::time::sleep(MIN_PAUSE).await;
        site.note_events();
    }
}
