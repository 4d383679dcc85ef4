//! Composition of an epoch from data sets with weights.
//!
//! An epoch has as many draws as all data sets together have items. Each data set has a fixed number of them,
//! its quota, by its weight. Its draws continue where the last epoch left off: draw `k` of a data set of `n`
//! items, counted over all epochs, is item `k % n` of its pass `k / n`, and each pass has its own order. So
//! all items of a data set with a small weight are drawn before any of them is drawn twice. Every draw is a
//! function of weights, seed, epoch and position, so that no further state has to be saved.

use rlt_core::permutation::{Permutation, splitmix64};

/// Items and draws of one data set in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Index of the first item, and number of items.
    first: u64,
    num_items: u64,
    /// Index of the first draw in an epoch, and number of draws per epoch.
    begin: u64,
    quota: u64,
}

/// Data sets that are mixed by weight in each epoch.
#[derive(Clone, Debug)]
pub(super) struct Mixture {
    parts: Vec<Part>,
    seed: Option<u64>,
    /// Draws of an epoch in an order that spaces those of each data set evenly; empty if a seed shuffles
    /// them.
    spread: Vec<u32>,
}

impl Mixture {
    /// Creates the mixture of data sets given by number of items, at least one each, and weight. With a seed
    /// they are shuffled.
    pub(super) fn new(sets: &[(u64, f64)], seed: Option<u64>) -> Self {
        let quotas = quotas(sets);
        let (mut first, mut begin) = (0, 0);
        let mut parts = Vec::new();
        for (&(num_items, _), quota) in sets.iter().zip(quotas) {
            parts.push(Part { first, num_items, begin, quota });
            first += num_items;
            begin += quota;
        }
        let spread = if seed.is_none() { spread(&parts) } else { Vec::new() };
        Self { parts, seed, spread }
    }

    /// Index of the item of a draw of an epoch. With a seed, the caller has shuffled the draws.
    pub(super) fn item(&self, epoch: u64, draw: u64) -> u64 {
        let draw = self.spread.get(draw as usize).map_or(draw, |draw| u64::from(*draw));
        let part_idx = self.parts.partition_point(|part| part.begin + part.quota <= draw);
        let Some(part) = self.parts.get(part_idx) else { return 0 };
        let so_far = epoch * part.quota + (draw - part.begin);
        let (pass, within) = (so_far / part.num_items, so_far % part.num_items);
        let order = |seed| Permutation::new(part.num_items, splitmix64(seed, part_idx as u64), pass);
        part.first + self.seed.and_then(|seed| order(seed).get(within)).unwrap_or(within)
    }

    /// Number of draws of each data set in an epoch.
    #[cfg(test)]
    fn quotas(&self) -> impl Iterator<Item = u64> + '_ {
        self.parts.iter().map(|part| part.quota)
    }
}

/// Number of draws of each data set, in total the number of items. Each share is rounded down; the data sets
/// with the largest remainders get one more.
fn quotas(sets: &[(u64, f64)]) -> Vec<u64> {
    let num_draws: u64 = sets.iter().map(|(num_items, _)| num_items).sum();
    let total: f64 = sets.iter().map(|(_, weight)| weight).sum();
    let shares: Vec<f64> = sets.iter().map(|(_, weight)| weight / total * num_draws as f64).collect();
    let mut quotas: Vec<u64> = shares.iter().map(|share| share.floor() as u64).collect();
    let mut by_cut: Vec<usize> = (0..sets.len()).collect();
    by_cut.sort_by(|a, b| shares[*b].fract().total_cmp(&shares[*a].fract()));
    let missing = num_draws.saturating_sub(quotas.iter().sum());
    by_cut.iter().cycle().take(missing as usize).for_each(|idx| quotas[*idx] += 1);
    quotas
}

/// Orders all draws so that those of each data set are evenly spaced.
fn spread(parts: &[Part]) -> Vec<u32> {
    let place = |part: &Part, idx: u64| (idx as f64 + 0.5) / part.quota as f64;
    let draws = parts.iter().flat_map(|part| (0..part.quota).map(move |idx| (part, idx)));
    let mut places: Vec<(f64, u32)> =
        draws.map(|(part, idx)| (place(part, idx), (part.begin + idx) as u32)).collect();
    places.sort_by(|a, b| a.0.total_cmp(&b.0));
    places.into_iter().map(|(_, draw)| draw).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn epoch(mixture: &Mixture, epoch: u64, num_draws: u64) -> Vec<u64> {
        (0..num_draws).map(|draw| mixture.item(epoch, draw)).collect()
    }

    proptest! {
        #[test]
        fn data_sets_are_drawn_by_weight_and_every_item_once_before_any_twice(
            sets in prop::collection::vec((1u64..20, 0.01f64..100.0), 1..5),
            seed in prop::option::of(any::<u64>()),
        ) {
            let mixture = Mixture::new(&sets, seed);
            let num_items: u64 = sets.iter().map(|(num_items, _)| num_items).sum();
            prop_assert_eq!(mixture.quotas().sum::<u64>(), num_items);
            let total: f64 = sets.iter().map(|(_, weight)| weight).sum();
            let draws: Vec<u64> = (0..7).flat_map(|idx| epoch(&mixture, idx, num_items)).collect();
            let mut first = 0;
            for ((set_items, weight), quota) in sets.iter().zip(mixture.quotas()) {
                prop_assert!((weight / total * num_items as f64 - quota as f64).abs() < 1.0);
                let of_set = |item: &&u64| (first..first + set_items).contains(*item);
                let own: Vec<u64> = draws.iter().filter(of_set).copied().collect();
                prop_assert_eq!(own.len() as u64, 7 * quota);
                let counts: Vec<usize> =
                    (first..first + set_items).map(|item| own.iter().filter(|own| **own == item).count()).collect();
                let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
                prop_assert!(most - least <= 1, "{:?}", counts);
                first += set_items;
            }
        }
    }

    #[test]
    fn without_a_seed_data_sets_alternate_by_their_weights() {
        let mixture = Mixture::new(&[(4, 2.0), (2, 1.0)], None);
        assert_eq!(epoch(&mixture, 0, 6), [0, 4, 1, 2, 5, 3]);
        // The rare data set is continued, the frequent one is repeated.
        let mixture = Mixture::new(&[(2, 3.0), (6, 1.0)], None);
        assert_eq!(epoch(&mixture, 0, 8), [0, 1, 6 - 4, 0, 1, 0, 3, 1]);
        assert_eq!(epoch(&mixture, 1, 8).into_iter().filter(|item| *item > 1).collect::<Vec<_>>(), [4, 5]);
    }
}
