//! Outcomes normalised within their rollout group: GRPO and its variants.

use super::groups::{mean_or_zero, members, select, within_groups};
use super::{AdvantageError, AdvantageInputs, Advantages, Estimator, STD_EPSILON, outcomes};
use crate::declaration::Parameter;
use crate::rows::Rows;
use crate::whiten::{masked_whiten, std};

/// Parameter `advantage.normalizeByStd` of manifests.
pub const NORMALIZE_BY_STD: Parameter = Parameter::flag(
    "normalizeByStd",
    "Divide by the group's standard deviation (`Grpo` and `GrpoPassk` only); by default the preset's.",
);

formula! {
    /// Reward minus the group's mean, divided by its standard deviation if `normalizeByStd`.
    ///
    /// [`grpo`] (verl's `grpo`); without the division it is that of Dr. GRPO.
    pub struct Grpo {
        /// Divide by the group's standard deviation.
        pub normalize_by_std: bool = NORMALIZE_BY_STD, true;
    }
}

impl Estimator for Grpo {
    fn estimate(&self, inputs: &AdvantageInputs<'_>) -> Result<Advantages, AdvantageError> {
        grpo(inputs.rows, inputs.token_rewards, inputs.groups, self.normalize_by_std)
    }
}

/// GRPO (arXiv 2402.03300): (R - mean) / (std + 1e-6) of the group, where std is unbiased. Without
/// `normalize_by_std` only the mean is subtracted (Dr. GRPO). A group of one keeps its raw reward (mean 0,
/// std 1), as in verl.
///
/// # Errors
/// When `token_rewards` or `groups` do not fit the rows.
pub fn grpo(
    rows: &Rows,
    token_rewards: &[f64],
    groups: &[usize],
    normalize_by_std: bool,
) -> Result<Advantages, AdvantageError> {
    let outcomes = outcomes(rows, token_rewards, groups)?;
    Ok(Advantages::per_row(rows, &normalize(&outcomes, groups, normalize_by_std)))
}

fn normalize(outcomes: &[f64], groups: &[usize], by_std: bool) -> Vec<f64> {
    within_groups(outcomes, groups, |values| {
        let center = mean_or_zero(values);
        let std = if values.len() > 1 { std(values) } else { 1.0 };
        let scale = if by_std { std + STD_EPSILON } else { 1.0 };
        move |outcome| (outcome - center) / scale
    })
}

/// GRPO with group statistics in single precision, like verl's vectorised form; kept so that runs can be
/// compared value by value. Prefer [`grpo`].
///
/// # Errors
/// When `token_rewards` or `groups` do not fit the rows.
pub fn grpo_vectorized(
    rows: &Rows,
    token_rewards: &[f64],
    groups: &[usize],
    normalize_by_std: bool,
) -> Result<Advantages, AdvantageError> {
    let outcomes = outcomes(rows, token_rewards, groups)?;
    let normalized = within_groups(&outcomes, groups, |values| {
        let (mean, std) = single_precision_moments(values);
        let scale = if normalize_by_std { f64::from(std + STD_EPSILON as f32) } else { 1.0 };
        move |outcome| (outcome - f64::from(mean)) / scale
    });
    Ok(Advantages::per_row(rows, &normalized))
}

/// Mean and unbiased standard deviation in f32; (0, 1) for a single value.
fn single_precision_moments(values: &[f64]) -> (f32, f32) {
    if values.len() < 2 {
        return (0.0, 1.0);
    }
    let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
    let count = values.len() as f32;
    let mean = values.iter().sum::<f32>() / count;
    let squares: f32 = values.iter().map(|value| (value - mean) * (value - mean)).sum();
    (mean, (squares / (count - 1.0)).sqrt())
}

formula! {
    /// Only the best of a group, by its distance to the second best (pass@k).
    ///
    /// [`grpo_pass_at_k`] (verl's `grpo_passk`).
    pub struct GrpoPassk {
        /// Divide by the group's standard deviation.
        pub normalize_by_std: bool = NORMALIZE_BY_STD, true;
    }
}

impl Estimator for GrpoPassk {
    fn estimate(&self, inputs: &AdvantageInputs<'_>) -> Result<Advantages, AdvantageError> {
        grpo_pass_at_k(inputs.rows, inputs.token_rewards, inputs.groups, self.normalize_by_std)
    }
}

/// Pass@k training (arXiv 2503.19595): the best sample of each group gets (best - second best), divided by
/// (std + 1e-6) if `normalize_by_std`; all others get 0.
///
/// # Errors
/// When slices do not fit the rows or a group has a single sample.
pub fn grpo_pass_at_k(
    rows: &Rows,
    token_rewards: &[f64],
    groups: &[usize],
    normalize_by_std: bool,
) -> Result<Advantages, AdvantageError> {
    let outcomes = outcomes(rows, token_rewards, groups)?;
    let mut advantages = vec![0.0; outcomes.len()];
    for mut group in members(groups) {
        group.sort_by(|a, b| outcomes[*b].total_cmp(&outcomes[*a]));
        let &[best, second, ..] = group.as_slice() else {
            return Err(AdvantageError::SingleSample { group: groups[group[0]] });
        };
        let scale = if normalize_by_std { std(&select(&outcomes, &group)) + STD_EPSILON } else { 1.0 };
        advantages[best] = (outcomes[best] - outcomes[second]) / scale;
    }
    Ok(Advantages::per_row(rows, &advantages))
}

