//! Bin packing: few bins of a fixed capacity.
//!
//! Best-fit decreasing is nearly always optimal for realistic lengths. If the result is above the lower
//! bound, bins are filled one by one as completely as possible (minimum bin slack, Gupta and Ho 1999). If
//! that is still more than one above the bound, a few bins at a time are emptied and filled again, which is
//! kept if it makes full bins fuller (the fitness of Falkenauer 1996). Each stage runs only for inputs on
//! which the previous one can fail.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::refill::refill;

/// Upper bound of the thorough search's cost, in word operations: a few tenths of a second, and far above the
/// need of realistic lengths.
const MAX_SEARCH: usize = 500_000_000;

/// Packs items of these lengths, none above `capacity`, into few bins of that capacity.
pub(super) fn fill(lens: &[usize], capacity: usize) -> Vec<Vec<usize>> {
    let mut items: Vec<usize> = (0..lens.len()).collect();
    items.sort_unstable_by_key(|item| (Reverse(lens[*item]), *item));
    let bound = lower_bound(lens, capacity);
    let quick = best_fit(&items, lens, capacity);
    let cost = quick.len() * lens.len() * (capacity / 64 + 1);
    if quick.len() <= bound || cost > MAX_SEARCH {
        return quick;
    }
    let thorough = fullest_first(items, lens, capacity);
    let bins = if thorough.len() < quick.len() { thorough } else { quick };
    refill(bins, lens, capacity, bound + 1, MAX_SEARCH - cost)
}

/// Returns a lower bound of the number of bins: L2 of Martello and Toth (1990). For a threshold t, each item
/// above capacity - t needs a bin that takes no item of t or more. Each item above half needs a bin, and
/// whatever part of the middle items does not fit there needs more.
pub(super) fn lower_bound(lens: &[usize], capacity: usize) -> usize {
    let mut sorted = lens.to_vec();
    sorted.sort_unstable();
    let mut thresholds: Vec<usize> = sorted.iter().copied().filter(|len| 2 * len <= capacity).collect();
    thresholds.push(0);
    thresholds.sort_unstable();
    thresholds.dedup();
    let prefix: Vec<usize> = std::iter::once(0)
        .chain(sorted.iter().scan(0, |sum, len| {
            *sum += len;
            Some(*sum)
        }))
        .collect();
    let below = |limit: usize| sorted.partition_point(|len| *len <= limit);
    let (half, all) = (below(capacity / 2), sorted.len());
    let bound = |threshold: usize| {
        let large = below(capacity - threshold).max(half);
        let small = sorted.partition_point(|len| *len < threshold);
        let room = (large - half) * capacity - (prefix[large] - prefix[half]);
        let middle = prefix[half] - prefix[small.min(half)];
        (all - half) + middle.saturating_sub(room).div_ceil(capacity.max(1))
    };
    thresholds.into_iter().map(bound).max().unwrap_or(0)
}

/// Puts each item, longest first, into the bin where it leaves the least space.
fn best_fit(items: &[usize], lens: &[usize], capacity: usize) -> Vec<Vec<usize>> {
    let mut bins: Vec<Vec<usize>> = Vec::new();
    let mut by_room: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for &item in items {
        let fitting = by_room.range(lens[item]..).next().map(|(room, _)| *room);
        let bin = match fitting {
            Some(room) => take(&mut by_room, room),
            None => {
                bins.push(Vec::new());
                bins.len() - 1
            }
        };
        bins[bin].push(item);
        by_room.entry(fitting.unwrap_or(capacity) - lens[item]).or_default().push(bin);
    }
    bins
}

/// Removes and returns a bin with this much space; 0 if there is none, which [`best_fit`] never requests.
fn take(by_room: &mut BTreeMap<usize, Vec<usize>>, room: usize) -> usize {
    let Some(bins) = by_room.get_mut(&room) else { return 0 };
    let bin = bins.pop().unwrap_or(0);
    if bins.is_empty() {
        by_room.remove(&room);
    }
    bin
}

/// Opens a bin with the first remaining item and adds the items that fill it best, until no item remains.
pub(super) fn fullest_first(mut items: Vec<usize>, lens: &[usize], capacity: usize) -> Vec<Vec<usize>> {
    let mut bins = Vec::new();
    while !items.is_empty() {
        let first = items.remove(0);
        let mut bin = fullest_subset(&items, lens, capacity - lens[first]);
        items.retain(|item| !bin.contains(item));
        bin.push(first);
        bins.push(bin);
    }
    bins
}

/// Returns the subset of `items` with the largest sum of lengths up to `room`, earlier items preferred.
fn fullest_subset(items: &[usize], lens: &[usize], room: usize) -> Vec<usize> {
    let mut sums = SubsetSums::new(room);
    for &item in items.iter().filter(|item| lens[**item] > 0) {
        sums.add(item, lens[item]);
        if sums.reached(room) {
            break;
        }
    }
    sums.best(lens)
}

/// The sums up to a limit that some subset of the items has, and the item with which each was reached first.
struct SubsetSums {
    limit: usize,
    bits: Vec<u64>,
    by: Vec<u32>,
}

impl SubsetSums {
    fn new(limit: usize) -> Self {
        let mut bits = vec![0; limit / 64 + 1];
        bits[0] = 1;
        Self { limit, bits, by: vec![0; limit + 1] }
    }

    fn reached(&self, sum: usize) -> bool {
        self.bits[sum / 64] >> (sum % 64) & 1 == 1
    }

    /// Adds an item, from high to low words so that it is used once.
    fn add(&mut self, item: usize, len: usize) {
        let (words, shift) = (len / 64, len % 64);
        for at in (words..self.bits.len()).rev() {
            let low = self.bits[at - words] << shift;
            let carry = if shift > 0 && at > words { self.bits[at - words - 1] >> (64 - shift) } else { 0 };
            let mut fresh = (low | carry) & !self.bits[at];
            self.bits[at] |= fresh;
            while fresh != 0 {
                let sum = at * 64 + fresh.trailing_zeros() as usize;
                if sum <= self.limit {
                    self.by[sum] = item as u32;
                }
                fresh &= fresh - 1;
            }
        }
    }

    fn best(&self, lens: &[usize]) -> Vec<usize> {
        let mut sum = (0..=self.limit).rev().find(|sum| self.reached(*sum)).unwrap_or(0);
        let mut subset = Vec::new();
        while sum > 0 {
            let item = self.by[sum] as usize;
            subset.push(item);
            sum -= lens[item];
        }
        subset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fullest_subset_uses_every_item_once() {
        let lens = [5, 5, 3, 70, 64];
        let sum =
            |room| fullest_subset(&[0, 1, 2, 3, 4], &lens, room).iter().map(|i| lens[*i]).sum::<usize>();
        assert_eq!([1, 4, 7, 9, 13, 64, 69, 139, 147, 500].map(sum), [0, 3, 5, 8, 13, 64, 69, 139, 147, 147]);
    }

    #[test]
    fn lower_bound_sees_more_than_the_sum() {
        assert_eq!(lower_bound(&[6; 4], 10), 4, "two sixes never share");
        assert_eq!(lower_bound(&[7, 7, 4, 4], 10), 3, "a four does not fit beside a seven");
        assert_eq!(lower_bound(&[5; 4], 10), 2);
        assert_eq!(lower_bound(&[], 10), 0);
    }
}
