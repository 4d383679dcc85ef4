//! Partitions of equal work, which assign sequences to ranks or micro-batches.
//!
//! Inputs are amounts of work, outputs are item indices. Token budgets are in [`crate::packing`].

mod karmarkar_karp;

use std::cmp::Reverse;

use thiserror::Error;

pub use karmarkar_karp::karmarkar_karp;

/// Constraint on the number of items in each part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartSizes {
    /// Parts may have different sizes, at least one item, as balances the work best.
    Free,
    /// All parts have the same size; the number of items must be a multiple of the number of parts.
    Equal,
}

/// Items that cannot be partitioned as requested.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PartitionError {
    /// Some part would be empty.
    #[error(
        "cannot spread {num_items} items over {num_parts} parts, expected 1 part or more and an item for each"
    )]
    TooFewItems {
        /// Number of items.
        num_items: usize,
        /// Number of parts requested.
        num_parts: usize,
    },
    /// Parts of equal size are impossible.
    #[error("cannot give {num_parts} parts the same number of {num_items} items, expected a multiple")]
    Uneven {
        /// Number of items.
        num_items: usize,
        /// Number of parts requested.
        num_parts: usize,
    },
}

/// Criterion by which items are spread over shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// Even work, whatever the number of items.
    #[default]
    Work,
    /// Even work among shares of equally many items. If the number does not divide, some have one more.
    Count,
    /// Equally many adjacent items. If the number does not divide, the first shares have one more.
    Order,
}

/// Assigns items to `num_shares` shares, each ascending. Some shares are empty if there are fewer items.
pub fn shares(workloads: &[u64], num_shares: usize, balance: Balance) -> Vec<Vec<usize>> {
    let spread = match balance {
        Balance::Work => karmarkar_karp(workloads, num_shares, PartSizes::Free),
        Balance::Count => of_equal_count(workloads, num_shares),
        Balance::Order => Ok(neighbours(workloads.len(), num_shares)),
    };
    let mut shares = spread.unwrap_or_else(|_| (0..workloads.len()).map(|item| vec![item]).collect());
    shares.iter_mut().for_each(|share| share.sort_unstable());
    shares.resize(num_shares, Vec::new());
    shares
}

/// Partitions the heaviest items into shares of equal size, as large as their number allows. The remaining,
/// lightest items are assigned one each to the shares of least work.
fn of_equal_count(workloads: &[u64], num_shares: usize) -> Result<Vec<Vec<usize>>, PartitionError> {
    let mut by_work: Vec<usize> = (0..workloads.len()).collect();
    by_work.sort_by_key(|item| Reverse(workloads[*item]));
    let left_over = by_work.split_off(workloads.len() - workloads.len() % num_shares.max(1));
    let heaviest: Vec<u64> = by_work.iter().map(|item| workloads[*item]).collect();
    let parts = karmarkar_karp(&heaviest, num_shares, PartSizes::Equal)?;
    let mut shares: Vec<Vec<usize>> =
        parts.into_iter().map(|part| part.into_iter().map(|place| by_work[place]).collect()).collect();
    shares.sort_by_key(|share| share.iter().map(|item| workloads[*item]).sum::<u64>());
    for (share, item) in shares.iter_mut().zip(left_over) {
        share.push(item);
    }
    Ok(shares)
}

fn neighbours(num_items: usize, num_shares: usize) -> Vec<Vec<usize>> {
    let (each, more) = (num_items / num_shares.max(1), num_items % num_shares.max(1));
    let start = |share: usize| share * each + share.min(more);
    (0..num_shares).map(|share| (start(share)..start(share + 1)).collect()).collect()
}

/// Returns the work of one sequence in a decoder: proportional to 12 h^2 L + 2 h L^2 floating-point
/// operations per layer, in units of 2 h so that sums over any batch fit. verl fixes h = 4096: 24576 L + L^2.
pub fn workload(len: usize, hidden_size: usize) -> u64 {
    let (len, hidden_size) = (len as u64, hidden_size as u64);
    6 * hidden_size * len + len * len
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn work_grows_with_the_square_of_the_length() {
        assert_eq!(workload(1000, 4096), 24_576_000 + 1_000_000);
        assert!(
            workload(1 << 20, 1 << 14).checked_mul(1 << 20).is_some(),
            "a million long sequences still add up"
        );
    }

    proptest! {
        #[test]
        fn every_item_is_in_one_share_and_none_is_far_above_the_mean(
            workloads in prop::collection::vec(1_u64..1000, 0..40),
            num_shares in 1_usize..9,
        ) {
            let shares = shares(&workloads, num_shares, Balance::Work);
            prop_assert_eq!(shares.len(), num_shares);
            let work = |share: &Vec<usize>| share.iter().map(|item| workloads[*item]).sum::<u64>();
            let mean = workloads.iter().sum::<u64>() / num_shares as u64;
            let largest = workloads.iter().copied().max().unwrap_or(0);
            prop_assert!(shares.iter().all(|share| work(share) <= mean + largest));
        }

        #[test]
        fn every_item_is_in_one_share_whatever_is_balanced(
            workloads in prop::collection::vec(1_u64..1000, 0..40),
            num_shares in 1_usize..9,
        ) {
            for balance in [Balance::Work, Balance::Count, Balance::Order] {
                let shares = shares(&workloads, num_shares, balance);
                prop_assert_eq!(shares.len(), num_shares);
                let mut items: Vec<usize> = shares.concat();
                items.sort_unstable();
                prop_assert_eq!(items, (0..workloads.len()).collect::<Vec<_>>());
                let fewest = workloads.len() / num_shares;
                if balance != Balance::Work {
                    prop_assert!(shares.iter().all(|share| (fewest..=fewest + 1).contains(&share.len())));
                }
            }
        }
    }

    #[test]
    fn a_balance_decides_which_rank_gets_the_long_sequences() {
        let workloads = [90, 30, 30, 30, 10, 10];
        let work = |share: &Vec<usize>| share.iter().map(|item| workloads[*item]).sum::<u64>();
        let works = |balance| {
            let mut works: Vec<u64> = shares(&workloads, 2, balance).iter().map(work).collect();
            works.sort_unstable();
            works
        };
        assert_eq!(works(Balance::Work), [100, 100], "one and a light one beside the other four");
        assert!(works(Balance::Count)[1] < 150, "three each, and the heavy one beside light ones");
        assert_eq!(works(Balance::Order), [50, 150]);
    }
}
