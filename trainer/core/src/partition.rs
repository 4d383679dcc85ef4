//! Spreading sequences over parts of equal work: which sequence goes to which rank or micro-batch.
//!
//! Only numbers of work come in, only indices go out. Token budgets are [`crate::packing`]'s business.

mod karmarkar_karp;

use thiserror::Error;

pub use karmarkar_karp::karmarkar_karp;

/// How many items each part gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartSizes {
    /// As many as balance the work best, at least one.
    Free,
    /// The same number; the number of items must be a multiple of the number of parts.
    Equal,
}

/// Why items cannot be spread over parts.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PartitionError {
    /// Some part would stay empty.
    #[error(
        "cannot spread {num_items} items over {num_parts} parts, expected 1 part or more and an item for each"
    )]
    TooFewItems {
        /// Items given.
        num_items: usize,
        /// Parts asked for.
        num_parts: usize,
    },
    /// Parts of equal size are impossible.
    #[error("cannot give {num_parts} parts the same number of {num_items} items, expected a multiple")]
    Uneven {
        /// Items given.
        num_items: usize,
        /// Parts asked for.
        num_parts: usize,
    },
}

/// The items of each of `num_shares` shares of even work, ascending; some are empty where items are fewer.
pub fn shares(workloads: &[u64], num_shares: usize) -> Vec<Vec<usize>> {
    let mut shares = karmarkar_karp(workloads, num_shares, PartSizes::Free)
        .unwrap_or_else(|_| (0..workloads.len()).map(|item| vec![item]).collect());
    shares.iter_mut().for_each(|share| share.sort_unstable());
    shares.resize(num_shares, Vec::new());
    shares
}

/// Work of one sequence in a decoder: proportional to 12 h^2 L + 2 h L^2 floating point operations a layer,
/// in units of 2 h so that sums over any batch fit. verl fixes h = 4096: 24576 L + L^2.
pub fn workload(len: usize, hidden_size: usize) -> u64 {
    let (len, hidden_size) = (len as u64, hidden_size as u64);
    6 * hidden_size * len + len * len
}

/// Order within a rank's part in which work rises and falls again, so that micro-batches cut from neighbours
/// are alike: ascending by work, then every second item, then the others backwards.
pub fn zigzag(part: &[usize], workloads: &[u64]) -> Vec<usize> {
    let mut sorted = part.to_vec();
    sorted.sort_unstable_by_key(|item| (workloads[*item], *item));
    let odd: Vec<usize> = sorted.iter().copied().skip(1).step_by(2).collect();
    sorted.into_iter().step_by(2).chain(odd.into_iter().rev()).collect()
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
            let shares = shares(&workloads, num_shares);
            prop_assert_eq!(shares.len(), num_shares);
            let mut items: Vec<usize> = shares.concat();
            items.sort_unstable();
            prop_assert_eq!(items, (0..workloads.len()).collect::<Vec<_>>());
            let work = |share: &Vec<usize>| share.iter().map(|item| workloads[*item]).sum::<u64>();
            let mean = workloads.iter().sum::<u64>() / num_shares as u64;
            let largest = workloads.iter().copied().max().unwrap_or(0);
            prop_assert!(shares.iter().all(|share| work(share) <= mean + largest));
        }
    }

    #[test]
    fn zigzag_rises_and_falls() {
        assert_eq!(zigzag(&[3, 1, 0, 2, 4], &[10, 20, 30, 40, 50]), [0, 2, 4, 3, 1]);
        assert_eq!(zigzag(&[], &[]), [0_usize; 0]);
    }
}
