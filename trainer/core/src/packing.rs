//! Packing of samples of different lengths into micro-batches under a strict token budget, and the layout of
//! each micro-batch as one packed row of tokens.
//!
//! A micro-batch never has more tokens than the budget; a sample that does not fit alone is an error. No
//! sample is truncated, padded, lost or repeated. The caller derives the budget from memory limits.

mod balance;
mod fill;
mod groups;
mod layout;
mod refill;

use thiserror::Error;

pub use groups::{PromptGroup, pack_groups};
pub use layout::{PackedLayout, Segment};

use crate::images::ImageError;
use crate::partition::workload;

/// Largest number of tokens that the 32-bit offsets of varlen attention can address.
const MAX_PACKED_TOKENS: usize = i32::MAX as usize;

/// Samples that cannot be packed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PackingError {
    /// One sample alone exceeds the token budget.
    #[error(
        "sample {sample_idx} has {len} tokens, expected at most the {max_tokens} that a micro-batch may hold"
    )]
    SampleTooLong {
        /// Index of the sample.
        sample_idx: usize,
        /// Number of tokens of the sample.
        len: usize,
        /// Token budget of a micro-batch.
        max_tokens: usize,
    },
    /// The placeholders of a prompt do not match its images.
    #[error("the prompt of sample {sample_idx}")]
    Images {
        /// Index of the sample.
        sample_idx: usize,
        /// The placeholders or patches that do not match.
        source: ImageError,
    },
}

/// An assignment of samples to micro-batches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// Sample indices of each micro-batch, ascending. Micro-batches with more work come first, so that the
    /// peak of memory is reached at once.
    pub micro_batches: Vec<Vec<usize>>,
}

/// Packs samples of these lengths (in tokens, the prompt's included) into micro-batches of at most
/// `max_tokens` tokens.
///
/// The number of micro-batches exceeds the smallest possible one by at most one (proved by lower bound or
/// brute force in the tests). Their work, [`workload`] at `hidden_size`, is balanced. The same input gives
/// the same result everywhere.
///
/// # Errors
/// [`PackingError::SampleTooLong`] with the first sample that is longer than `max_tokens`.
///
/// ```
/// use rlt_core::packing::pack;
/// let packing = pack(&[7; 8], 8, 64)?;
/// assert_eq!(packing.micro_batches.len(), 8, "two sevens do not fit into eight");
/// # Ok::<(), rlt_core::packing::PackingError>(())
/// ```
pub fn pack(lens: &[usize], max_tokens: usize, hidden_size: usize) -> Result<Packing, PackingError> {
    let max_tokens = stream_limit(max_tokens);
    let too_long = lens.iter().position(|len| *len > max_tokens);
    if let Some(sample_idx) = too_long {
        return Err(PackingError::SampleTooLong { sample_idx, len: lens[sample_idx], max_tokens });
    }
    let work: Vec<u64> = lens.iter().map(|len| workload(*len, hidden_size)).collect();
    Ok(Packing::of_units(lens, &work, max_tokens))
}

/// Returns the token budget, limited to what 32-bit offsets can address.
fn stream_limit(max_tokens: usize) -> usize {
    max_tokens.min(MAX_PACKED_TOKENS)
}

impl Packing {
    /// Packs units that are never split, none of which is longer than `max_tokens`.
    fn of_units(lens: &[usize], work: &[u64], max_tokens: usize) -> Self {
        let filled = fill::fill(lens, max_tokens);
        let mut micro_batches = balance::balance(filled, lens, work, max_tokens);
        micro_batches.iter_mut().for_each(|units| units.sort_unstable());
        let sum = |units: &Vec<usize>| units.iter().map(|unit| work[*unit]).sum::<u64>();
        micro_batches.sort_by_key(|units| (std::cmp::Reverse(sum(units)), units[0]));
        Self { micro_batches }
    }

    /// Sample indices of all micro-batches, concatenated.
    pub fn order(&self) -> Vec<usize> {
        self.micro_batches.concat()
    }

