//! Capacity of a run: its cache, its scheduler and the limits of its runner.

use rlt_core::engine::{Scheduler, SchedulerConfig, SequenceRequest};

use super::bounds::RequestBounds;
use crate::device::RunnerLimits;
use crate::kv_cache::{self, KvCache};
use crate::weights::RolloutWeights;
use crate::{EngineError, EngineOptions, Request};

/// Environment variable that disables CUDA graphs if its value is 0: kernels are then launched one by one.
const GRAPHS_VARIABLE: &str = "RLT_CUDA_GRAPHS";

/// Cache and limits that a run asks for.
pub(super) struct RunCapacity {
    /// Number of cache blocks with which no sequence is preempted.
    pub(super) num_blocks: usize,
    /// Limits of the runner.
    pub(super) limits: RunnerLimits,
}

impl RunCapacity {
    /// Capacity for the samples of `requests`.
    pub(super) fn of_requests(
        options: &EngineOptions,
        planned: &[SequenceRequest],
        requests: &[Request],
    ) -> Self {
        let num_samples: usize = planned.iter().map(|request| request.seeds.len()).sum();
        let longest = planned.iter().map(|request| request.max_blocks(options.block_size)).max();
        let limits = RunnerLimits {
            max_rows: options.max_num_seqs.min(num_samples).max(1),
            max_blocks: longest.unwrap_or(1).max(1),
            has_penalty: requests.iter().any(|request| request.sampling.has_penalty()),
            uses_graphs: options.uses_graphs && !graphs_are_forbidden(),
        };
        let num_blocks = Scheduler::blocks_wanted(planned, options.block_size, options.max_num_seqs);
        Self { num_blocks, limits }
    }

    /// Capacity for requests that are not known yet: for as many sequences as may decode together, each as
    /// long as the model's context.
    pub(super) fn of_options(options: &EngineOptions, bounds: &RequestBounds) -> Self {
        let max_blocks = bounds.max_model_len.div_ceil(options.block_size.max(1)).max(1);
        let limits = RunnerLimits {
            max_rows: options.max_num_seqs.max(1),
            max_blocks,
            has_penalty: true,
            uses_graphs: options.uses_graphs && !graphs_are_forbidden(),
        };
        Self { num_blocks: options.max_num_seqs.saturating_mul(max_blocks).saturating_add(1), limits }
    }
}

/// Whether the environment disables CUDA graphs, which users do to find out whether graphs cause a fault.
fn graphs_are_forbidden() -> bool {
    std::env::var_os(GRAPHS_VARIABLE).is_some_and(|value| value == "0")
}

/// Returns a cache of `wanted` blocks, or of as many as the memory limits allow. The cache of the last run is
/// reused if it is at least that large. Fails if `options.memory` leaves too little for the longest sample of
/// a request.
pub(super) fn allocate_cache<'a>(
    cache: &'a mut Option<KvCache>,
    options: &EngineOptions,
    weights: &RolloutWeights,
    planned: &[SequenceRequest],
    wanted: usize,
) -> Result<&'a mut KvCache, EngineError> {
    let (kind, device) = (weights.unpacked.compute_kind(), weights.unpacked.device());
    let block_bytes = kv_cache::block_bytes(&weights.shard, options.block_size, kind);
    let left = options.memory.map_or(usize::MAX, |share| share.bytes().saturating_sub(weights.num_bytes()));
    let allowed = left.min(options.max_cache_bytes.unwrap_or(usize::MAX)) / block_bytes.max(1);
    if let Some(share) = options.memory {
        for (request_idx, request) in planned.iter().enumerate() {
            let needed_bytes = request.max_blocks(options.block_size) * block_bytes;
            if needed_bytes > left {
                let (cache_bytes, weight_bytes) = (left, weights.num_bytes());
                return Err(EngineError::CacheTooSmall {
                    request_idx,
                    share,
                    cache_bytes,
                    weight_bytes,
                    needed_bytes,
                });
            }
        }
    }
    let num_blocks = wanted.min(allowed).clamp(1, u32::MAX as usize) as u32;
    if cache.as_ref().is_some_and(|cache| cache.num_blocks() < num_blocks) {
        // The old cache is freed before the new one is allocated.
        *cache = None;
    }
    Ok(cache.get_or_insert_with(|| {
        KvCache::allocate(&weights.shard, num_blocks, options.block_size, (kind, device))
    }))
}

/// Returns a scheduler of the cache's blocks, with the requests `planned`.
pub(super) fn scheduler_for(
    options: &EngineOptions,
    cache: &KvCache,
    planned: &[SequenceRequest],
) -> Result<Scheduler, EngineError> {
    let config = SchedulerConfig {
        num_blocks: cache.num_blocks(),
        block_size: cache.block_size(),
        max_num_seqs: options.max_num_seqs,
        max_num_batched_tokens: options.max_num_batched_tokens,
    };
    let mut scheduler = Scheduler::new(config).map_err(EngineError::Schedule)?;
    let mut requests = planned.iter().enumerate();
    requests.try_for_each(|(idx, request)| scheduler.add(idx, request)).map_err(EngineError::Schedule)?;
    Ok(scheduler)
}
