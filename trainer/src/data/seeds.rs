//! Seeds: every random number of a run is a function of the job's seed, of what it is for, and of a position.

use rlt_core::permutation::splitmix64;

/// What a random number is for. Each use has a sequence of its own, so that none moves another.
#[derive(Clone, Copy, Debug)]
pub enum SeedUse {
    /// Completions of the training.
    Rollout = 1,
    /// Completions of an evaluation.
    Evaluation = 2,
    /// What is random in an update: dropout, the choice of clip-cov.
    Update = 3,
    /// Fresh weights and adapters.
    Weights = 4,
    /// Order of the data.
    Data = 5,
    /// Which samples are drawn again.
    Reweighting = 6,
}

/// A number that depends on `job_seed`, its use, and `parts`, and on nothing else.
pub fn seed(job_seed: u64, usage: SeedUse, parts: &[u64]) -> u64 {
    parts.iter().fold(splitmix64(job_seed, usage as u64), |seed, part| splitmix64(seed, *part))
}