formula! {
    /// Each reward function normalised within the group on its own, then summed and whitened.
    ///
    /// [`gdpo`] by the standard deviation (verl's `gdpo`).
    pub struct Gdpo {}
}

impl Estimator for Gdpo {
    fn estimate(&self, inputs: &AdvantageInputs<'_>) -> Result<Advantages, AdvantageError> {
        gdpo(inputs.rows, inputs.reward_parts, inputs.reward_weights, inputs.groups, true)
    }
}

/// GDPO (arXiv 2601.05242): every reward part is normalised within its group separately, so that a part with
/// a large range does not dominate; the weighted sum is whitened over all tokens that count. `reward_parts`
/// has one vector of row values per part and `weights` one weight per part. Without parts, as when no reward
/// function returned a value, nothing is better than anything else: all advantages are zero.
///
/// # Errors
/// When slices do not fit each other or fewer than two tokens count.
pub fn gdpo(
    rows: &Rows,
    reward_parts: &[Vec<f64>],
    weights: &[f64],
    groups: &[usize],
    normalize_by_std: bool,
) -> Result<Advantages, AdvantageError> {
    rows.check_rows("groups", groups)?;
    if reward_parts.len() != weights.len() {
        let (num_parts, num_weights) = (reward_parts.len(), weights.len());
        return Err(AdvantageError::Parts { num_parts, num_weights });
    }
    let mut summed = vec![0.0; rows.num_rows()];
    for (part, weight) in reward_parts.iter().zip(weights) {
        rows.check_rows("reward_parts", part)?;
        let normalized = normalize(part, groups, normalize_by_std);
        summed.iter_mut().zip(normalized).for_each(|(sum, value)| *sum += weight * value);
    }
    let white = masked_whiten(rows, &rows.broadcast(&summed), true)?;
    let advantages: Vec<f64> =
        white.iter().zip(rows.mask()).map(|(value, counts)| if *counts { *value } else { 0.0 }).collect();
    Ok(Advantages { returns: advantages.clone(), advantages })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advantages_of_a_group_sum_to_zero() {
        let (rows, groups) = (Rows::unmasked([1; 6]), [0, 0, 0, 1, 1, 1]);
        let rewards = [1.0, 0.0, 0.25, 3.0, -2.0, 7.0];
        let advantages = grpo(&rows, &rewards, &groups, true).unwrap().advantages;
        for group in advantages.chunks(3) {
            assert!(group.iter().sum::<f64>().abs() < 1e-12, "{group:?}");
        }
    }

    #[test]
    fn a_group_of_equal_rewards_has_no_gradient() {
        let rows = Rows::unmasked([2; 3]);
        let rewards = rows.at_last_valid(&[0.1; 3]);
        assert_eq!(grpo(&rows, &rewards, &[5; 3], true).unwrap().advantages, [0.0; 6]);
    }

    #[test]
    fn pass_at_k_refuses_a_group_of_one() {
        let rows = Rows::unmasked([1; 3]);
        let got = grpo_pass_at_k(&rows, &[1.0, 2.0, 3.0], &[4, 4, 8], true);
        assert_eq!(got, Err(AdvantageError::SingleSample { group: 8 }));
    }

    #[test]
    fn gdpo_prefers_nothing_where_no_function_returned_a_value() {
        let rows = Rows::unmasked([2; 3]);
        assert_eq!(gdpo(&rows, &[], &[], &[0; 3], true).unwrap().advantages, [0.0; 6]);
        assert!(gdpo(&rows, &[], &[1.0], &[0; 3], true).is_err());
    }

    #[test]
    fn gdpo_weighs_its_parts() {
        let (rows, groups) = (Rows::unmasked([1; 4]), [0; 4]);
        let parts = [vec![1.0, 0.0, 0.0, 1.0], vec![0.0, 100.0, 0.0, 100.0]];
        let only_first = gdpo(&rows, &parts, &[1.0, 0.0], &groups, true).unwrap();
        let alone = gdpo(&rows, &parts[..1], &[1.0], &groups, true).unwrap();
        assert_eq!(only_first, alone);
        let equal = gdpo(&rows, &parts, &[1.0, 1.0], &groups, true).unwrap().advantages;
        assert!(
            (equal[0] - equal[1]).abs() < 1e-5,
            "only 1e-6 beside the deviations knows the range: {equal:?}"
        );
    }
}
