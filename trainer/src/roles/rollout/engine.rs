//! The engine: sync of weights, generation, and release of memory.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rlt_core::engine::{Detokenizer, Scheduler, SchedulerLimits, Sequence, SequenceRequest};
use rlt_core::mesh::AxisPlace;
use rlt_core::sampling::SamplingParams;
use rlt_core::types::Completion;
use tch::Tensor;

use super::completion::{Drafts, OnFinish};
use super::device;
use super::digest::KnownDigests;
use super::images::RequestImages;
use super::kv_cache::{self, KvCache};
use super::runner::ModelRunner;
use super::sampler::{self, Drawn};
use super::weights::{Packing, RolloutWeights};
use super::{RolloutError, RolloutOptions, RolloutProgress, RolloutRequest, RolloutStats, WeightDigest};
use crate::model::{Decoder, RouteLog};
use crate::parallel::{DecoderUnits, RankError, TpGroup};

/// Rows beyond which a packed weight's layout no longer depends on their number.
const MAX_ROWS_HINT: usize = 64;
/// Environment variable that with the value 0 forbids CUDA graphs: steps are launched one by one.
const GRAPHS_VARIABLE: &str = "RLT_CUDA_GRAPHS";

/// Generates with packed copies of a decoder's linear layers and a paged key-value cache.
#[derive(Debug)]
pub struct RolloutEngine {
    options: RolloutOptions,
    /// The tensor-parallel group of this rank.
    ranks: Option<Arc<TpGroup>>,
    weights: Option<RolloutWeights>,
    /// Packed base weights that a sleeping engine keeps where the adapter is unmerged.
    base: Option<RolloutWeights>,
    cache: Option<KvCache>,
    /// Digests of what no sync needs to read again.
    known: KnownDigests,
    /// Calls of [`Self::sync_weights`].
    num_syncs: u64,
    /// Bytes that the last of them brought.
    synced_bytes: usize,
    /// Number of captures of decoding steps that have failed since the engine was made.
    num_failed_captures: u64,
    stats: RolloutStats,
    /// The routers' choices for the first sample of each request of the last call.
    routes: Vec<Vec<u16>>,
}

impl RolloutEngine {
    /// An engine without weights; it takes memory with the first [`Self::sync_weights`].
    pub fn new(options: RolloutOptions) -> Self {
        Self {
            options,
            ranks: None,
            weights: None,
            base: None,
            cache: None,
            known: KnownDigests::default(),
            num_syncs: 0,
            synced_bytes: 0,
            num_failed_captures: 0,
            stats: RolloutStats::default(),
            routes: Vec::new(),
        }
    }

    /// Lets this rank pack a shard, as one of `ranks`. All of them make the same calls with the
    /// same requests, and get the same completions.
    pub fn with_tp_group(self, ranks: Option<Arc<TpGroup>>) -> Self {
        Self { ranks, ..self }
    }

    /// The size of the tensor-parallel group.
    pub fn num_shards(&self) -> usize {
        self.ranks.as_ref().map_or(AxisPlace::ALONE, |ranks| ranks.place()).size
    }

