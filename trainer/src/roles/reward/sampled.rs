//! Completions that were sampled and wait for their rewards.

use std::sync::Arc;

use rlt_core::metrics::Metrics;
use rlt_core::tensor_parallel::SampleAssignment;
use rlt_core::types::{Completion, Prompt};

use super::PendingRewards;

/// Completions of a set of prompts that this rank judges.
#[derive(Debug)]
pub struct Sampled {
    /// All prompts of the set, including those that other ranks sample.
    pub prompts: Vec<Arc<Prompt>>,
    /// Completions that this rank judges, each group with the index of its prompt; `None` if this rank was
    /// asked to stop.
    pub(crate) local_groups: Option<Vec<(usize, Vec<Completion>)>>,
    /// Requests of external reward functions in flight; `None` if there are no such functions.
    pub(crate) pending_rewards: Option<PendingRewards>,
    pub(crate) assignment: SampleAssignment,
    pub(crate) policy_version: u64,
    /// Sampling cost of this rank's engine; 0 on all but one rank of a tensor-parallel group.
    pub(crate) cost: SamplingCost,
}

/// Sampling cost, of one engine or summed over ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SamplingCost {
    /// Number of preemptions: sequences that ran out of cache blocks and were computed again.
    pub num_preemptions: u64,
    /// Size of the largest cache in bytes.
    pub cache_bytes: u64,
}

impl SamplingCost {
    /// Adds the cost of another rank or of another batch.
    pub(crate) fn add(&mut self, other: Self) {
        self.num_preemptions += other.num_preemptions;
        self.cache_bytes = self.cache_bytes.max(other.cache_bytes);
    }

    /// Returns the metrics `rollout/num_preemptions` and `rollout/kv_cache_gb`.
    pub(crate) fn metrics(self) -> Metrics {
        Metrics::from([
            ("rollout/num_preemptions".to_owned(), self.num_preemptions as f64),
            ("rollout/kv_cache_gb".to_owned(), self.cache_bytes as f64 / f64::from(1 << 30)),
        ])
    }
}
