//! The engine: weight sync, generation, runs by commands, and release of memory.

mod bounds;
mod capacity;
mod commands;
mod inbox;
mod run_loop;

use std::ops::ControlFlow;
use std::sync::Arc;

use rlt_core::engine::{Detokenizer, SequenceId};
use rlt_core::types::Completion;
use rlt_layout::AxisPlace;
use rlt_parallel::{AxisGroup, DecoderUnits, DigestCache, WeightDigest};

use super::completion::RequestOutputs;
use super::device::{CudaRunner, RunnerLimits};
use super::images::RequestImages;
use super::kv_cache::KvCache;
use super::runner::{CpuRunner, Runner, timed};
use super::weights::{PackOptions, RolloutWeights};
use super::{EngineError, EngineOptions, Request, RolloutProgress, RolloutStats};
use bounds::RequestBounds;
use capacity::{RunCapacity, allocate_cache, scheduler_for};
pub use commands::{
    Command, CommandQueue, CommandSource, EngineEnded, EngineHandle, Event, NoCommandYet, NoCommands,
    command_queue,
};
use inbox::Inbox;
use run_loop::{Client, RunLoop};

/// Number of rows above which the layout of a packed weight no longer depends on their number.
const MAX_ROWS_HINT: usize = 64;

/// Samples completions with packed copies of a decoder's linear layers and a paged key-value cache.
#[derive(Debug)]
pub struct Engine {
    options: EngineOptions,
    /// Tensor-parallel group of this rank; `None` without one.
    ranks: Option<Arc<AxisGroup>>,
    weights: Option<RolloutWeights>,
    /// Packed base weights that a sleeping engine keeps if adapters are unmerged.
    frozen_base: Option<RolloutWeights>,
    cache: Option<KvCache>,
    /// Cache of the digests of frozen parameters, which no sync needs to read again.
    digest_cache: DigestCache,
    /// Number of calls of [`Self::sync_weights`].
    num_syncs: u64,
    /// Number of bytes that the last sync read from the trainer.
    synced_bytes: usize,
    /// Number of captures of decoding steps that have failed since the engine was created.
    num_failed_captures: u64,
    stats: RolloutStats,
    /// The routers' choices for the first sample of each request of the last call.
    routes: Vec<Vec<u16>>,
}

impl Engine {
    /// Creates an engine without weights, which takes memory with the first [`Self::sync_weights`].
    pub fn new(options: EngineOptions) -> Self {
        Self {
            options,
            ranks: None,
            weights: None,
            frozen_base: None,
            cache: None,
            digest_cache: DigestCache::default(),
            num_syncs: 0,
            synced_bytes: 0,
            num_failed_captures: 0,
            stats: RolloutStats::default(),
            routes: Vec::new(),
        }
    }

    /// Makes this rank pack its shard of the weights as a member of the tensor-parallel group `ranks`. All
    /// members must make the same calls with the same requests, and get the same completions.
    pub fn with_tp_group(self, ranks: Option<Arc<AxisGroup>>) -> Self {
        Self { ranks, ..self }
    }

    /// Number of ranks in the tensor-parallel group; 1 without one.
    pub fn num_shards(&self) -> usize {
        self.ranks.as_ref().map_or(AxisPlace::ALONE, |ranks| ranks.place()).size
    }

