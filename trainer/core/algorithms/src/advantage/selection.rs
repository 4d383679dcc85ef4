//! The inputs of an estimator, restricted to some rows.

use super::{AdvantageInputs, Advantages};
use crate::rows::{Rows, RowsError};

/// Copies of the inputs of the rows that an estimator compares.
pub(super) struct Selection<'a> {
    all: AdvantageInputs<'a>,
    row_idxs: &'a [usize],
    rows: Rows,
    groups: Vec<usize>,
    token_rewards: Vec<f64>,
    greedy_rewards: Option<Vec<f64>>,
    values: Option<Vec<f64>>,
    old_logprobs: Option<Vec<f64>>,
    sum_pi_squared: Option<Vec<f64>>,
    importance_weights: Option<Vec<f64>>,
    reward_parts: Vec<Vec<f64>>,
}

impl<'a> Selection<'a> {
    /// Copies the rows `row_idxs`.
    ///
    /// # Errors
    /// When a slice does not fit the rows.
    pub(super) fn new(all: &AdvantageInputs<'a>, row_idxs: &'a [usize]) -> Result<Self, RowsError> {
        let rows = all.rows;
        let of_tokens = |name, values: &[f64]| -> Result<Vec<f64>, RowsError> {
            rows.check_tokens(name, values)?;
            Ok(row_idxs.iter().flat_map(|row| values[rows.range(*row)].iter().copied()).collect())
        };
        let of_rows = |name, values: &[f64]| -> Result<Vec<f64>, RowsError> {
            rows.check_rows(name, values)?;
            Ok(row_idxs.iter().map(|row| values[*row]).collect())
        };
        let tokens = |name, values: Option<&[f64]>| values.map(|values| of_tokens(name, values)).transpose();
        let parts = all.reward_parts.iter().map(|part| of_rows("reward_parts", part));
        Ok(Self {
            all: *all,
            row_idxs,
            rows: Rows::from_masks(row_idxs.iter().map(|row| &rows.mask()[rows.range(*row)])),
            groups: row_idxs.iter().map(|row| all.groups[*row]).collect(),
            token_rewards: of_tokens("token_rewards", all.token_rewards)?,
            greedy_rewards: all.greedy_rewards.map(|values| of_rows("greedy_rewards", values)).transpose()?,
            values: tokens("values", all.values)?,
            old_logprobs: tokens("old_logprobs", all.old_logprobs)?,
            sum_pi_squared: tokens("sum_pi_squared", all.sum_pi_squared)?,
            importance_weights: tokens("importance_weights", all.importance_weights)?,
            reward_parts: parts.collect::<Result<_, _>>()?,
        })
    }

    /// Returns the inputs of the selected rows.
    pub(super) fn inputs(&self) -> AdvantageInputs<'_> {
        AdvantageInputs {
            rows: &self.rows,
            token_rewards: &self.token_rewards,
            groups: &self.groups,
            greedy_rewards: self.greedy_rewards.as_deref(),
            values: self.values.as_deref(),
            old_logprobs: self.old_logprobs.as_deref(),
            sum_pi_squared: self.sum_pi_squared.as_deref(),
            importance_weights: self.importance_weights.as_deref(),
            reward_parts: &self.reward_parts,
            reward_weights: self.all.reward_weights,
        }
    }

    /// Scatters the advantages of the selected rows to all rows; every other row gets 0.
    pub(super) fn scattered(&self, estimated: Option<&Advantages>) -> Advantages {
        let scatter = |of: fn(&Advantages) -> &Vec<f64>| {
            let mut all = vec![0.0; self.all.rows.num_tokens()];
            for (idx, row) in self.row_idxs.iter().enumerate() {
                if let Some(estimated) = estimated {
                    all[self.all.rows.range(*row)].copy_from_slice(&of(estimated)[self.rows.range(idx)]);
                }
            }
            all
        };
        Advantages { advantages: scatter(|one| &one.advantages), returns: scatter(|one| &one.returns) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AdvantageEstimator, AdvantageEstimatorKind, AdvantageInputs};
    use crate::declaration::Family;
    use crate::rows::Rows;

    /// Every estimator that compares samples gives a lone row 0, and the other rows what they get without it.
    #[test]
    fn a_lone_survivor_of_a_group_has_advantage_zero() {
        let rows = Rows::unmasked([2, 1, 2, 3]);
        let rewards = [1.0, 1.0, 0.0, 0.5];
        let all = inputs(&rows, &rewards);
        let without = Rows::unmasked([2, 2, 3]);
        let kept = [1.0, 0.0, 0.5];
        for &kind in AdvantageEstimatorKind::ALL {
            let estimator = AdvantageEstimator::resolve(kind, &Default::default());
            if !estimator.compares_samples() {
                continue;
            }
            let got = estimate(&estimator, &all, &[0, 7, 0, 0]);
            assert_eq!(got[2], 0.0, "{}", kind.name());
            let expected = estimate(&estimator, &inputs(&without, &kept), &[0, 0, 0]);
            assert_eq!([&got[..2], &got[3..]].concat(), expected, "{}", kind.name());
            assert!(expected.iter().any(|advantage| *advantage != 0.0), "{}", kind.name());
            let alone = estimate(&estimator, &all, &[0, 1, 2, 3]);
            assert_eq!(alone, [0.0; 8], "{}", kind.name());
        }
    }

    struct Owned {
        rows: Rows,
        rewards: Vec<f64>,
        tokens: Vec<f64>,
        negative: Vec<f64>,
    }

    fn inputs(rows: &Rows, rewards: &[f64]) -> Owned {
        let num = rows.num_tokens();
        Owned {
            rows: rows.clone(),
            rewards: rewards.to_vec(),
            tokens: vec![0.4; num],
            negative: vec![-0.7; num],
        }
    }

    fn estimate(estimator: &AdvantageEstimator, owned: &Owned, groups: &[usize]) -> Vec<f64> {
        let token_rewards = owned.rows.at_last_valid(&owned.rewards);
        let inputs = AdvantageInputs {
            greedy_rewards: Some(&owned.rewards),
            values: Some(&owned.tokens),
            old_logprobs: Some(&owned.negative),
            sum_pi_squared: Some(&owned.tokens),
            reward_parts: std::slice::from_ref(&owned.rewards),
            reward_weights: &[1.0],
            ..AdvantageInputs::new(&owned.rows, &token_rewards, groups)
        };
        estimator.estimate(&inputs).unwrap().advantages
    }
}
