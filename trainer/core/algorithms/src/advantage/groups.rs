//! Statistics within rollout groups, the rows that answer the same prompt.

use std::collections::HashMap;

use crate::whiten::mean;

/// Returns the rows of every group, groups in the order in which they first appear.
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

/// Returns the rows with another row of their group in the batch, in order.
///
/// A sample without a verdict is masked and has no row. Its group may then have a single row, which cannot be
/// compared: its advantage is 0.
pub(super) fn comparable(groups: &[usize]) -> Vec<usize> {
    let mut rows: Vec<usize> =
        members(groups).into_iter().filter(|group| group.len() > 1).flatten().collect();
    rows.sort_unstable();
    rows
}

/// Returns the outcomes of the rows `of` a group.
pub(super) fn select(outcomes: &[f64], of: &[usize]) -> Vec<f64> {
    of.iter().map(|row_idx| outcomes[*row_idx]).collect()
}

/// Maps every outcome by a function of its group: `view` turns a group's outcomes into that function.
pub(super) fn within_groups<View: Fn(f64) -> f64>(
    outcomes: &[f64],
    groups: &[usize],
    view: impl Fn(&[f64]) -> View,
) -> Vec<f64> {
    let mut seen = vec![0.0; outcomes.len()];
    for group in members(groups) {
        let of_one = view(&select(outcomes, &group));
        group.iter().for_each(|&row_idx| seen[row_idx] = of_one(outcomes[row_idx]));
    }
    seen
}

/// Mean of a group with more than one sample; 0 for a single one, which keeps its reward.
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
    fn a_row_without_another_of_its_group_is_not_comparable() {
        assert_eq!(comparable(&[7, 3, 7, 9, 3]), [0, 1, 2, 4]);
        assert_eq!(comparable(&[1, 2]), [0; 0]);
    }
}
