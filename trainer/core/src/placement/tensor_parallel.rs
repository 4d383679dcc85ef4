//! Tensor-parallel shards of a layer's projections, and the assignment of prompts to ranks that hold the
//! rollout's weights in such shards. This module communicates nothing.
//!
//! ```text
//! 4 ranks, 2 shards, 8 prompts
//!
//!     rank       shard    samples       judges and gathers
//!     0          0        0, 2, 4, 6    0, 4
//!     1          1        0, 2, 4, 6    2, 6
//!     2          0        1, 3, 5, 7    1, 5
//!     3          1        1, 3, 5, 7    3, 7
//! ```
//! The ranks of a group sample identical completions, and each judges some of them.

use std::ops::Range;

/// A tensor-parallel shard: one of several equal parts of every layer's projections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TpShard {
    /// Index of the shard, from 0.
    pub place: usize,
    /// Number of shards, at least one.
    pub num_shards: usize,
}

impl TpShard {
    /// The shard of a full projection, without tensor parallelism.
    pub const WHOLE: Self = Self { place: 0, num_shards: 1 };

    /// Returns the shard's range of `len` heads, rows or columns. If the number does not divide, the last
    /// shards are shorter, or empty.
    pub fn of(self, len: usize) -> Range<usize> {
        let longest = self.longest(len);
        (self.place * longest).min(len)..((self.place + 1) * longest).min(len)
    }

    /// Length of the longest shard of `len` heads, rows or columns.
    pub fn longest(self, len: usize) -> usize {
        len.div_ceil(self.num_shards)
    }

    /// Returns the shard's range of `len` key heads, where one of `len` and the number of shards divides the
    /// other. With more shards than key heads, several shards hold the same head: the one that their query
    /// heads attend to.
    pub fn of_key_heads(self, len: usize) -> Range<usize> {
        let start = self.place * len / self.num_shards;
        start..start + (len / self.num_shards).max(1)
    }
}

/// Assignment of prompts to rollout tensor-parallel groups of `num_shards` adjacent ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleAssignment {
    num_samplers: usize,
    num_shards: usize,
}

impl SampleAssignment {
    /// Assigns prompts to `num_ranks` ranks, a multiple of `num_shards`.
    pub fn new(num_ranks: usize, num_shards: usize) -> Self {
        let num_shards = num_shards.max(1);
        Self { num_samplers: (num_ranks / num_shards).max(1), num_shards }
    }

    /// Returns which of `num_prompts` prompts the tensor-parallel group of `rank` samples, ascending.
    pub fn sampled_by(self, rank: usize, num_prompts: usize) -> impl Iterator<Item = usize> {
        (rank / self.num_shards..num_prompts).step_by(self.num_samplers)
    }

    /// Returns the rank that judges a prompt's completions and passes them on, out of those that sample them.
    pub fn judge_of(self, prompt_idx: usize) -> usize {
        let (sampler, nth) = (prompt_idx % self.num_samplers, prompt_idx / self.num_samplers);
        sampler * self.num_shards + nth % self.num_shards
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shards(num_shards: usize) -> impl Iterator<Item = TpShard> {
        (0..num_shards).map(move |place| TpShard { place, num_shards })
    }

    proptest! {
        #[test]
        fn shards_are_contiguous_and_none_is_longer_than_the_first(len in 0_usize..100, num_shards in 1_usize..9) {
            let all: Vec<usize> = shards(num_shards).flat_map(|shard| shard.of(len)).collect();
            prop_assert_eq!(all, (0..len).collect::<Vec<_>>());
            for shard in shards(num_shards) {
                let own = shard.of(len).len();
                prop_assert!(own <= shard.longest(len));
                prop_assert!(len % num_shards > 0 || own == len / num_shards);
            }
            prop_assert_eq!(shards(num_shards).next().map(|first| first.of(len).len()), Some(len.div_ceil(num_shards)));
        }

        #[test]
        fn every_query_head_finds_its_key_head_in_its_own_slice(
            num_key_heads in 1_usize..5,
            queries_of_key in 1_usize..5,
            num_shards in 1_usize..17,
        ) {
            let num_heads = num_key_heads * queries_of_key;
            let fits = num_heads % num_shards == 0
                && (num_key_heads % num_shards == 0 || num_shards % num_key_heads == 0);
            for shard in shards(num_shards).filter(|_| fits) {
                let (queries, keys) = (shard.of(num_heads), shard.of_key_heads(num_key_heads));
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
            num_shards in 1_usize..5,
            num_prompts in 0_usize..40,
        ) {
            let num_ranks = num_copies * num_shards;
            let assignment = SampleAssignment::new(num_ranks, num_shards);
            let mut num_judged = vec![0; num_ranks];
            for prompt in 0..num_prompts {
                let samplers: Vec<usize> = (0..num_ranks)
                    .filter(|rank| assignment.sampled_by(*rank, num_prompts).any(|own| own == prompt))
                    .collect();
                prop_assert_eq!(samplers.len(), num_shards);
                prop_assert!(samplers.iter().all(|rank| rank / num_shards == samplers[0] / num_shards));
                prop_assert!(samplers.contains(&assignment.judge_of(prompt)));
                num_judged[assignment.judge_of(prompt)] += 1;
            }
            let (fewest, most) = (num_judged.iter().min(), num_judged.iter().max());
            prop_assert!(most.unwrap() - fewest.unwrap() <= 1);
        }
    }
}
