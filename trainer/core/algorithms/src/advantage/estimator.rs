//! Inputs and results of all estimators, and the sums that several of them take.

use thiserror::Error;

use crate::declaration::{Declared, Parameter};
use crate::rows::{Rows, RowsError};
use crate::whiten::TooFewTokens;

/// Epsilon added to a group's standard deviation before dividing by it (verl's constant).
pub const STD_EPSILON: f64 = 1e-6;

/// Parameter `advantage.gamma` of manifests.
pub(super) const GAMMA: Parameter = Parameter::number(
    "gamma",
    0.0,
    1.0,
    "Discount per token (`ReinforcePlusPlus`, `Gae` and `LengthAdaptiveGae` only); by default 1.",
);

/// Inputs from which advantages cannot be estimated.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum AdvantageError {
    /// The length of a slice does not match the rows.
    #[error("advantage inputs do not fit together")]
    Rows(#[from] RowsError),
    /// Too few tokens count for whitening over the batch.
    #[error("advantages cannot be whitened")]
    Whiten(#[from] TooFewTokens),
    /// A group has a single sample, but pass@k compares the two best of a group.
    #[error("pass@k needs at least 2 samples in a group, group {group} has 1")]
    SingleSample {
        /// Id of the group.
        group: usize,
    },
    /// The number of weights differs from that of the reward parts.
    #[error("gdpo sums reward parts by weight, but {num_parts} parts came with {num_weights} weights")]
    Parts {
        /// Number of reward parts.
        num_parts: usize,
        /// Number of weights.
        num_weights: usize,
    },
    /// An input that the estimator reads is missing.
    #[error("estimator {estimator} needs {input}, which is missing")]
    Missing {
        /// Name of the estimator.
        estimator: &'static str,
        /// Name of the field of [`AdvantageInputs`].
        input: &'static str,
    },
}

/// The result of an estimator, one value per token.
#[derive(Clone, Debug, PartialEq)]
pub struct Advantages {
    /// Advantage of each token: how much better its outcome was than expected.
    pub advantages: Vec<f64>,
    /// Return of each token, the critic's target; equal to `advantages` if the estimator uses only outcomes.
    pub returns: Vec<f64>,
}

impl Advantages {
    /// Gives every counting token of a row the row's value, as advantage and as return.
    pub(crate) fn per_row(rows: &Rows, row_values: &[f64]) -> Self {
        let advantages = rows.broadcast(row_values);
        Self { returns: advantages.clone(), advantages }
    }
}

/// An optional input, computed only for estimators that read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EstimatorInput {
    /// The critic's values, [`AdvantageInputs::values`].
    Values,
    /// Rewards of the greedy completions of prompts, [`AdvantageInputs::greedy_rewards`].
    GreedyRewards,
    /// The actor's sums of squared probabilities, [`AdvantageInputs::sum_pi_squared`].
    SumPiSquared,
}

/// An estimator that turns rewards into advantages.
pub(crate) trait Estimator {
    /// Estimates the advantages of one step's batch.
    fn estimate(&self, inputs: &AdvantageInputs<'_>) -> Result<Advantages, AdvantageError>;

    /// Whether the estimator compares the samples of a prompt, so that it needs several.
    fn compares_samples(&self) -> bool {
        true
    }

    /// Whether the estimator reads this input.
    fn reads(&self, _input: EstimatorInput) -> bool {
        false
    }
}

pub(super) fn needed<'a, F: Declared>(
    input: &'static str,
    slice: Option<&'a [f64]>,
) -> Result<&'a [f64], AdvantageError> {
    slice.ok_or(AdvantageError::Missing { estimator: F::NAME, input })
}

/// All inputs that an estimator may read. `rows` and `token_rewards` are always needed; the rest by some.
#[derive(Clone, Copy, Debug)]
pub struct AdvantageInputs<'a> {
    /// Completions and their loss masks.
    pub rows: &'a Rows,
    /// Reward of each token; an outcome reward is at the last unmasked one ([`Rows::at_last_valid`]).
    pub token_rewards: &'a [f64],
    /// Rollout group id of each row.
    pub groups: &'a [usize],
    /// Reward of the greedy completion of each row's prompt (`AdvantageEstimator::ReMax`).
    pub greedy_rewards: Option<&'a [f64]>,
    /// The critic's value of each token (`AdvantageEstimator::Gae`).
    pub values: Option<&'a [f64]>,
    /// Each token's log-prob before the update (`AdvantageEstimator::OptimalTokenBaseline`).
    pub old_logprobs: Option<&'a [f64]>,
    /// Sum of the squared probabilities of the whole vocabulary
    /// (`AdvantageEstimator::OptimalTokenBaseline`).
    pub sum_pi_squared: Option<&'a [f64]>,
    /// Token weights of the rollout correction (`AdvantageEstimator::OptimalTokenBaseline`, optional
    /// there).
    pub importance_weights: Option<&'a [f64]>,
    /// Value of each reward function for each row, `[function][row]` (`AdvantageEstimator::Gdpo`).
    pub reward_parts: &'a [Vec<f64>],
    /// Weight of each entry of `reward_parts`.
    pub reward_weights: &'a [f64],
}

impl<'a> AdvantageInputs<'a> {
    /// Makes inputs of outcome rewards and groups, all that estimators without critic or greedy baseline
    /// read.
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
            reward_weights: &[],
        }
    }
}

/// Returns the outcome of each row, the sum of its token rewards, after checking the slices' lengths.
pub(super) fn outcomes(rows: &Rows, token_rewards: &[f64], groups: &[usize]) -> Result<Vec<f64>, RowsError> {
    rows.check_tokens("token_rewards", token_rewards)?;
    rows.check_rows("groups", groups)?;
    Ok(rows.sums(token_rewards))
}

/// Returns the sum of rewards from each token on. Rewards of masked tokens count, too: the mask selects
/// trained tokens, and a rejected last token must not remove the outcome.
pub(super) fn rewards_to_go(rows: &Rows, token_rewards: &[f64]) -> Vec<f64> {
    let mut returns = token_rewards.to_vec();
    for range in rows.ranges() {
        for token in range.rev().skip(1) {
            returns[token] += returns[token + 1];
        }
    }
    returns
}