    /// Reorders one value per sample from the order of [`Packing::order`] to the order of the samples.
    /// Returns `None` unless there are as many values as samples.
    pub fn restore<T>(&self, packed: impl IntoIterator<Item = T>) -> Option<Vec<T>> {
        let order = self.order();
        let mut restored: Vec<Option<T>> = order.iter().map(|_| None).collect();
        let mut packed = packed.into_iter();
        for sample_idx in order {
            restored[sample_idx] = Some(packed.next()?);
        }
        if packed.next().is_some() {
            return None;
        }
        restored.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::fill::lower_bound;
    use super::*;

    fn num_tokens(samples: &[usize], lens: &[usize]) -> usize {
        samples.iter().map(|sample| lens[*sample]).sum()
    }

    /// Fewest micro-batches by trying everything, equal loads once; only for a handful of samples.
    pub(super) fn fewest(lens: &[usize], max_tokens: usize) -> usize {
        fn place(lens: &[usize], loads: &mut Vec<usize>, max_tokens: usize, best: &mut usize) {
            let Some((len, rest)) = lens.split_first() else {
                *best = (*best).min(loads.len());
                return;
            };
            if loads.len() >= *best {
                return;
            }
            for at in 0..loads.len() {
                if loads[at] + len <= max_tokens && !loads[..at].contains(&loads[at]) {
                    loads[at] += len;
                    place(rest, loads, max_tokens, best);
                    loads[at] -= len;
                }
            }
            loads.push(*len);
            place(rest, loads, max_tokens, best);
            loads.pop();
        }
        let mut sorted = lens.to_vec();
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        let mut best = lens.len();
        place(&sorted, &mut Vec::new(), max_tokens, &mut best);
        best
    }

    fn check(lens: &[usize], max_tokens: usize) -> Result<Packing, TestCaseError> {
        let packing = pack(lens, max_tokens, 64).unwrap();
        for samples in &packing.micro_batches {
            prop_assert!(!samples.is_empty());
            prop_assert!(num_tokens(samples, lens) <= max_tokens, "{samples:?} exceed {max_tokens}");
        }
        let mut all = packing.order();
        all.sort_unstable();
        prop_assert_eq!(all, (0..lens.len()).collect::<Vec<_>>());
        Ok(packing)
    }

    proptest! {
        #[test]
        fn few_samples_take_at_most_one_micro_batch_too_many(
            lens in prop::collection::vec(1_usize..=24, 1..15), max_tokens in 24_usize..60,
        ) {
            let packing = check(&lens, max_tokens)?;
            prop_assert!(packing.micro_batches.len() <= fewest(&lens, max_tokens) + 1);
        }

        #[test]
        fn many_samples_stay_next_to_the_lower_bound(
            lens in prop::collection::vec(1_usize..=4096, 1..300), max_tokens in 12_288_usize..40_000,
        ) {
            let packing = check(&lens, max_tokens)?;
            prop_assert!(packing.micro_batches.len() <= lower_bound(&lens, max_tokens) + 1);
        }

        /// Three lengths to a bin: the hardest kind for greedy packing.
        #[test]
        fn triplets_that_fill_their_budget_are_found(
            cuts in prop::collection::vec((251_usize..490, 0_usize..120), 1..80),
        ) {
            let triplet = |&(first, more): &(usize, usize)| {
                let second = 251 + more.min(1000 - first - 502);
                [first, second, 1000 - first - second]
            };
            let lens: Vec<usize> = cuts.iter().flat_map(triplet).collect();
            let packing = check(&lens, 1000)?;
            let num = packing.micro_batches.len();
            prop_assert!(num <= cuts.len() + 1, "{num} for {}", cuts.len());
        }

        #[test]
        fn restoring_undoes_packing(lens in prop::collection::vec(1_usize..100, 0..50)) {
            let packing = pack(&lens, 128, 64).unwrap();
            let packed: Vec<usize> = packing.order().iter().map(|sample| lens[*sample]).collect();
            prop_assert_eq!(packing.restore(packed).unwrap(), lens);
        }
    }

    /// Lengths for which first-fit decreasing needs 11/9 of the optimum: 18 bins are possible, it takes 22.
    #[test]
    fn the_worst_case_of_greedy_packing_is_mastered() {
        let lens: Vec<usize> =
            [(12, 1002), (12, 504), (12, 502), (24, 496)].iter().flat_map(|&(n, len)| vec![len; n]).collect();
        let optimum = 18;
        assert_eq!(num_tokens(&(0..lens.len()).collect::<Vec<_>>(), &lens).div_ceil(2000), optimum);
        assert!(pack(&lens, 2000, 64).unwrap().micro_batches.len() <= optimum + 1);
    }

    #[test]
    fn work_is_balanced_within_the_budget() {
        let lens: Vec<usize> = (0..64).map(|sample| 100 + (sample * 37) % 400).collect();
        let packing = pack(&lens, 4096, 64).unwrap();
        let work = |samples: &Vec<usize>| samples.iter().map(|s| workload(lens[*s], 64)).sum::<u64>() as f64;
        let works: Vec<f64> = packing.micro_batches.iter().map(work).collect();
        let mean = works.iter().sum::<f64>() / works.len() as f64;
        assert!(works[0] <= 1.02 * mean, "{works:?}");
    }

    #[test]
    fn a_sample_that_fits_nowhere_is_named() {
        assert_eq!(
            pack(&[3, 9, 10], 8, 64),
            Err(PackingError::SampleTooLong { sample_idx: 1, len: 9, max_tokens: 8 })
        );
        assert_eq!(pack(&[], 8, 64), Ok(Packing::default()));
        assert!(pack(&[1 << 31], usize::MAX, 64).is_err(), "offsets have 32 bits");
    }

    #[test]
    fn restoring_wants_exactly_one_value_per_sample() {
        let packing = pack(&[1, 2], 8, 64).unwrap();
        assert_eq!((packing.restore([1]), packing.restore([1, 2, 3])), (None, None));
    }
}
