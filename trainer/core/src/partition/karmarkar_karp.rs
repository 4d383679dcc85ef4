//! The largest differencing method of Karmarkar and Karp for any number of parts.
//!
//! A state is a tentative partition of some of the items. The two states of largest spread are joined, the
//! largest part of one with the smallest of the other, until one state is left. Results are those of verl
//! (`seqlen_balancing.py`), ties included, at a cost that does not depend on how many items a part already
//! has: parts are linked lists over one shared array, joined in constant time; states keep only their
//! non-empty parts; and the heap holds small keys instead of states.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{PartSizes, PartitionError};

/// End marker of a linked list.
const NONE: u32 = u32::MAX;

/// A part under construction: a linked list of items in [`Lists`]. The field order is the order of parts: by
/// work, then by number of items, then by first item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    work: u64,
    len: u32,
    first: u32,
    last: u32,
}

/// Index of the item that follows each item within its part.
struct Lists {
    next: Vec<u32>,
}

/// Non-empty parts, largest first.
type State = Vec<Part>;

/// Heap key of a state, ordered by spread, then by the largest part; `slot` only finds the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    spread: u64,
    largest: Part,
    slot: usize,
}

/// Assigns items to `num_parts` parts so that their sums of `workloads` are nearly equal. Each part lists
/// item indices, ascending; parts with more work come first. The same input gives the same result everywhere.
///
/// # Errors
/// When a part would be empty or parts of equal size are impossible.
///
/// ```
/// use rlt_core::partition::{PartSizes, karmarkar_karp};
/// let parts = karmarkar_karp(&[900, 100, 300, 700, 500, 200, 800, 400], 4, PartSizes::Equal)?;
/// assert_eq!(parts, [[5, 6], [2, 3], [0, 1], [4, 7]]);
/// # Ok::<(), rlt_core::partition::PartitionError>(())
/// ```
pub fn karmarkar_karp(
    workloads: &[u64],
    num_parts: usize,
    sizes: PartSizes,
) -> Result<Vec<Vec<usize>>, PartitionError> {
    let num_items = workloads.len();
    if num_parts == 0 || num_items < num_parts || num_items >= NONE as usize {
        return Err(PartitionError::TooFewItems { num_items, num_parts });
    }
    let first_len = match sizes {
        PartSizes::Free => 1,
        PartSizes::Equal if num_items.is_multiple_of(num_parts) => num_parts,
        PartSizes::Equal => return Err(PartitionError::Uneven { num_items, num_parts }),
    };
    let mut lists = Lists { next: vec![NONE; num_items] };
    let mut states = first_states(workloads, first_len);
    let keys: Vec<Key> = states.iter().enumerate().map(|(slot, state)| key(state, slot, num_parts)).collect();
    let mut heap = BinaryHeap::from(keys);
    let mut slot = 0;
    while let Some(wide) = heap.pop() {
        slot = wide.slot;
        let Some(narrow) = heap.pop() else { break };
        let other = std::mem::take(&mut states[narrow.slot]);
        join(&mut states[slot], &other, num_parts, &mut lists);
        heap.push(key(&states[slot], slot, num_parts));
    }
    Ok(lists.collect(&states[slot]))
}

/// Makes the initial states: items in ascending order of work, `len` to a state.
fn first_states(workloads: &[u64], len: usize) -> Vec<State> {
    let mut items: Vec<(u64, u32)> = workloads.iter().copied().zip(0..).collect();
    items.sort_unstable();
    let part = |&(work, item): &(u64, u32)| Part { work, len: 1, first: item, last: item };
    items.chunks(len).map(|chunk| chunk.iter().rev().map(part).collect()).collect()
}

fn key(state: &State, slot: usize, num_parts: usize) -> Key {
    let largest = state[0];
    let smallest = if state.len() < num_parts { 0 } else { state[num_parts - 1].work };
    Key { spread: largest.work - smallest, largest, slot }
}

/// Joins the i-th largest part of `state` with the i-th smallest of `other`, where empty parts are the
/// smallest.
fn join(state: &mut State, other: &State, num_parts: usize, lists: &mut Lists) {
    let first_shared = num_parts - other.len();
    for at in first_shared..state.len() {
        state[at] = lists.append(state[at], other[num_parts - 1 - at]);
    }
    let alone = other.len().min(num_parts - state.len());
    state.extend_from_slice(&other[..alone]);
    state.sort_unstable_by_key(|part| Reverse(*part));
}

impl Lists {
    fn append(&mut self, head: Part, tail: Part) -> Part {
        self.next[head.last as usize] = tail.first;
        Part { work: head.work + tail.work, len: head.len + tail.len, first: head.first, last: tail.last }
    }

    fn collect(&self, state: &State) -> Vec<Vec<usize>> {
        state.iter().map(|part| self.items(part)).collect()
    }