    /// Packs the weights of `policy` as policy version `policy_version`, and returns their [`WeightDigest`].
    /// Adapters are merged into the packed weights. If the options leave them unmerged, an unchanged base is
    /// kept and only the adapter is copied. Cached keys and values are dropped after each call of
    /// [`Self::generate`], so none were computed under earlier weights. Collective if the policy is sharded;
    /// at most two FSDP units are unsharded at a time.
    ///
    /// # Errors
    /// [`EngineError::OlderWeights`] when the engine already has a later version, [`EngineError::Tensor`] or
    /// [`EngineError::Digests`] when memory cannot be reached, [`EngineError::GatherMismatch`] or
    /// [`EngineError::Ranks`] when ranks could not gather the weights.
    pub fn sync_weights<'a>(
        &mut self,
        policy: impl Into<DecoderUnits<'a>>,
        policy_version: u64,
    ) -> Result<WeightDigest, EngineError> {
        if let Some(current) = self.policy_version().filter(|&current| current > policy_version) {
            return Err(EngineError::OlderWeights { current, offered: policy_version });
        }
        // Old packed weights, and memory that the update no longer needs, are freed before new weights are
        // allocated.
        let policy: DecoderUnits<'_> = policy.into();
        let pack_options = self.pack_options(policy);
        let is_kept = |weights: &RolloutWeights| {
            weights.is_unmerged && weights.unpacked.compute_kind() == pack_options.kind
        };
        let base = self.weights.take().or(self.frozen_base.take()).filter(is_kept);
        rlt_torch::release_free_memory();
        let digest_cache = &mut self.digest_cache;
        let kept = match base {
            Some(base) => {
                tch::no_grad(|| base.with_adapter(policy, policy_version, &pack_options, digest_cache))?
            }
            None => None,
        };
        let (weights, synced_bytes) = match kept {
            Some(kept) => kept,
            None => {
                let weights = tch::no_grad(|| {
                    RolloutWeights::pack(policy, policy_version, pack_options, digest_cache)
                })?;
                let num_bytes = weights.num_bytes();
                (weights, num_bytes)
            }
        };
        (self.num_syncs, self.synced_bytes) = (self.num_syncs + 1, synced_bytes);
        Ok(self.weights.insert(weights).digest.clone())
    }

    fn pack_options(&self, policy: DecoderUnits<'_>) -> PackOptions {
        PackOptions {
            rows_hint: self.options.max_num_seqs.clamp(1, MAX_ROWS_HINT) as i64,
            kind: self.options.compute.unwrap_or_else(|| policy.decoder().compute_kind()),
            ranks: self.ranks.clone(),
            merges: self.options.merge_lora,
        }
    }

    /// Frees the packed weights and the cache, and returns their memory to the kernel. A base with unmerged
    /// adapters is kept, without the adapter. The next rollout needs [`Self::sync_weights`] first.
    pub fn sleep(&mut self) {
        if let Some(mut base) = self.weights.take().filter(|weights| weights.is_unmerged) {
            base.drop_adapter();
            self.frozen_base = Some(base);
        }
        self.cache = None;
        rlt_torch::release_free_memory();
    }

    /// Frees only the cache: the next rollout under the same weights packs nothing.
    pub fn free_cache(&mut self) {
        self.cache = None;
        rlt_torch::release_free_memory();
    }

    /// Number of weight syncs so far.
    pub fn num_syncs(&self) -> u64 {
        self.num_syncs
    }

    /// Number of bytes that the last [`Self::sync_weights`] read from the trainer: those of the packed
    /// weights, or of the adapter's matrices in the trainer's dtype.
    pub fn synced_bytes(&self) -> usize {
        self.synced_bytes
    }

    /// Number of captures of decoding steps as CUDA graphs that have failed since the engine was created.
    pub fn num_failed_captures(&self) -> u64 {
        self.num_failed_captures
    }

    /// Policy version of the weights that the engine holds; `None` without weights.
    pub fn policy_version(&self) -> Option<u64> {
        self.weights.as_ref().map(|weights| weights.policy_version)
    }

    /// Counters and times of the last call of [`Self::generate`] or [`Self::run`].
    pub fn stats(&self) -> RolloutStats {
        self.stats
    }

    /// Takes the routers' choices that the last [`Self::generate`] recorded for the first sample of each
    /// request. There is one digest of the chosen experts for each token and each layer with experts, from
    /// the pass in which the token was sampled. Empty for models without experts.
    pub fn take_routes(&mut self) -> Vec<Vec<u16>> {
        std::mem::take(&mut self.routes)
    }

    /// Samples all completions of all requests; returns one list per request, in the order of its seeds.
    ///
    /// `progress` is called after each step and may end the generation there, on all ranks of the
    /// tensor-parallel group.
    ///
    /// # Errors
    /// [`EngineError`]; in particular [`EngineError::StaleWeights`] when a parameter of `policy` has
    /// changed since the last sync.
    pub fn generate<'a>(
        &mut self,
        policy: impl Into<DecoderUnits<'a>>,
        requests: &[Request],
        detokenizer: &dyn Detokenizer,
        progress: &mut dyn FnMut(RolloutProgress) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<Completion>>, EngineError> {
        self.generate_streaming(policy, requests, detokenizer, progress, &mut |_, _| {})
    }

    /// Samples as [`Self::generate`] does, and calls `on_finish` with each completion as soon as its last
    /// token is sampled.
    ///
    /// # Errors
    /// As [`Self::generate`].
    pub fn generate_streaming<'a>(
        &mut self,
        policy: impl Into<DecoderUnits<'a>>,
        requests: &[Request],
        detokenizer: &dyn Detokenizer,
        progress: &mut dyn FnMut(RolloutProgress) -> ControlFlow<()>,
        on_finish: &mut dyn FnMut(SequenceId, &Completion),
    ) -> Result<Vec<Vec<Completion>>, EngineError> {
        let mut completions: Vec<Vec<Option<Completion>>> =
            requests.iter().map(|request| vec![None; request.seeds.len()]).collect();
        let mut on_event = |event: Event| {
            if let Event::Finished { id, completion } = event {
                on_finish(id, &completion);
                completions[id.request_idx][id.sample_idx] = Some(completion);
            }
        };
        let mut none = NoCommands;
        let commands = Inbox::new(&mut none, None);
        let client = Client { commands, on_step: progress, on_event: &mut on_event };
        self.drive(policy.into(), detokenizer, Work::Requests(requests), client)?;
        Ok(completions.into_iter().map(|samples| samples.into_iter().flatten().collect()).collect())
    }

    /// Executes `commands` until no sequence runs and the source of commands has ended. Sequences that are
    /// then paused or kept open are dropped. The sizes of cache and batch follow from the options:
    /// [`EngineOptions::max_num_seqs`] sequences of the model's context, within the options' memory limit.
    ///
    /// `progress` is called after each step and may end the run there. `on_event` gets every token and
    /// completion, and commands that could not be applied.
    ///
    /// In a tensor-parallel group all ranks make this call. The source of the first rank gives the commands,
    /// those of the other ranks are not asked, and all ranks get the same events.
    ///
    /// # Errors
    /// [`EngineError::StaleWeights`] when a parameter of `policy` has changed since the last sync,
    /// [`EngineError::Ranks`] when a rank of the group is lost, or the error of a step.
    pub fn run<'a>(
        &mut self,
        policy: impl Into<DecoderUnits<'a>>,
        detokenizer: &dyn Detokenizer,
        commands: &mut dyn CommandSource,
        progress: &mut dyn FnMut(RolloutProgress) -> ControlFlow<()>,
        on_event: &mut dyn FnMut(Event),
    ) -> Result<(), EngineError> {
        let group = self.ranks.clone();
        let commands = Inbox::new(commands, group.as_deref());
        let client = Client { commands, on_step: progress, on_event };
        self.drive(policy.into(), detokenizer, Work::Commands, client)
    }

    /// Runs the loop with a cache and a batch of the size that `work` needs.
    fn drive(
        &mut self,
        policy: DecoderUnits<'_>,
        detokenizer: &dyn Detokenizer,
        work: Work<'_>,
        client: Client<'_>,
    ) -> Result<(), EngineError> {
        let _no_grad = tch::no_grad_guard();
        let weights = self.weights.as_ref().ok_or(EngineError::Asleep)?;
        let mut stats = RolloutStats::default();
        timed(&mut stats.digest_time, || verify_weights(weights, policy, &mut self.digest_cache))?;
        let bounds = RequestBounds::new(&self.options, &weights.unpacked.config);
        let requests = work.requests();
        let plans = requests.iter().enumerate().map(|(idx, request)| bounds.plan(idx, request, false));
        let planned = plans.collect::<Result<Vec<_>, _>>()?;
        let RunCapacity { num_blocks, limits } = match work {
            Work::Requests(requests) => RunCapacity::of_requests(&self.options, &planned, requests),
            Work::Commands => RunCapacity::of_options(&self.options, &bounds),
        };
        let cache = allocate_cache(&mut self.cache, &self.options, weights, &planned, num_blocks)?;
        (stats.cache_bytes, stats.weight_bytes) = (cache.bytes(), weights.num_bytes());
        let mut scheduler = scheduler_for(&self.options, cache, &planned)?;
        let mut images = RequestImages::new(&weights.unpacked);
        let keeps_routes = matches!(work, Work::Requests(_));
        let mut outputs = RequestOutputs::new(detokenizer, self.options.eos_token_ids.clone(), keeps_routes);
        for (request_idx, request) in requests.iter().enumerate() {
            images.add(&weights.unpacked, request_idx, request)?;
            outputs.add(request_idx, request);
        }
        let mut runner = runner_on(weights, cache, &limits, images)?;
        RunLoop::new(runner.as_mut(), &mut scheduler, &mut outputs, client, bounds, &mut stats).run()?;
        drop(runner);
        if stats.num_failed_captures > 0 {
            // Later captures would fail for the same reason.
            self.options.uses_graphs = false;
            self.num_failed_captures += stats.num_failed_captures as u64;
        }
        self.stats = stats;
        self.routes = outputs.take_routes(requests.len());
        Ok(())
    }
}