    /// Packs the policy's weights, adapters folded in, as those of `policy_version`; returns what
    /// [`WeightDigest::of`] gives for them. Nothing of earlier weights stays: no key or value outlives a call
    /// of [`Self::generate`]. Where adapters are not folded in, a base that has not changed does stay, and
    /// the adapter is copied. Where ranks share the policy all of them do so together; no more than two parts
    /// of it are whole at once.
    ///
    /// # Errors
    /// [`RolloutError::OlderWeights`] when the engine already has a later version, [`RolloutError::Tensor`]
    /// when memory cannot be reached, [`RolloutError::Torn`] or [`RolloutError::Ranks`] when ranks could not
    /// bring the weights.
    pub fn sync_weights<'a>(
        &mut self,
        policy: impl Into<DecoderUnits<'a>>,
        policy_version: u64,
    ) -> Result<WeightDigest, RolloutError> {
        if let Some(current) = self.policy_version().filter(|&current| current > policy_version) {
            return Err(RolloutError::OlderWeights { current, offered: policy_version });
        }
        // Old and new packed weights never exist together, and what an update has freed goes first.
        let policy: DecoderUnits<'_> = policy.into();
        let packing = self.packing(policy);
        let is_kept =
            |weights: &RolloutWeights| weights.is_unmerged && weights.frame.compute_kind() == packing.kind;
        let base = self.weights.take().or(self.base.take()).filter(is_kept);
        rlt_torch::release_free_memory();
        let known = &mut self.known;
        let kept = match base {
            Some(base) => tch::no_grad(|| base.with_adapter(policy, policy_version, &packing, known))?,
            None => None,
        };
        let (weights, synced_bytes) = match kept {
            Some(kept) => kept,
            None => {
                let weights = tch::no_grad(|| RolloutWeights::pack(policy, policy_version, packing, known))?;
                let num_bytes = weights.num_bytes();
                (weights, num_bytes)
            }
        };
        (self.num_syncs, self.synced_bytes) = (self.num_syncs + 1, synced_bytes);
        Ok(self.weights.insert(weights).digest.clone())
    }

    fn packing(&self, policy: DecoderUnits<'_>) -> Packing {
        Packing {
            rows_hint: self.options.max_concurrent.clamp(1, MAX_ROWS_HINT) as i64,
            kind: self.options.compute.unwrap_or_else(|| policy.decoder().compute_kind()),
            ranks: self.ranks.clone(),
            merges: self.options.merge_lora,
        }
    }

    /// Drops packed weights and the cache, whose memory goes back to the kernel, but a base without its
    /// adapter; the next rollout needs [`Self::sync_weights`] first.
    pub fn sleep(&mut self) {
        if let Some(mut base) = self.weights.take().filter(|weights| weights.is_unmerged) {
            base.drop_adapter();
            self.base = Some(base);
        }
        self.cache = None;
        rlt_torch::release_free_memory();
    }

    /// Drops the cache alone: the next rollout under the same weights packs nothing.
    pub fn free_cache(&mut self) {
        self.cache = None;
        rlt_torch::release_free_memory();
    }

    /// How often weights were synchronised so far.
    pub fn num_syncs(&self) -> u64 {
        self.num_syncs
    }

    /// Bytes that the last [`Self::sync_weights`] brought from the trainer: what was packed, or the matrices
    /// of the adapter as the trainer has them.
    pub fn synced_bytes(&self) -> usize {
        self.synced_bytes
    }

    /// Number of captures of decoding steps as CUDA graphs that have failed since the engine was made.
    pub fn num_failed_captures(&self) -> u64 {
        self.num_failed_captures
    }

    /// Version of the weights that the engine holds.
    pub fn policy_version(&self) -> Option<u64> {
        self.weights.as_ref().map(|weights| weights.policy_version)
    }

    /// Counts of the last call of [`Self::generate`].
    pub fn stats(&self) -> RolloutStats {
        self.stats
    }

    /// Takes the routers' choices of the last [`Self::generate`] for the first sample of each request: for
    /// each of its tokens a digest of the experts in each layer that has some, of the pass that the token was
    /// sampled from. Empty without experts.
    pub fn take_routes(&mut self) -> Vec<Vec<u16>> {
        std::mem::take(&mut self.routes)
    }

    /// Writes all samples of all requests; one list a request, in the order of its seeds.
    ///
    /// `progress` is called after each step and may end the generation there, on all ranks that sample as
    /// one.
    ///
    /// # Errors
    /// [`RolloutError`]; in particular [`RolloutError::StaleWeights`] when a parameter of `policy` differs
    /// from what was synchronised.
    pub fn generate<'a>(
        &mut self,
        policy: impl Into<DecoderUnits<'a>>,
        requests: &[RolloutRequest],
        detokenizer: &dyn Detokenizer,
        progress: &mut dyn FnMut(RolloutProgress) -> ControlFlow<()>,
    ) -> Result<Vec<Vec<Completion>>, RolloutError> {
        self.generate_streaming(policy, requests, detokenizer, progress, &mut |_, _| {})
    }

    /// Writes samples as [`Self::generate`] does; `on_finish` is called with every completion as soon as its
    /// last token is drawn, with the positions of its request and of its sample.
    ///
    /// # Errors
    /// As [`Self::generate`].
    pub fn generate_streaming<'a, 'b>(
        &mut self,
        policy: impl Into<DecoderUnits<'a>>,
        requests: &'b [RolloutRequest],
        detokenizer: &'b dyn Detokenizer,
        progress: &mut dyn FnMut(RolloutProgress) -> ControlFlow<()>,
        on_finish: &'b mut OnFinish<'b>,
    ) -> Result<Vec<Vec<Completion>>, RolloutError> {
        let _no_grad = tch::no_grad_guard();
        let weights = self.weights.as_ref().ok_or(RolloutError::Asleep)?;
        let (decoder, policy) = (&weights.frame, policy.into());
        let mut stats = RolloutStats::default();
        timed(&mut stats.digest_time, || check_fresh(weights, policy, &mut self.known))?;
        let planned = self.plan(decoder, requests)?;
        let cache = fitting_cache(&mut self.cache, &self.options, weights, &planned)?;
        (stats.cache_bytes, stats.weight_bytes) = (cache.bytes(), weights.num_bytes());
        let mut scheduler = scheduler_for(&self.options, cache, &planned)?;
        let eos_token_ids = self.options.eos_token_ids.clone();
        let mut drafts = Drafts::new(requests, &eos_token_ids, detokenizer, on_finish);
        let mut watch = Watch { done: RolloutProgress::default(), progress };
        let ranks = self.ranks.as_deref();
        let images = RequestImages::new(&weights.frame, requests)?;
        if weights.frame.device().is_cuda() {
            let bounds = device_bounds(&self.options, &planned, requests);
            let decoder = device::DeviceDecoder::new(weights, cache, &bounds, images)?;
            device::run(decoder, &mut scheduler, &mut drafts, &mut stats, &mut watch)?;
        } else {
            let mut runner = ModelRunner { weights, cache, images, routes: RouteLog::default() };
            run(&mut runner, &mut scheduler, &mut drafts, &mut stats, &mut watch, ranks)?;
        }
        stats.num_tokens = watch.done.num_tokens;
        stats.num_prefilled_tokens = scheduler.stats().prefilled_tokens;
        stats.num_preemptions = scheduler.stats().preemptions;
        if stats.num_failed_captures > 0 {
            // Later captures would fail for the same reason.
            self.options.uses_graphs = false;
            self.num_failed_captures += stats.num_failed_captures as u64;
        }
        self.stats = stats;
        self.routes = drafts.take_routes();
        Ok(drafts.into_completions())
    }

    /// Checks each request and cuts its completion to the model's context.
    fn plan(
        &self,
        decoder: &Decoder,
        requests: &[RolloutRequest],
    ) -> Result<Vec<SequenceRequest>, RolloutError> {
        let context = decoder.config.max_position_embeddings;
        let max_model_len = self.options.max_model_len.map_or(context, |longest| longest.min(context));
        let vocab_size = decoder.config.vocab_size;
        let plan = |(request_idx, request): (usize, &RolloutRequest)| {
            request.sampling.validate().map_err(|source| RolloutError::Sampling { request_idx, source })?;
            let prompt_len = request.prompt.len();
            if prompt_len >= max_model_len {
                return Err(RolloutError::PromptTooLong { request_idx, prompt_len, max_model_len });
            }
            if let Some(&token) = request.prompt.iter().find(|&&token| token as usize >= vocab_size) {
                return Err(RolloutError::UnknownToken { request_idx, token, vocab_size });
            }
            Ok(SequenceRequest {
                prompt: request.prompt.clone(),
                seeds: request.seeds.clone(),
                max_new_tokens: request.max_new_tokens.min(max_model_len - prompt_len),
            })
        };
        requests.iter().enumerate().map(plan).collect()
    }
}

