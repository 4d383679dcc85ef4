//! Balances the work of micro-batches without changing their number or exceeding the budget.

use crate::partition::{PartSizes, karmarkar_karp};

/// Largest number of exchanges before the balance is accepted as good enough.
const MAX_ROUNDS: usize = 10_000;

/// Returns a packing with the same number of bins and more even work: a new partition by work or by length if
/// one happens to keep the budget, otherwise the given packing improved by moves and swaps.
pub(super) fn balance(
    bins: Vec<Vec<usize>>,
    lens: &[usize],
    workloads: &[u64],
    capacity: usize,
) -> Vec<Vec<usize>> {
    let lens_as_work: Vec<u64> = lens.iter().map(|len| *len as u64).collect();
    for work in [workloads, &lens_as_work] {
        let fits = |part: &Vec<usize>| part.iter().map(|item| lens[*item]).sum::<usize>() <= capacity;
        if let Ok(parts) = karmarkar_karp(work, bins.len(), PartSizes::Free)
            && parts.iter().all(fits)
        {
            return parts;
        }
    }
    let mut exchange = Exchange::new(bins, lens, workloads, capacity);
    for _ in 0..MAX_ROUNDS {
        if !exchange.improve() {
            break;
        }
    }
    exchange.bins
}

/// A move of one item to a lighter bin, optionally in exchange for another.
#[derive(Clone, Copy, Debug)]
struct Trade {
    gives: usize,
    takes: Option<usize>,
}

struct Exchange<'a> {
    bins: Vec<Vec<usize>>,
    tokens: Vec<usize>,
    work: Vec<u64>,
    lens: &'a [usize],
    workloads: &'a [u64],
    capacity: usize,
}

impl<'a> Exchange<'a> {
    fn new(bins: Vec<Vec<usize>>, lens: &'a [usize], workloads: &'a [u64], capacity: usize) -> Self {
        let tokens = bins.iter().map(|bin| bin.iter().map(|item| lens[*item]).sum()).collect();
        let work = bins.iter().map(|bin| bin.iter().map(|item| workloads[*item]).sum()).collect();
        Self { bins, tokens, work, lens, workloads, capacity }
    }

    /// Improves the heaviest bin by a trade with the lightest bin that allows one; false if none does.
    fn improve(&mut self) -> bool {
        let mut order: Vec<usize> = (0..self.bins.len()).collect();
        order.sort_by_key(|bin| (self.work[*bin], *bin));
        let Some((&heavy, lighter)) = order.split_last() else { return false };
        for &light in lighter {
            if let Some(trade) = self.best_trade(heavy, light) {
                self.apply(heavy, light, trade);
                return true;
            }
        }
        false
    }

    /// Returns the trade that minimises the larger work of the two bins, if that is less than the heavy bin's
    /// now.
    fn best_trade(&self, heavy: usize, light: usize) -> Option<Trade> {
        let back = std::iter::once(None).chain(self.bins[light].iter().copied().map(Some));
        let trades =
            back.flat_map(|takes| self.bins[heavy].iter().enumerate().map(move |(at, _)| (at, takes)));
        let mut best = (self.work[heavy], None);
        for (at, takes) in trades {
            let gives = self.bins[heavy][at];
            let (tokens_back, work_back) =
                takes.map_or((0, 0), |item| (self.lens[item], self.workloads[item]));
            let keeps_both = self.tokens[heavy] - self.lens[gives] + tokens_back <= self.capacity
                && self.tokens[light] + self.lens[gives] - tokens_back <= self.capacity;
            let after = (self.work[heavy] - self.workloads[gives] + work_back)
                .max(self.work[light] + self.workloads[gives] - work_back);
            let empties = takes.is_none() && self.bins[heavy].len() == 1;
            if keeps_both && !empties && after < best.0 {
                best = (after, Some(Trade { gives, takes }));
            }
        }
        best.1
    }

    fn apply(&mut self, heavy: usize, light: usize, Trade { gives, takes }: Trade) {
        self.hand_over(heavy, light, gives);
        if let Some(item) = takes {
            self.hand_over(light, heavy, item);
        }
    }

    fn hand_over(&mut self, from: usize, to: usize, item: usize) {
        self.bins[from].retain(|other| *other != item);
        self.bins[to].push(item);
        self.tokens[from] -= self.lens[item];
        self.tokens[to] += self.lens[item];
        self.work[from] -= self.workloads[item];
        self.work[to] += self.workloads[item];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trades_keep_the_budget_and_lower_the_peak() {
        let lens = [90, 10, 50, 45];
        let workloads = [9000, 100, 2500, 2025];
        let mut exchange = Exchange::new(vec![vec![0, 1], vec![2, 3]], &lens, &workloads, 100);
        assert!(!exchange.improve(), "every trade would exceed 100 tokens or raise the peak");
        let mut exchange = Exchange::new(vec![vec![0, 1], vec![2, 3]], &lens, &workloads, 105);
        assert!(exchange.improve());
        assert_eq!((exchange.work, exchange.tokens), (vec![9000, 4625], vec![90, 105]));
    }
}
