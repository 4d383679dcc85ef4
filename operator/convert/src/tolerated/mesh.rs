//! Rules on the number of ranks and the degrees that divide it.

use rlt_api::conflicts::{ChosenDevice, Fact, Facts, conflict_of};

use crate::draft::Draft;

/// Largest number of workers, and of ranks of all workers together.
const MAX_COUNT: u64 = 1024;
const MAX_RANKS_PER_WORKER: u64 = 64;

const COUNT: &str = "workers.count";
const PER_WORKER: &str = "workers.ranksPerWorker";

fn num_ranks(draft: &Draft) -> u64 {
    let of = |path: &str| draft.count(path).unwrap_or(1);
    of(COUNT).saturating_mul(of(PER_WORKER))
}

/// Limits the numbers of workers and ranks to at least one and at most what a job may have.
pub(super) fn ranks(draft: &mut Draft) {
    for (path, most) in [(COUNT, MAX_COUNT), (PER_WORKER, MAX_RANKS_PER_WORKER)] {
        let Some(given) = draft.count(path).filter(|given| *given == 0 || *given > most) else { continue };
        let bounded = given.clamp(1, most);
        draft.set(path, bounded);
        draft.remark("workers", format!("{path} is {bounded} in place of {given}: allowed are 1 to {most}."));
    }
    let ranks = num_ranks(draft);
    if ranks > MAX_COUNT {
        let per_worker = draft.count(PER_WORKER).unwrap_or(1);
        let workers = (MAX_COUNT / per_worker).max(1);
        draft.set(COUNT, workers);
        draft
            .remark("workers", format!("{ranks} ranks are more than a job has: workers.count is {workers}."));
    }
}

/// Degrees that must divide the number of ranks, each independently.
const OF_ALL_RANKS: [&str; 4] = ["logprobSp", "referenceSp", "criticSp", "rolloutTp"];
/// Degrees whose product must divide the number of ranks; the last one is reduced first.
const TOGETHER: [&str; 3] = ["tp", "sp", "dpShard"];

/// Reduces degrees that do not divide the ranks to the largest smaller ones that do.
pub(super) fn degrees(draft: &mut Draft) {
    let ranks = num_ranks(draft);
    let mut rest = ranks;
    for name in TOGETHER {
        let degree = divided(draft, name, rest);
        rest /= degree;
    }
    for name in OF_ALL_RANKS {
        divided(draft, name, ranks);
    }
    let of = |draft: &Draft, name: &str| draft.count(&format!("workers.mesh.{name}")).unwrap_or(1);
    let copy = of(draft, "dpShard").saturating_mul(of(draft, "sp"));
    divided(draft, "ep", copy);
}

/// Removes `mesh.ep` where the table of conflicts rules it out on the device of the scripts.
pub(super) fn experts(draft: &mut Draft) {
    let path = "workers.mesh.ep";
    let is_on_gpus = draft.text("workers.device").is_some_and(|device| device != "Cpu");
    let device = if is_on_gpus { ChosenDevice::Cuda } else { ChosenDevice::Cpu };
    let Some(degree) = draft.count(path).filter(|degree| *degree > 1) else { return };
    let Some(conflict) = conflict_of(Fact::Ep, &Facts::default().on(device)) else { return };
    draft.remove("spec.workers.mesh.ep");
    draft.remark("workers", format!("mesh.ep is 1 instead of {degree}: {}.", conflict.reason()));
}

/// Returns the degree of an axis, after reducing it to a divisor of `ranks`.
fn divided(draft: &mut Draft, name: &str, ranks: u64) -> u64 {
    let path = format!("workers.mesh.{name}");
    let Some(given) = draft.count(&path) else { return 1 };
    if given > 0 && ranks.is_multiple_of(given) {
        return given;
    }
    let degree = (1..=given.min(ranks)).rev().find(|degree| ranks.is_multiple_of(*degree)).unwrap_or(1);
    draft.set(&path, degree);
    let text = format!("{given} does not divide {ranks} ranks: mesh.{name} is {degree}.");
    draft.remark("workers", text);
    degree
}
