//! Advantage estimators: rewards of a step's completions in, one advantage per token out.
//!
//! Rows are **completions**: a row starts at the first token after the prompt, so that position `t` means the
//! same in every row of a group. One family of estimators per file; this one holds what they share and the
//! choice between them. Definitions follow verl 0.10 (`core_algos.py`); every function is held to verl's own
//! values by the golden test. How the policy is then moved is [`crate::loss`]'s business.

mod baseline;
mod gae;
mod groups;
mod grpo;
mod reinforce;
mod rloo;

use thiserror::Error;

pub use baseline::{OptimalTokenBaselineInputs, gpg, opo, optimal_token_baseline};
pub use gae::gae;
pub use grpo::{gdpo, grpo, grpo_pass_at_k, grpo_vectorized};
pub use reinforce::{reinforce_plus_plus, reinforce_plus_plus_baseline, remax};
pub use rloo::{rloo, rloo_vectorized};

use crate::rows::{Rows, RowsError};
use crate::whiten::TooFewTokens;

/// Added to a group's standard deviation before dividing by it (verl's constant).
pub const STD_EPSILON: f64 = 1e-6;

/// Why advantages cannot be estimated.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum AdvantageError {
    /// A slice does not fit the rows.
    #[error("advantage inputs do not fit together")]
    Rows(#[from] RowsError),
    /// Whitening over a batch that is all but empty.
    #[error("advantages cannot be whitened")]
    Whiten(#[from] TooFewTokens),
    /// Pass@k compares the two best samples of a group.
    #[error("pass@k needs at least 2 samples in a group, group {group} has 1")]
    SingleSample {
        /// The group's id.
        group: usize,
    },
    /// Every reward part needs a weight.
    #[error("gdpo sums reward parts by weight, but {num_parts} parts came with {num_weights} weights")]
    Parts {
        /// Reward parts given.
        num_parts: usize,
        /// Weights given.
        num_weights: usize,
    },
    /// The estimator reads something that was not given.
    #[error("estimator {estimator} needs {input}, which is missing")]
    Missing {
        /// Name of the estimator.
        estimator: &'static str,
        /// Name of the field of [`AdvantageInputs`].
        input: &'static str,
    },
}

/// What an estimator gives back, one value per token.
#[derive(Clone, Debug, PartialEq)]
pub struct Advantages {
    /// How much better than expected each token's outcome was.
    pub advantages: Vec<f64>,
    /// What a critic would be trained towards; equals `advantages` where the estimator knows only outcomes.
    pub returns: Vec<f64>,
}

impl Advantages {
    /// One value per row, given to every token of it that counts; returns equal advantages.
    pub(crate) fn per_row(rows: &Rows, row_values: &[f64]) -> Self {
        let advantages = rows.broadcast(row_values);
        Self { returns: advantages.clone(), advantages }
    }
}

/// How advantages are estimated. The names are verl's `algorithm.adv_estimator`.
#[derive(Clone, Debug, PartialEq)]
pub enum AdvantageEstimator {
    /// `grpo`: reward against the group's mean, by the group's standard deviation unless `normalize_by_std`
    /// is off (Dr. GRPO, arXiv 2503.20783).
    Grpo {
        /// Divide by the group's standard deviation.
        normalize_by_std: bool,
    },
    /// `grpo_vectorized`: the same with group statistics in single precision.
    GrpoVectorized {
        /// Divide by the group's standard deviation.
        normalize_by_std: bool,
    },
    /// `grpo_passk`: only the best sample of a group counts (arXiv 2503.19595).
    GrpoPassAtK {
        /// Divide by the group's standard deviation.
        normalize_by_std: bool,
    },
    /// `gdpo`: GRPO per reward part, weighted sum, whitened over the batch (arXiv 2601.05242).
    Gdpo {
        /// Divide by the group's standard deviation.
        normalize_by_std: bool,
        /// One weight per entry of [`AdvantageInputs::reward_parts`].
        weights: Vec<f64>,
    },
    /// `rloo`: reward against the mean of the others (arXiv 2402.14740).
    Rloo,
    /// `rloo_vectorized`: the same, a group of one gives 0.
    RlooVectorized,
    /// `reinforce_plus_plus`: discounted returns, whitened over the batch (arXiv 2501.03262).
    ReinforcePlusPlus {
        /// Discount per token, 0 to 1.
        gamma: f64,
    },
    /// `reinforce_plus_plus_baseline`: reward against the group's mean, whitened over the batch.
    ReinforcePlusPlusBaseline,
    /// `remax`: reward against the reward of the greedy completion (arXiv 2310.10505).
    Remax,
    /// `opo`: reward against the group's length-weighted mean (arXiv 2505.23585).
    Opo,
    /// `gpg`: reward against the group's mean, scaled up by the share of samples with a reward (arXiv
    /// 2504.02546).
    Gpg,
    /// `optimal_token_baseline`: a baseline per position from the samples' gradient energy.
    OptimalTokenBaseline,
    /// `gae`: generalised advantage estimation against a critic (arXiv 1506.02438).
    Gae {
        /// Discount per token, 0 to 1.
        gamma: f64,
        /// Trade between bias (0) and variance (1).
        lambda: f64,
    },
}

/// Everything an estimator may read. `rows` and `token_rewards` are always needed; the rest by some.
#[derive(Clone, Copy, Debug)]
pub struct AdvantageInputs<'a> {
    /// Completions and their loss masks.
    pub rows: &'a Rows,
    /// Reward of each token; an outcome reward lies on the last one that counts ([`Rows::at_last_valid`]).
    pub token_rewards: &'a [f64],
    /// Rollout group of each row, any ids.
    pub groups: &'a [usize],
    /// Reward of the greedy completion of each row's prompt ([`AdvantageEstimator::Remax`]).
    pub greedy_rewards: Option<&'a [f64]>,
    /// The critic's value of each token ([`AdvantageEstimator::Gae`]).
    pub values: Option<&'a [f64]>,
    /// Each token's log-prob before the update ([`AdvantageEstimator::OptimalTokenBaseline`]).
    pub old_logprobs: Option<&'a [f64]>,
    /// Sum of the squared probabilities of the whole vocabulary
    /// ([`AdvantageEstimator::OptimalTokenBaseline`]).
    pub sum_pi_squared: Option<&'a [f64]>,
    /// Token weights of the rollout correction ([`AdvantageEstimator::OptimalTokenBaseline`], optional
    /// there).
    pub importance_weights: Option<&'a [f64]>,
    /// Each reward function's value of each row ([`AdvantageEstimator::Gdpo`]).
    pub reward_parts: &'a [Vec<f64>],
}

