//! Baselines chosen to lower the variance of the gradient: OPO, GPG and the optimal token baseline.

use super::groups::{mean_or_zero, members, within_groups};
use super::{
    AdvantageError, AdvantageInputs, Advantages, Estimator, EstimatorInput, needed, outcomes, rewards_to_go,
};
use crate::rows::Rows;
use crate::whiten::EPSILON;

formula! {
    /// Reward minus the length-weighted mean of the group.
    ///
    /// [`opo`] (verl's `opo`).
    pub struct Opo {}
}

impl Estimator for Opo {
    fn estimate(&self, inputs: &AdvantageInputs<'_>) -> Result<Advantages, AdvantageError> {
        opo(inputs.rows, inputs.token_rewards, inputs.groups)
    }
}

/// OPO (arXiv 2505.23585): R minus the group's mean reward weighted by completion length; a group of one
/// keeps its raw reward.
///
/// # Errors
/// When `token_rewards` or `groups` do not fit the rows.
pub fn opo(rows: &Rows, token_rewards: &[f64], groups: &[usize]) -> Result<Advantages, AdvantageError> {
    let mut advantages = outcomes(rows, token_rewards, groups)?;
    for group in members(groups).iter().filter(|group| group.len() > 1) {
        let len = |row_idx: &usize| rows.valid_len(*row_idx) as f64;
        let total: f64 = group.iter().map(len).sum();
        let weighted: f64 = group.iter().map(|row_idx| len(row_idx) * advantages[*row_idx]).sum();
        let baseline = if total > 0.0 { weighted / total } else { 0.0 };
        group.iter().for_each(|row_idx| advantages[*row_idx] -= baseline);
    }
    Ok(Advantages::per_row(rows, &advantages))
}

formula! {
    /// Reward minus the group's mean, scaled up by the share of samples without reward.
    ///
    /// [`gpg`] (verl's `gpg`).
    pub struct Gpg {}
}

impl Estimator for Gpg {
    fn estimate(&self, inputs: &AdvantageInputs<'_>) -> Result<Advantages, AdvantageError> {
        gpg(inputs.rows, inputs.token_rewards, inputs.groups)
    }
}

/// GPG (arXiv 2504.02546): R minus the group's mean, times the number of samples over the number of samples
/// whose reward is not 0, so that a batch with few successes is not scaled away.
///
/// # Errors
/// When `token_rewards` or `groups` do not fit the rows.
pub fn gpg(rows: &Rows, token_rewards: &[f64], groups: &[usize]) -> Result<Advantages, AdvantageError> {
    let outcomes = outcomes(rows, token_rewards, groups)?;
    let num_rewarded = outcomes.iter().filter(|reward| **reward != 0.0).count().max(1);
    let scale = outcomes.len() as f64 / num_rewarded as f64;
    let advantages = within_groups(&outcomes, groups, |values| {
        let center = mean_or_zero(values);
        move |outcome| scale * (outcome - center)
    });
    Ok(Advantages::per_row(rows, &advantages))
}

formula! {
    /// Return minus the baseline of least variance at each token.
    ///
    /// [`optimal_token_baseline`] (verl's `optimal_token_baseline`).
    pub struct OptimalTokenBaseline {}
}

impl Estimator for OptimalTokenBaseline {
    fn estimate(&self, inputs: &AdvantageInputs<'_>) -> Result<Advantages, AdvantageError> {
        optimal_token_baseline(&OptimalTokenBaselineInputs {
            rows: inputs.rows,
            token_rewards: inputs.token_rewards,
            groups: inputs.groups,
            old_logprobs: needed::<Self>("old_logprobs", inputs.old_logprobs)?,
            sum_pi_squared: needed::<Self>("sum_pi_squared", inputs.sum_pi_squared)?,
            importance_weights: inputs.importance_weights,
        })
    }

    fn reads(&self, input: EstimatorInput) -> bool {
        input == EstimatorInput::SumPiSquared
    }
}

/// Inputs of [`optimal_token_baseline`]; one value per token unless said otherwise.
#[derive(Clone, Copy, Debug)]
pub struct OptimalTokenBaselineInputs<'a> {
    /// Completions and their loss masks.
    pub rows: &'a Rows,
    /// Reward of each token.
    pub token_rewards: &'a [f64],
    /// Rollout group of each row.
    pub groups: &'a [usize],
    /// Log-probs before the update.
    pub old_logprobs: &'a [f64],
    /// Sum of the squared probabilities of the whole vocabulary.
    pub sum_pi_squared: &'a [f64],
    /// Token weights of the rollout correction, whose squares scale the gradient energy.
    pub importance_weights: Option<&'a [f64]>,
}

