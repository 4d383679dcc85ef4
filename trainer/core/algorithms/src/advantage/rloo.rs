//! Leave-one-out baselines: a sample compared with the mean of its prompt's other samples (arXiv 2402.14740).

use super::groups::within_groups;
use super::{AdvantageError, AdvantageInputs, Advantages, Estimator, outcomes};
use crate::rows::Rows;
use crate::whiten::mean;

formula! {
    /// Reward minus the mean of the others in the group.
    ///
    /// [`rloo_vectorized`] (verl's `rloo_vectorized`, arXiv 2402.14740).
    pub struct Rloo {}
}

impl Estimator for Rloo {
    fn estimate(&self, inputs: &AdvantageInputs<'_>) -> Result<Advantages, AdvantageError> {
        rloo_vectorized(inputs.rows, inputs.token_rewards, inputs.groups)
    }
}

/// RLOO: R - mean of the others' rewards. A group of one keeps its raw reward, as in verl.
/// [`rloo_vectorized`] gives it 0, which is better if groups of one can occur, since a raw reward is not an
/// advantage.
///
/// # Errors
/// When `token_rewards` or `groups` do not fit the rows.
pub fn rloo(rows: &Rows, token_rewards: &[f64], groups: &[usize]) -> Result<Advantages, AdvantageError> {
    leave_one_out(rows, token_rewards, groups, |reward| reward)
}

/// RLOO in which a group of one gets 0.
///
/// # Errors
/// When `token_rewards` or `groups` do not fit the rows.
pub fn rloo_vectorized(
    rows: &Rows,
    token_rewards: &[f64],
    groups: &[usize],
) -> Result<Advantages, AdvantageError> {
    leave_one_out(rows, token_rewards, groups, |_| 0.0)
}

fn leave_one_out(
    rows: &Rows,
    token_rewards: &[f64],
    groups: &[usize],
    alone: fn(f64) -> f64,
) -> Result<Advantages, AdvantageError> {
    let outcomes = outcomes(rows, token_rewards, groups)?;
    let advantages = within_groups(&outcomes, groups, |values| {
        let (count, center) = (values.len() as f64, mean(values));
        move |reward| if count > 1.0 { (reward - center) * count / (count - 1.0) } else { alone(reward) }
    });
    Ok(Advantages::per_row(rows, &advantages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sample_is_compared_with_the_mean_of_the_others() {
        let rows = Rows::unmasked([1; 4]);
        let rewards = [3.0, 1.0, 2.0, 5.0];
        assert_eq!(rloo(&rows, &rewards, &[0, 0, 0, 1]).unwrap().advantages, [1.5, -1.5, 0.0, 5.0]);
        assert_eq!(
            rloo_vectorized(&rows, &rewards, &[0, 0, 0, 1]).unwrap().advantages,
            [1.5, -1.5, 0.0, 0.0]
        );
    }
}
