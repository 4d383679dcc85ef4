//! Aggregation of per-token losses to one value, independent of how the batch was split.

use std::iter::Sum;
use std::ops::Add;

use serde::Serialize;

use crate::rows::Rows;
use crate::whiten::EPSILON;

/// Aggregation of per-token losses to one value; names are verl's `loss_agg_mode`. T is the number of
/// counting tokens and B the number of sequences with at least one, both of the whole batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "aggregation", rename_all_fields = "camelCase")]
pub enum Aggregation {
    /// `token-mean`: sum over tokens / T (DAPO).
    TokenMean,
    /// `token-sum`: sum over tokens.
    TokenSum,
    /// `seq-mean-token-sum`: sum over tokens / B.
    SequenceMeanTokenSum,
    /// `seq-mean-token-sum-norm`: sum over tokens / (B * `normalization_tokens`) (Dr. GRPO, with the
    /// longest completion allowed). verl 0.8 did not divide by B.
    SequenceMeanTokenSumNorm {
        /// Constant length, above 0. verl falls back to the width of the padded batch, which would make the
        /// gradient depend on the batch; here it must be given.
        normalization_tokens: u32,
    },
    /// `seq-mean-token-mean`: mean over sequences of their mean over tokens (GRPO).
    SequenceMeanTokenMean,
}

/// Token and sequence counts of one update's batch, over all its micro-batches on all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Denominators {
    /// Number of tokens that count.
    pub num_tokens: usize,
    /// Number of sequences with at least one token that counts.
    pub num_sequences: usize,
}

impl Denominators {
    /// Counts the tokens and sequences of these rows; add the counts of all micro-batches (and ranks).
    pub fn of(rows: &Rows) -> Self {
        Self { num_tokens: rows.num_valid_tokens(), num_sequences: rows.num_valid_rows() }
    }
}

impl Add for Denominators {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            num_tokens: self.num_tokens + other.num_tokens,
            num_sequences: self.num_sequences + other.num_sequences,
        }
    }
}

impl Sum for Denominators {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), Add::add)
    }
}

impl Aggregation {
    /// Returns the weight of each token's loss in the sum; 0 for masked tokens, and for all if the whole
    /// batch is masked.
    pub fn weights(self, rows: &Rows, batch: &Denominators) -> Vec<f64> {
        let per_row: Vec<f64> =
            (0..rows.num_rows()).map(|row_idx| self.row_weight(rows.valid_len(row_idx), batch)).collect();
        rows.broadcast(&per_row)
    }

    fn row_weight(self, valid_len: usize, batch: &Denominators) -> f64 {
        let divisor = match self {
            Self::TokenMean => batch.num_tokens as f64,
            Self::TokenSum => 1.0,
            Self::SequenceMeanTokenSum => batch.num_sequences as f64,
            Self::SequenceMeanTokenSumNorm { normalization_tokens } => {
                batch.num_sequences as f64 * f64::from(normalization_tokens)
            }
            Self::SequenceMeanTokenMean => batch.num_sequences as f64 * (valid_len as f64 + EPSILON),
        };
        if divisor == 0.0 { 0.0 } else { 1.0 / divisor }
    }

    /// Returns the rows' summand of the batch's aggregated loss.
    pub fn aggregate(self, rows: &Rows, token_losses: &[f64], batch: &Denominators) -> f64 {
        let weights = self.weights(rows, batch);
        rows.valid(0..rows.num_tokens()).map(|token| weights[token] * token_losses[token]).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregations_match_the_hand_computed_table() {
        let rows = Rows::from_masks([&[true, true, true][..], &[true, true, false], &[false]]);
        let losses = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, f64::NAN];
        let batch = Denominators::of(&rows);
        let expected = [
            (Aggregation::TokenMean, 3.0),
            (Aggregation::TokenSum, 15.0),
            (Aggregation::SequenceMeanTokenSum, 7.5),
            (Aggregation::SequenceMeanTokenSumNorm { normalization_tokens: 3 }, 2.5),
            (Aggregation::SequenceMeanTokenMean, 3.25),
        ];
        for (aggregation, expected) in expected {
            let got = aggregation.aggregate(&rows, &losses, &batch);
            assert!((got - expected).abs() < 1e-7, "{aggregation:?}: {got}");
        }
    }

    #[test]
    fn a_batch_without_tokens_weighs_nothing() {
        let rows = Rows::from_masks([&[false][..]]);
        assert_eq!(Aggregation::TokenMean.weights(&rows, &Denominators::of(&rows)), [0.0]);
    }
}