/// Optimal token baseline: at position t of a group, B_t = sum(G_t W_t) / (sum(W_t) + 1e-8) over its rows,
/// where G_t is the reward to go and W_t the gradient energy so far, the running sum of 1 - 2 pi + sum(pi^2).
/// The advantage is G_t - B_t.
///
/// A group of one has no baseline. At positions where only the longest row of a group has tokens, there is
/// nothing to compare with and the baseline is 0, too; as in verl, "longest" refers to the tokens that count.
///
/// # Errors
/// When slices do not fit the rows.
pub fn optimal_token_baseline(inputs: &OptimalTokenBaselineInputs<'_>) -> Result<Advantages, AdvantageError> {
    let OptimalTokenBaselineInputs { rows, token_rewards, groups, .. } = *inputs;
    rows.check_tokens("token_rewards", token_rewards)?;
    rows.check_rows("groups", groups)?;
    let energy = cumulative_energy(inputs)?;
    let returns = rewards_to_go(rows, token_rewards);
    let mut advantages = returns.clone();
    for group in members(groups).iter().filter(|group| group.len() > 1) {
        let baseline = baseline_by_position(rows, group, &returns, &energy);
        let (longest, compared) = lonely_tail(rows, group);
        for &row_idx in group {
            let range = rows.range(row_idx);
            let end = if longest == Some(row_idx) { compared.min(range.len()) } else { range.len() };
            (0..end).for_each(|t| advantages[range.start + t] -= baseline[t]);
        }
    }
    let masked = advantages.iter().zip(rows.mask()).map(|(value, counts)| if *counts { *value } else { 0.0 });
    Ok(Advantages { advantages: masked.collect(), returns })
}

fn cumulative_energy(inputs: &OptimalTokenBaselineInputs<'_>) -> Result<Vec<f64>, AdvantageError> {
    let rows = inputs.rows;
    rows.check_tokens("old_logprobs", inputs.old_logprobs)?;
    rows.check_tokens("sum_pi_squared", inputs.sum_pi_squared)?;
    if let Some(weights) = inputs.importance_weights {
        rows.check_tokens("importance_weights", weights)?;
    }
    let mut energy = vec![0.0; rows.num_tokens()];
    for range in rows.ranges() {
        let mut running = 0.0;
        for token in range {
            if rows.mask()[token] {
                let weight = inputs.importance_weights.map_or(1.0, |weights| weights[token]);
                let step = 1.0 - 2.0 * inputs.old_logprobs[token].exp() + inputs.sum_pi_squared[token];
                running += step * weight * weight;
            }
            energy[token] = running;
        }
    }
    Ok(energy)
}

fn baseline_by_position(rows: &Rows, group: &[usize], returns: &[f64], energy: &[f64]) -> Vec<f64> {
    let width = group.iter().map(|row_idx| rows.range(*row_idx).len()).max().unwrap_or(0);
    let (mut weighted, mut total) = (vec![0.0; width], vec![EPSILON; width]);
    for &row_idx in group {
        let range = rows.range(row_idx);
        for token in rows.valid(range.clone()) {
            weighted[token - range.start] += returns[token] * energy[token];
            total[token - range.start] += energy[token];
        }
    }
    weighted.iter().zip(total).map(|(weighted, total)| weighted / total).collect()
}

/// Returns the row that is longer than all others of its group, and the length of the second longest.
fn lonely_tail(rows: &Rows, group: &[usize]) -> (Option<usize>, usize) {
    let mut by_len: Vec<(usize, usize)> =
        group.iter().map(|row_idx| (rows.valid_len(*row_idx), *row_idx)).collect();
    by_len.sort_unstable_by(|a, b| b.cmp(a));
    let (longest, second) = (by_len[0], by_len[1]);
    if longest.0 > second.0 { (Some(longest.1), second.0) } else { (None, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_energy_makes_the_mean_return_the_optimal_baseline() {
        let rows = Rows::unmasked([2, 2, 2]);
        let token_rewards = rows.at_last_valid(&[1.0, 0.0, 0.5]);
        let got = optimal_token_baseline(&OptimalTokenBaselineInputs {
            rows: &rows,
            token_rewards: &token_rewards,
            groups: &[0; 3],
            old_logprobs: &[0.5_f64.ln(); 6],
            sum_pi_squared: &[0.4; 6],
            importance_weights: None,
        })
        .unwrap();
        for (got, expected) in got.advantages.iter().zip([0.5, 0.5, -0.5, -0.5, 0.0, 0.0]) {
            assert!((got - expected).abs() < 1e-7, "1e-8 in the denominator shifts the mean by that much");
        }
    }

    #[test]
    fn opo_weighs_the_baseline_by_length() {
        let rows = Rows::unmasked([1, 3]);
        let got = opo(&rows, &rows.at_last_valid(&[1.0, 0.0]), &[0, 0]).unwrap();
        assert_eq!(got.advantages, [0.75, -0.25, -0.25, -0.25]);
    }

    #[test]
    fn gpg_scales_by_the_share_of_rewarded_samples() {
        let rows = Rows::unmasked([1; 4]);
        let got = gpg(&rows, &[1.0, 0.0, 0.0, 0.0], &[0, 0, 1, 1]).unwrap();
        assert_eq!(got.advantages, [2.0, -2.0, 0.0, 0.0]);
    }
}