/// Returns the limits of a decoder on a device that writes the samples of `requests`.
fn device_bounds(
    options: &RolloutOptions,
    planned: &[SequenceRequest],
    requests: &[RolloutRequest],
) -> device::Bounds {
    let num_samples: usize = planned.iter().map(|request| request.seeds.len()).sum();
    let longest = planned.iter().map(|request| request.max_blocks(options.block_size)).max();
    device::Bounds {
        max_rows: options.max_concurrent.min(num_samples).max(1),
        max_blocks: longest.unwrap_or(1).max(1),
        has_penalty: requests.iter().any(|request| request.sampling.has_penalty()),
        uses_graphs: options.uses_graphs && !graphs_are_forbidden(),
    }
}

/// Whether the environment forbids CUDA graphs, to find out whether they cause a fault.
fn graphs_are_forbidden() -> bool {
    std::env::var_os(GRAPHS_VARIABLE).is_some_and(|value| value == "0")
}

/// Runs `scheduler` until nothing is left to do, one step after the other.
fn run(
    runner: &mut ModelRunner<'_>,
    scheduler: &mut Scheduler,
    drafts: &mut Drafts<'_>,
    stats: &mut RolloutStats,
    watch: &mut Watch<'_>,
    ranks: Option<&TpGroup>,
) -> Result<(), RolloutError> {
    let requests = drafts.requests();
    let banned = runner.weights.banned();
    while !scheduler.is_idle() {
        let logits_bv = run_step(scheduler, runner, stats)?;
        let running = scheduler.running();
        let params: Vec<&SamplingParams> =
            running.iter().map(|s| &requests[s.request_idx].sampling).collect();
        let drawn =
            timed(&mut stats.sampling_time, || sampler::draw_rows(&logits_bv, running, &params, &banned))?;
        let routes = runner.routes.take();
        for (row, sequence) in running.iter().enumerate() {
            drafts.log_routes(sequence.sample(), routes.iter().map(|digests| digests[row]));
        }
        let push = |(s, &drawn): (&Sequence, &Drawn)| {
            Ok((drawn.token, drafts.push(s.sample(), drawn, s.is_at_last_token())?))
        };
        let verdicts = running.iter().zip(&drawn).map(push).collect::<Result<Vec<_>, RolloutError>>()?;
        let finished = scheduler.advance(&verdicts);
        finished.iter().try_for_each(|sequence| drafts.finish(sequence.sample()))?;
        stats.num_steps += 1;
        let is_over = watch.asks_for_end(scheduler, drawn.len(), finished.len());
        if agree(ranks, stats.num_steps, &drawn, is_over)? {
            return Err(RolloutError::Interrupted);
        }
    }
    Ok(())
}