impl<'a> AdvantageInputs<'a> {
    /// Outcome rewards and groups, which is all that estimators without a critic or a greedy baseline read.
    pub fn new(rows: &'a Rows, token_rewards: &'a [f64], groups: &'a [usize]) -> Self {
        Self {
            rows,
            token_rewards,
            groups,
            greedy_rewards: None,
            values: None,
            old_logprobs: None,
            sum_pi_squared: None,
            importance_weights: None,
            reward_parts: &[],
        }
    }
}

impl AdvantageEstimator {
    /// verl's name of the estimator.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Grpo { .. } => "grpo",
            Self::GrpoVectorized { .. } => "grpo_vectorized",
            Self::GrpoPassAtK { .. } => "grpo_passk",
            Self::Gdpo { .. } => "gdpo",
            Self::Rloo => "rloo",
            Self::RlooVectorized => "rloo_vectorized",
            Self::ReinforcePlusPlus { .. } => "reinforce_plus_plus",
            Self::ReinforcePlusPlusBaseline => "reinforce_plus_plus_baseline",
            Self::Remax => "remax",
            Self::Opo => "opo",
            Self::Gpg => "gpg",
            Self::OptimalTokenBaseline => "optimal_token_baseline",
            Self::Gae { .. } => "gae",
        }
    }

    fn needs<'a>(&self, input: &'static str, slice: Option<&'a [f64]>) -> Result<&'a [f64], AdvantageError> {
        slice.ok_or(AdvantageError::Missing { estimator: self.name(), input })
    }

    /// Estimates the advantages of one step's batch.
    ///
    /// # Errors
    /// When slices do not fit the rows, an input that the estimator needs is missing, or the batch is too
    /// small for it.
    pub fn estimate(&self, inputs: &AdvantageInputs<'_>) -> Result<Advantages, AdvantageError> {
        let AdvantageInputs { rows, token_rewards, groups, .. } = *inputs;
        match self {
            Self::Grpo { normalize_by_std } => grpo(rows, token_rewards, groups, *normalize_by_std),
            Self::GrpoVectorized { normalize_by_std } => {
                grpo_vectorized(rows, token_rewards, groups, *normalize_by_std)
            }
            Self::GrpoPassAtK { normalize_by_std } => {
                grpo_pass_at_k(rows, token_rewards, groups, *normalize_by_std)
            }
            Self::Gdpo { normalize_by_std, weights } => {
                gdpo(rows, inputs.reward_parts, weights, groups, *normalize_by_std)
            }
            Self::Rloo => rloo(rows, token_rewards, groups),
            Self::RlooVectorized => rloo_vectorized(rows, token_rewards, groups),
            Self::ReinforcePlusPlus { gamma } => reinforce_plus_plus(rows, token_rewards, *gamma),
            Self::ReinforcePlusPlusBaseline => reinforce_plus_plus_baseline(rows, token_rewards, groups),
            Self::Remax => remax(rows, token_rewards, self.needs("greedy_rewards", inputs.greedy_rewards)?),
            Self::Opo => opo(rows, token_rewards, groups),
            Self::Gpg => gpg(rows, token_rewards, groups),
            Self::OptimalTokenBaseline => optimal_token_baseline(&OptimalTokenBaselineInputs {
                rows,
                token_rewards,
                groups,
                old_logprobs: self.needs("old_logprobs", inputs.old_logprobs)?,
                sum_pi_squared: self.needs("sum_pi_squared", inputs.sum_pi_squared)?,
                importance_weights: inputs.importance_weights,
            }),
            Self::Gae { gamma, lambda } => {
                gae(rows, token_rewards, self.needs("values", inputs.values)?, *gamma, *lambda)
            }
        }
    }
}

/// Outcome of each row: the sum of its token rewards, after checking that the slices fit.
fn outcomes(rows: &Rows, token_rewards: &[f64], groups: &[usize]) -> Result<Vec<f64>, RowsError> {
    rows.check_tokens("token_rewards", token_rewards)?;
    rows.check_rows("groups", groups)?;
    Ok(rows.sums(token_rewards))
}

/// Reward still to come at each token. A reward counts wherever it lies: the mask says which tokens learn,
/// and a rejected last token must not take the outcome with it.
fn rewards_to_go(rows: &Rows, token_rewards: &[f64]) -> Vec<f64> {
    let mut returns = token_rewards.to_vec();
    for range in rows.ranges() {
        for token in range.rev().skip(1) {
            returns[token] += returns[token + 1];
        }
    }
    returns
}
