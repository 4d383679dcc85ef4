//! Stable sorting of values whose comparison may fail, or that have no order, such as NaN.

use std::cmp::Ordering;

use crate::error::Result;
use crate::value::Value;

/// Returns the indices of `keys` in sorted order. `reverse` keeps the order of equal keys, as Python does.
///
/// The standard library's sort may panic if comparisons contradict each other, as those with NaN do.
pub(crate) fn sorted(keys: &[Value], reverse: bool) -> Result<Vec<usize>> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    let mut width = 1;
    while width < order.len() {
        let mut merged = Vec::with_capacity(order.len());
        for pair in order.chunks(2 * width) {
            let (left, right) = pair.split_at(width.min(pair.len()));
            merge(keys, reverse, left, right, &mut merged)?;
        }
        order = merged;
        width *= 2;
    }
    Ok(order)
}

fn merge(
    keys: &[Value],
    reverse: bool,
    mut left: &[usize],
    mut right: &[usize],
    merged: &mut Vec<usize>,
) -> Result<()> {
    let wanted = if reverse { Ordering::Greater } else { Ordering::Less };
    while let (Some((first, rest)), Some((other, others))) = (left.split_first(), right.split_first()) {
        if keys[*other].compare(&keys[*first], "<")? == Some(wanted) {
            merged.push(*other);
            right = others;
        } else {
            merged.push(*first);
            left = rest;
        }
    }
    merged.extend(left.iter().chain(right));
    Ok(())
}