    fn items(&self, part: &Part) -> Vec<usize> {
        let follow = |item: &u32| Some(self.next[*item as usize]).filter(|next| *next != NONE);
        let mut items: Vec<usize> =
            std::iter::successors(Some(part.first), follow).map(|item| item as usize).collect();
        items.sort_unstable();
        items
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sums(parts: &[Vec<usize>], workloads: &[u64]) -> Vec<u64> {
        parts.iter().map(|part| part.iter().map(|item| workloads[*item]).sum()).collect()
    }

    fn spread(sums: &[u64]) -> u64 {
        sums.iter().max().unwrap() - sums.iter().min().unwrap()
    }

    /// Longest processing time first: the simple rule that differencing has to beat.
    fn greedy_sums(workloads: &[u64], num_parts: usize) -> Vec<u64> {
        let mut sorted = workloads.to_vec();
        sorted.sort_unstable_by_key(|work| Reverse(*work));
        let mut sums = vec![0; num_parts];
        for work in sorted {
            *sums.iter_mut().min().unwrap() += work;
        }
        sums
    }

    /// The textbook method with copies of item lists: quadratic, and the reference for the fast one.
    fn textbook(workloads: &[u64], num_parts: usize, sizes: PartSizes) -> Vec<Vec<usize>> {
        type State = Vec<(u64, Vec<usize>)>;
        let order = |part: &(u64, Vec<usize>)| Reverse((part.0, part.1.len(), part.1.clone()));
        let len = if sizes == PartSizes::Equal { num_parts } else { 1 };
        let mut items: Vec<usize> = (0..workloads.len()).collect();
        items.sort_by_key(|item| (workloads[*item], *item));
        let mut states: Vec<State> = items
            .chunks(len)
            .map(|chunk| {
                let mut state: State = chunk.iter().map(|item| (workloads[*item], vec![*item])).collect();
                state.resize(num_parts, (0, Vec::new()));
                state.sort_by_key(order);
                state
            })
            .collect();
        while states.len() > 1 {
            states.sort_by_key(|state| (state[0].0 - state[num_parts - 1].0, Reverse(order(&state[0]))));
            let (mut wide, narrow) = (states.pop().unwrap(), states.pop().unwrap());
            for (part, other) in wide.iter_mut().zip(narrow.iter().rev()) {
                part.0 += other.0;
                part.1.extend(&other.1);
            }
            wide.sort_by_key(order);
            states.push(wide);
        }
        let mut parts: Vec<Vec<usize>> = states.remove(0).into_iter().map(|part| part.1).collect();
        parts.iter_mut().for_each(|part| part.sort_unstable());
        parts
    }

    proptest! {
        #[test]
        fn lists_and_keys_change_nothing_about_the_method(
            workloads in prop::collection::vec(0_u64..30, 1..40), num_parts in 1_usize..8,
        ) {
            prop_assume!(workloads.len() >= num_parts);
            let got = karmarkar_karp(&workloads, num_parts, PartSizes::Free).unwrap();
            prop_assert_eq!(got, textbook(&workloads, num_parts, PartSizes::Free));
            let even = &workloads[..workloads.len() / num_parts * num_parts];
            let got = karmarkar_karp(even, num_parts, PartSizes::Equal).unwrap();
            prop_assert!(got.iter().all(|part| part.len() * num_parts == even.len()));
            prop_assert_eq!(got, textbook(even, num_parts, PartSizes::Equal));
        }

        #[test]
        fn every_item_lands_in_exactly_one_part(
            workloads in prop::collection::vec(0_u64..100_000, 1..200), num_parts in 1_usize..20,
        ) {
            prop_assume!(workloads.len() >= num_parts);
            let parts = karmarkar_karp(&workloads, num_parts, PartSizes::Free).unwrap();
            prop_assert!(parts.iter().all(|part| !part.is_empty()));
            let mut items = parts.concat();
            items.sort_unstable();
            prop_assert_eq!(items, (0..workloads.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn differencing_balances_better_than_longest_first() {
        let mut state = 1_u64;
        for (num_items, num_parts) in [(64, 4), (256, 8), (512, 8), (1024, 16), (512, 64)] {
            let workloads: Vec<u64> = (0..num_items)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    64 + (state >> 33) % 8000
                })
                .collect();
            let got = sums(&karmarkar_karp(&workloads, num_parts, PartSizes::Free).unwrap(), &workloads);
            let greedy = greedy_sums(&workloads, num_parts);
            assert!(spread(&got) <= spread(&greedy), "{num_items} over {num_parts}");
        }
    }

    #[test]
    fn impossible_partitions_are_refused() {
        let refused = |items: &[u64], parts, sizes| karmarkar_karp(items, parts, sizes).unwrap_err();
        let too_few = PartitionError::TooFewItems { num_items: 1, num_parts: 2 };
        assert_eq!(refused(&[1], 2, PartSizes::Free), too_few);
        assert_eq!(
            refused(&[1], 0, PartSizes::Free),
            PartitionError::TooFewItems { num_items: 1, num_parts: 0 }
        );
        let uneven = PartitionError::Uneven { num_items: 3, num_parts: 2 };
        assert_eq!(refused(&[1, 2, 3], 2, PartSizes::Equal), uneven);
    }
}