/// The observer of a call, and the call's progress.
pub(super) struct Watch<'a> {
    done: RolloutProgress,
    progress: &'a mut dyn FnMut(RolloutProgress) -> ControlFlow<()>,
}

impl Watch<'_> {
    /// Reports a step with so many new tokens and finished sequences; says whether it is to be the last.
    pub(super) fn asks_for_end(
        &mut self,
        scheduler: &Scheduler,
        num_new: usize,
        num_finished: usize,
    ) -> bool {
        self.done.num_tokens += num_new;
        self.done.num_finished += num_finished;
        self.done.num_running = scheduler.running().len();
        self.done.num_waiting = scheduler.num_waiting();
        (self.progress)(self.done).is_break()
    }
}

/// Runs one step of the scheduler up to the logits [b, v] of its running sequences.
fn run_step(
    scheduler: &mut Scheduler,
    runner: &mut ModelRunner<'_>,
    stats: &mut RolloutStats,
) -> Result<Tensor, RankError> {
    let step = scheduler.schedule();
    timed(&mut stats.prefill_time, || runner.prefill(&step))?;
    timed(&mut stats.decode_time, || {
        runner.cache.copy_blocks(&step.copies);
        runner.decode(scheduler.running())
    })
}

/// Whether a rank of the tensor-parallel group `wants_end`. Fails on all of them if they have drawn different
/// tokens.
fn agree(
    ranks: Option<&TpGroup>,
    step: usize,
    drawn: &[Drawn],
    wants_end: bool,
) -> Result<bool, RolloutError> {
    let Some(ranks) = ranks else { return Ok(wants_end) };
    let digest = sampler::digest(drawn);
    // The largest and the smallest of the digests.
    let [ends, largest, smallest] = ranks.all_reduce_max([wants_end.into(), digest, -digest])?;
    if largest == -smallest { Ok(ends > 0) } else { Err(RolloutError::Disagreement { step }) }
}

