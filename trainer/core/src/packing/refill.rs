//! Local search that empties a few bins and fills them again until there are few enough.

use super::fill::fullest_first;
use crate::permutation::splitmix64;

/// Largest number of bins that are emptied at once, in addition to the emptiest.
const MAX_OTHERS: u64 = 5;

/// Largest number of attempts; the hardest inputs of the tests need a tenth of it.
const MAX_ROUNDS: u64 = 2_000;

/// Lowers the number of bins towards `target` within about `max_cost` word operations. The choice of bins is
/// pseudo-random but the same in every run; a packing never gets worse.
pub(super) fn refill(
    mut bins: Vec<Vec<usize>>,
    lens: &[usize],
    capacity: usize,
    target: usize,
    max_cost: usize,
) -> Vec<Vec<usize>> {
    let (mut cost, mut round) = (0, 0);
    while bins.len() > target && round < MAX_ROUNDS && cost < max_cost {
        let others = 1 + splitmix64(round, 0) % MAX_OTHERS;
        let emptied = take_some(&mut bins, lens, round, others as usize);
        let mut items = emptied.concat();
        items.sort_by_key(|item| splitmix64(round, 1 + *item as u64));
        cost += emptied.len() * items.len() * (capacity / 64 + 8);
        let fresh = fullest_first(items, lens, capacity);
        let better = fresh.len() <= emptied.len() && fitness(&fresh, lens) >= fitness(&emptied, lens);
        bins.extend(if better { fresh } else { emptied });
        round += 1;
    }
    bins
}

/// Removes and returns the emptiest bin and some others.
fn take_some(bins: &mut Vec<Vec<usize>>, lens: &[usize], round: u64, others: usize) -> Vec<Vec<usize>> {
    let emptiest = (0..bins.len()).min_by_key(|bin| load(&bins[*bin], lens)).unwrap_or(0);
    let mut taken = vec![bins.swap_remove(emptiest)];
    for at in 0..others.min(bins.len()) {
        let bin = splitmix64(!round, at as u64) % bins.len() as u64;
        taken.push(bins.swap_remove(bin as usize));
    }
    taken
}

fn load(bin: &[usize], lens: &[usize]) -> usize {
    bin.iter().map(|item| lens[*item]).sum()
}

/// Returns the sum of the squared loads. Of two packings with equally many bins, the one with fuller bins is
/// closer to needing fewer.
fn fitness(bins: &[Vec<usize>], lens: &[usize]) -> u128 {
    bins.iter().map(|bin| (load(bin, lens) as u128).pow(2)).sum()
}
