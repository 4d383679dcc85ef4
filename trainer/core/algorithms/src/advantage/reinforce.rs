//! The REINFORCE family: REINFORCE++ with and without a group baseline, and ReMax.

use super::groups::{mean_or_zero, members, select};
use super::{
    AdvantageError, AdvantageInputs, Advantages, Estimator, EstimatorInput, GAMMA, needed, outcomes,
    rewards_to_go,
};
use crate::rows::Rows;
use crate::whiten::masked_whiten;

formula! {
    /// Discounted return per token, whitened over the batch.
    ///
    /// [`reinforce_plus_plus`] (verl's `reinforce_plus_plus`).
    pub struct ReinforcePlusPlus {
        /// Discount per token, 0 to 1.
        pub gamma: f64 = GAMMA, 1.0;
    }
}

impl Estimator for ReinforcePlusPlus {
    fn estimate(&self, inputs: &AdvantageInputs<'_>) -> Result<Advantages, AdvantageError> {
        reinforce_plus_plus(inputs.rows, inputs.token_rewards, self.gamma)
    }

    fn compares_samples(&self) -> bool {
        false
    }
}

formula! {
    /// Reward minus the group's mean, whitened over the batch.
    ///
    /// [`reinforce_plus_plus_baseline`] (verl's `reinforce_plus_plus_baseline`).
    pub struct ReinforcePlusPlusBaseline {}
}

impl Estimator for ReinforcePlusPlusBaseline {
    fn estimate(&self, inputs: &AdvantageInputs<'_>) -> Result<Advantages, AdvantageError> {
        reinforce_plus_plus_baseline(inputs.rows, inputs.token_rewards, inputs.groups)
    }
}

formula! {
    /// Return minus the reward of the greedy completion.
    ///
    /// [`remax`] (verl's `remax`).
    pub struct ReMax {}
}

impl Estimator for ReMax {
    fn estimate(&self, inputs: &AdvantageInputs<'_>) -> Result<Advantages, AdvantageError> {
        let greedy_rewards = needed::<Self>("greedy_rewards", inputs.greedy_rewards)?;
        remax(inputs.rows, inputs.token_rewards, greedy_rewards)
    }

    fn compares_samples(&self) -> bool {
        false
    }

    fn reads(&self, input: EstimatorInput) -> bool {
        input == EstimatorInput::GreedyRewards
    }
}

/// REINFORCE++ (arXiv 2501.03262): discounted reward to go, whitened over all tokens that count.
///
/// Masked tokens inside a row (tool observations, rejected tokens) are skipped: they neither end the return
/// nor discount it, and a reward at one counts for the last unmasked token before it. verl 0.10 skips them
/// too; verl 0.8 reset the return there and so lost the reward of everything before a tool call.
///
/// # Errors
/// When `token_rewards` do not fit the rows or fewer than two tokens count.
pub fn reinforce_plus_plus(
    rows: &Rows,
    token_rewards: &[f64],
    gamma: f64,
) -> Result<Advantages, AdvantageError> {
    rows.check_tokens("token_rewards", token_rewards)?;
    let mut returns = vec![0.0; rows.num_tokens()];
    for range in rows.ranges() {
        let (mut running, mut passed_on) = (0.0, 0.0);
        for token in range.rev() {
            passed_on += token_rewards[token];
            if rows.mask()[token] {
                running = std::mem::take(&mut passed_on) + gamma * running;
                returns[token] = running;
            }
        }
    }
    let advantages = whitened(rows, &returns)?;
    Ok(Advantages { advantages, returns })
}

/// REINFORCE++ with a group baseline: R - mean of the group (0 for a group of one), whitened over all tokens
/// that count, so long completions weigh more in the mean.
///
/// # Errors
/// When slices do not fit the rows or fewer than two tokens count.
pub fn reinforce_plus_plus_baseline(
    rows: &Rows,
    token_rewards: &[f64],
    groups: &[usize],
) -> Result<Advantages, AdvantageError> {
    let mut centered = outcomes(rows, token_rewards, groups)?;
    for group in members(groups) {
        let center = mean_or_zero(&select(&centered, &group));
        group.iter().for_each(|row_idx| centered[*row_idx] -= center);
    }
    let advantages = whitened(rows, &rows.broadcast(&centered))?;
    Ok(Advantages { returns: advantages.clone(), advantages })
}

/// ReMax (arXiv 2310.10505): reward to go minus the reward of the greedy completion of the same prompt, one
/// per row in `greedy_rewards`. They must be those of decoding at temperature 0.
///
/// # Errors
/// When slices do not fit the rows.
pub fn remax(
    rows: &Rows,
    token_rewards: &[f64],
    greedy_rewards: &[f64],
) -> Result<Advantages, AdvantageError> {
    rows.check_tokens("token_rewards", token_rewards)?;
    rows.check_rows("greedy_rewards", greedy_rewards)?;
    let returns = rewards_to_go(rows, token_rewards);
    let baseline = rows.broadcast(greedy_rewards);
    let advantages = returns.iter().zip(baseline).map(|(reward, base)| reward - base).collect();
    Ok(Advantages { advantages, returns })
}

fn whitened(rows: &Rows, values: &[f64]) -> Result<Vec<f64>, AdvantageError> {
    let mut white = masked_whiten(rows, values, true)?;
    for (value, counts) in white.iter_mut().zip(rows.mask()) {
        if !counts {
            *value = 0.0;
        }
    }
    Ok(white)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_pass_through_a_tool_observation() {
        let rows = Rows::from_masks([&[true, false, false, true][..]]);
        let got = reinforce_plus_plus(&rows, &[0.0, 0.0, 0.0, 1.0], 0.9).unwrap();
        assert_eq!(got.returns, [0.9, 0.0, 0.0, 1.0]);
    }

    #[test]
    fn a_rejected_last_token_does_not_take_the_reward_with_it() {
        let rows = Rows::from_masks([&[true, true, false][..]]);
        let rewards = [0.0, 0.0, 1.0];
        assert_eq!(reinforce_plus_plus(&rows, &rewards, 0.5).unwrap().returns, [0.5, 1.0, 0.0]);
        assert_eq!(remax(&rows, &rewards, &[0.25]).unwrap().advantages[..2], [0.75, 0.75]);
    }

    #[test]
    fn remax_subtracts_the_greedy_completions_reward() {
        let rows = Rows::unmasked([2, 1]);
        let got = remax(&rows, &[0.0, 1.0, 0.5], &[0.25, 1.0]).unwrap();
        assert_eq!(got.advantages, [0.75, 0.75, -0.5]);
    }
}