/// Adds the time that `work` takes to `total`.
pub(super) fn timed<T>(total: &mut Duration, work: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = work();
    *total += started.elapsed();
    result
}

fn check_fresh(
    weights: &RolloutWeights,
    policy: DecoderUnits<'_>,
    known: &mut KnownDigests,
) -> Result<(), RolloutError> {
    let now = WeightDigest::of_known(policy, known)?;
    match weights.digest.first_difference(&now) {
        None => Ok(()),
        Some(parameter) => Err(RolloutError::StaleWeights {
            parameter: parameter.to_owned(),
            policy_version: weights.policy_version,
        }),
    }
}

/// The cache of the last call where it is large enough, else a new one. Fails where it may not become large
/// enough for the longest sample of each request.
fn fitting_cache<'a>(
    cache: &'a mut Option<KvCache>,
    options: &RolloutOptions,
    weights: &RolloutWeights,
    planned: &[SequenceRequest],
) -> Result<&'a mut KvCache, RolloutError> {
    let (kind, device) = (weights.frame.compute_kind(), weights.frame.device());
    let block_bytes = kv_cache::block_bytes(&weights.shard, options.block_size, kind);
    let left = options.memory.map_or(usize::MAX, |share| share.bytes().saturating_sub(weights.num_bytes()));
    let allowed = left.min(options.max_cache_bytes.unwrap_or(usize::MAX)) / block_bytes.max(1);
    if let Some(share) = options.memory {
        for (request_idx, request) in planned.iter().enumerate() {
            let needed_bytes = request.max_blocks(options.block_size) * block_bytes;
            if needed_bytes > left {
                let (cache_bytes, weight_bytes) = (left, weights.num_bytes());
                return Err(RolloutError::CacheTooSmall {
                    request_idx,
                    share,
                    cache_bytes,
                    weight_bytes,
                    needed_bytes,
                });
            }
        }
    }
    let wanted = Scheduler::blocks_wanted(planned, options.block_size, options.max_concurrent);
    let num_blocks = wanted.min(allowed).clamp(1, u32::MAX as usize) as u32;
    if cache.as_ref().is_some_and(|cache| cache.num_blocks() < num_blocks) {
        // The old one goes before the new one comes.
        *cache = None;
    }
    Ok(cache.get_or_insert_with(|| {
        KvCache::allocate(&weights.shard, num_blocks, options.block_size, (kind, device))
    }))
}

fn scheduler_for(
    options: &RolloutOptions,
    cache: &KvCache,
    planned: &[SequenceRequest],
) -> Result<Scheduler, RolloutError> {
    let limits = SchedulerLimits {
        num_blocks: cache.num_blocks(),
        block_size: cache.block_size(),
        max_concurrent: options.max_concurrent,
        max_prefill_tokens: options.max_prefill_tokens,
    };
    let mut scheduler = Scheduler::new(limits).map_err(RolloutError::Schedule)?;
    planned.iter().try_for_each(|request| scheduler.add(request)).map_err(RolloutError::Schedule)?;
    Ok(scheduler)
}
