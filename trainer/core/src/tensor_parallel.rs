//! Assignment of prompts to ranks that hold the rollout's weights in tensor-parallel shards. This module
//! communicates nothing.
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
//! The ranks of a group sample identical completions, and each computes the rewards of some of them.

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

    /// Returns the rank that computes the rewards of a prompt's completions and passes them on, among the
    /// ranks that sample them.
    pub fn judge_of(self, prompt_idx: usize) -> usize {
        let (sampler, nth) = (prompt_idx % self.num_samplers, prompt_idx / self.num_samplers);
        sampler * self.num_shards + nth % self.num_shards
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
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
