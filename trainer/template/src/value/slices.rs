//! Slices of sequences: `[start:stop:step]` as Python resolves it.

use crate::error::{Error, Result};

/// Returns start, stop and step of a slice of `len` items, as Python's `slice.indices`. The step is limited
/// to one more than the length, because all larger steps select the same items.
pub(crate) fn resolved([start, stop, step]: [Option<i128>; 3], len: usize) -> Result<[i128; 3]> {
    let len = i128::try_from(len).unwrap_or(i128::MAX);
    let step = step.unwrap_or(1);
    if step == 0 {
        return Err(Error::render("slice step cannot be zero"));
    }
    let (lowest, highest) = if step > 0 { (0, len) } else { (-1, len - 1) };
    let bound = |bound: Option<i128>, default: i128| match bound {
        None => default,
        Some(bound) if bound < 0 => bound.saturating_add(len).max(lowest),
        Some(bound) => bound.min(highest),
    };
    let (first, last) = if step > 0 { (lowest, highest) } else { (highest, lowest) };
    Ok([bound(start, first), bound(stop, last), step.clamp(-len - 1, len + 1)])
}

/// Returns the indices of the items that a slice selects from `len` items.
pub(crate) fn indices(numbers: [Option<i128>; 3], len: usize) -> Result<Vec<usize>> {
    let [mut at, stop, step] = resolved(numbers, len)?;
    let mut chosen = Vec::new();
    while (step > 0 && at < stop) || (step < 0 && at > stop) {
        chosen.extend(usize::try_from(at));
        at = at.saturating_add(step);
    }
    Ok(chosen)
}
