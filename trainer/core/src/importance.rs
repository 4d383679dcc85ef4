//! Rollout correction: importance weights and rejection for the mismatch between rollout and trained policy.
//!
//! Log-ratios here are `old_logprobs - rollout_logprobs`, the trainer's log-prob of a token minus the rollout
//! engine's. Three results are computed once over the batch of a step, before it is split: weights that
//! multiply the policy loss ([`rollout_is`]), a mask without rejected tokens and sequences
//! ([`rollout_rejection`]), and metrics ([`mismatch_metrics`]). Definitions and metric names
//! (`rollout_corr/...`) follow verl 0.10
//! (`rollout_corr_helper.py`).

mod mismatch;
mod rejection;
mod weights;

use thiserror::Error;

pub use mismatch::mismatch_metrics;
pub use rejection::{Divergence, Rejection, RejectionLevel, RejectionRule, rollout_rejection};
pub use weights::{CorrectionWeights, WeightBounds, WeightLevel, WeightRule, rollout_is};

use crate::rows::{Rows, RowsError};

/// Bound to which log-ratios are clamped before they are exponentiated: exp(20) is about 5e8.
const LOG_RATIO_BOUND: f64 = 20.0;

/// Inputs for which no rollout correction can be computed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ImportanceError {
    /// The length of a slice does not match the rows.
    #[error("rollout correction inputs do not fit together")]
    Rows(#[from] RowsError),
    /// No token counts, so there are no statistics.
    #[error("rollout correction needs at least one token that counts, got none in {num_rows} rows")]
    NoTokens {
        /// Number of rows in the batch.
        num_rows: usize,
    },
}

fn check(rows: &Rows, name: &'static str, values: &[f64]) -> Result<(), ImportanceError> {
    rows.check_tokens(name, values)?;
    if rows.num_valid_tokens() == 0 {
        return Err(ImportanceError::NoTokens { num_rows: rows.num_rows() });
    }
    Ok(())
}

fn bounded_exp(log_ratio: f64) -> f64 {
    log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
}

/// Returns the mean over the valid tokens of every row, sum / (count + 1e-8).
fn row_means(rows: &Rows, values: &[f64]) -> Vec<f64> {
    let sums = rows.masked_sums(values);
    sums.iter().enumerate().map(|(row_idx, sum)| sum / (rows.valid_len(row_idx) as f64 + 1e-8)).collect()
}

/// Returns the fraction of the values for which `is` holds, in single precision as verl reports it.
fn share(values: &[f64], is: impl Fn(f64) -> bool) -> f64 {
    f64::from(values.iter().filter(|value| is(**value)).count() as f32 / values.len() as f32)
}

fn max(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(f64::NEG_INFINITY, f64::max)
}

fn min(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(f64::INFINITY, f64::min)
}