/// The work of a run: given requests, or commands.
#[derive(Clone, Copy)]
enum Work<'a> {
    /// Samples the completions of these requests.
    Requests(&'a [Request]),
    /// Executes the commands of a source.
    Commands,
}

impl<'a> Work<'a> {
    /// Requests that are known when the run begins.
    fn requests(self) -> &'a [Request] {
        match self {
            Self::Requests(requests) => requests,
            Self::Commands => &[],
        }
    }
}

/// Creates the runner of the device that holds `weights`.
fn runner_on<'a>(
    weights: &'a RolloutWeights,
    cache: &'a mut KvCache,
    limits: &RunnerLimits,
    images: RequestImages,
) -> Result<Box<dyn Runner + 'a>, EngineError> {
    if weights.unpacked.device().is_cuda() {
        Ok(Box::new(CudaRunner::new(weights, cache, limits, images)?))
    } else {
        Ok(Box::new(CpuRunner::new(weights, cache, images)))
    }
}

fn verify_weights(
    weights: &RolloutWeights,
    policy: DecoderUnits<'_>,
    digest_cache: &mut DigestCache,
) -> Result<(), EngineError> {
    let now = WeightDigest::with_cache(policy, digest_cache)?;
    match weights.digest.first_difference(&now) {
        None => Ok(()),
        Some(parameter) => Err(EngineError::StaleWeights {
            parameter: parameter.to_owned(),
            policy_version: weights.policy_version,
        }),
    }
}
