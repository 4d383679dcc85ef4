//! Seeds: every random number of a run is a function of the job's seed, its use, and a position.

use rlt_core::permutation::splitmix64;

/// Use of a random number. Each use has its own sequence, so that none affects another.
#[derive(Clone, Copy, Debug)]
pub enum SeedUse {
    /// Sampling of completions for training.
    Rollout = 1,
    /// Sampling of completions for evaluation.
    Evaluation = 2,
    /// Randomness in an update: dropout, the choice of clip-cov.
    Update = 3,
    /// Initialization of weights and adapters.
    Weights = 4,
    /// Order of the data.
    Data = 5,
    /// Resampling of a batch.
    Reweighting = 6,
}

/// Derives a seed from `job_seed`, its use, and `parts`.
pub fn seed(job_seed: u64, usage: SeedUse, parts: &[u64]) -> u64 {
    parts.iter().fold(splitmix64(job_seed, usage as u64), |seed, part| splitmix64(seed, *part))
}
