//! Rules of ranks and of the degrees that divide them.

use crate::draft::Draft;

/// Largest number of workers, of ranks of a worker, and of both together.
const MAX_COUNT: u64 = 1024;
const MAX_RANKS_PER_WORKER: u64 = 64;

const COUNT: &str = "workers.count";
const PER_WORKER: &str = "workers.ranksPerWorker";

fn num_ranks(draft: &Draft) -> u64 {
    let of = |path: &str| draft.count(path).unwrap_or(1);
    of(COUNT).saturating_mul(of(PER_WORKER))
}

/// There is at least one rank, and no more than a job can have.
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

/// Degrees that divide the number of ranks, each for itself.
const OF_ALL_RANKS: [&str; 4] = ["logprobSp", "referenceSp", "criticSp", "rolloutTp"];
/// Degrees whose product divides the number of ranks; the last one gives way first.
const TOGETHER: [&str; 3] = ["tp", "sp", "dpShard"];

/// Degrees that do not divide the ranks become the largest ones below them that do.
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

/// The degree of an axis after it divides `ranks`.
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
