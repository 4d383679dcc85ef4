//! Which rows answer the same prompt, and the statistics of their outcomes.

use std::collections::HashMap;

/// Rows of every group, groups in the order in which they first appear.
pub(super) fn members(groups: &[usize]) -> Vec<Vec<usize>> {
    let mut position = HashMap::new();
    let mut members: Vec<Vec<usize>> = Vec::new();
    for (row_idx, group) in groups.iter().enumerate() {
        let slot = *position.entry(group).or_insert(members.len());
        if slot == members.len() {
            members.push(Vec::new());
        }
        members[slot].push(row_idx);
    }
    members
}

/// Outcomes of the rows `of` a group.
pub(super) fn select(outcomes: &[f64], of: &[usize]) -> Vec<f64> {
    of.iter().map(|row_idx| outcomes[*row_idx]).collect()
}

/// Mean, exact for equal values so that a group without a signal gets an advantage of exactly 0.
pub(super) fn mean(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let rough = values.iter().sum::<f64>() / count;
    rough + values.iter().map(|value| value - rough).sum::<f64>() / count
}

/// Unbiased standard deviation of at least two values.
pub(super) fn std(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() as f64 - 1.0)).sqrt()
}

/// Mean of a group with more than one member; a single sample has nothing to compare with and keeps its reward.
pub(super) fn mean_or_zero(values: &[f64]) -> f64 {
    if values.len() > 1 { mean(values) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_the_order_of_appearance() {
        assert_eq!(members(&[7, 3, 7, 3, 9]), [vec![0, 2], vec![1, 3], vec![4]]);
    }

    #[test]
    fn equal_values_have_exactly_their_own_mean() {
        for count in 1..20 {
            assert_eq!(mean(&vec![0.1; count]), 0.1);
        }
        assert_eq!(std(&[0.1, 0.1, 0.1]), 0.0);
        assert_eq!(std(&[1.0, 3.0]), 2.0_f64.sqrt());
    }
}
