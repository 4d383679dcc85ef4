//! Slices of a layer's products, and who samples what where several ranks multiply with one copy of the
//! weights. Nothing here exchanges anything.
//!
//! ```text
//! 4 ranks, 2 slices, 8 prompts
//!
//!     rank       slice    samples       judges and hands on
//!     0          0        0, 2, 4, 6    0, 4
//!     1          1        0, 2, 4, 6    2, 6
//!     2          0        1, 3, 5, 7    1, 5
//!     3          1        1, 3, 5, 7    3, 7
//! ```
//! Neighbours with one copy of the weights sample the very same completions, so that each judges a part of
//! them alone.

use std::ops::Range;

/// One of equal slices of every layer's products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Which slice, from 0.
    pub place: usize,
    /// How many slices there are, at least one.
    pub num_slices: usize,
}

impl Slice {
    /// All of a product.
    pub const WHOLE: Self = Self { place: 0, num_slices: 1 };

    /// What the slice has of `len` heads, rows or columns. Where slices do not divide them the last ones are
    /// shorter, or empty.
    pub fn of(self, len: usize) -> Range<usize> {
        let longest = self.longest(len);
        (self.place * longest).min(len)..((self.place + 1) * longest).min(len)
    }

    /// The longest slice of `len`.
    pub fn longest(self, len: usize) -> usize {
        len.div_ceil(self.num_slices)
    }

    /// What the slice has of `len` key heads, which divide the slices or are divided by them: its own, or one
    /// that several slices have, the one that the slice's query heads look at.
    pub fn of_key_heads(self, len: usize) -> Range<usize> {
        let start = self.place * len / self.num_slices;
        start..start + (len / self.num_slices).max(1)
    }
}

/// How prompts are dealt out to ranks, of which `num_slices` neighbours each sample as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dealing {
    num_samplers: usize,
    num_slices: usize,
}

impl Dealing {
    /// Prompts for `num_ranks`, which `num_slices` divide.
    pub fn new(num_ranks: usize, num_slices: usize) -> Self {
        let num_slices = num_slices.max(1);
        Self { num_samplers: (num_ranks / num_slices).max(1), num_slices }
    }

    /// Which of `num_prompts` are sampled by `rank`, and by its neighbours with the other slices, ascending.
    pub fn sampled_by(self, rank: usize, num_prompts: usize) -> impl Iterator<Item = usize> {
        (rank / self.num_slices..num_prompts).step_by(self.num_samplers)
    }

    /// The one of the ranks that sample a prompt which judges its completions and hands them on.
    pub fn judge_of(self, prompt_idx: usize) -> usize {
        let (sampler, nth) = (prompt_idx % self.num_samplers, prompt_idx / self.num_samplers);
        sampler * self.num_slices + nth % self.num_slices
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slices(num_slices: usize) -> impl Iterator<Item = Slice> {
        (0..num_slices).map(move |place| Slice { place, num_slices })
    }

    proptest! {
        #[test]
        fn slices_lie_end_to_end_and_none_is_longer_than_the_first(len in 0_usize..100, num_slices in 1_usize..9) {
            let all: Vec<usize> = slices(num_slices).flat_map(|slice| slice.of(len)).collect();
            prop_assert_eq!(all, (0..len).collect::<Vec<_>>());
            for slice in slices(num_slices) {
                let own = slice.of(len).len();
                prop_assert!(own <= slice.longest(len));
                prop_assert!(len % num_slices > 0 || own == len / num_slices);
            }
            prop_assert_eq!(slices(num_slices).next().map(|first| first.of(len).len()), Some(len.div_ceil(num_slices)));
        }

        #[test]
        fn every_query_head_finds_its_key_head_in_its_own_slice(
            num_key_heads in 1_usize..5,
            queries_of_key in 1_usize..5,
            num_slices in 1_usize..17,
        ) {
            let num_heads = num_key_heads * queries_of_key;
            let fits = num_heads % num_slices == 0
                && (num_key_heads % num_slices == 0 || num_slices % num_key_heads == 0);
            for slice in slices(num_slices).filter(|_| fits) {
                let (queries, keys) = (slice.of(num_heads), slice.of_key_heads(num_key_heads));
                prop_assert!(keys.end <= num_key_heads);
                // As attention pairs them: neighbouring queries, as many for each key.
                let queries_of_own = queries.len() / keys.len();
                prop_assert_eq!(queries_of_own * keys.len(), queries.len());
                for (nth, head) in queries.enumerate() {
                    prop_assert_eq!(keys.start + nth / queries_of_own, head / queries_of_key);
                }
            }
        }

        #[test]
        fn a_prompt_is_sampled_by_the_ranks_of_one_copy_and_judged_by_one_of_them(
            num_copies in 1_usize..5,
            num_slices in 1_usize..5,
            num_prompts in 0_usize..40,
        ) {
            let num_ranks = num_copies * num_slices;
            let dealing = Dealing::new(num_ranks, num_slices);
            let mut num_judged = vec![0; num_ranks];
            for prompt in 0..num_prompts {
                let samplers: Vec<usize> = (0..num_ranks)
                    .filter(|rank| dealing.sampled_by(*rank, num_prompts).any(|own| own == prompt))
                    .collect();
                prop_assert_eq!(samplers.len(), num_slices);
                prop_assert!(samplers.iter().all(|rank| rank / num_slices == samplers[0] / num_slices));
                prop_assert!(samplers.contains(&dealing.judge_of(prompt)));
                num_judged[dealing.judge_of(prompt)] += 1;
            }
            let (fewest, most) = (num_judged.iter().min(), num_judged.iter().max());
            prop_assert!(most.unwrap() - fewest.unwrap() <= 1);
        }
    }
}
