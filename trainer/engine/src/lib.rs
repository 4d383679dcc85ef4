//! The rollout engine: samples completions of many sequences at once, under the actor's weights.
//!
//! ```text
//!   sync_weights(policy, version) -> generate(requests) ... -> sleep() -> (update) -> sync_weights ...
//!
//!   generate:  Scheduler (rlt-core, no tensors)  -- Step -->  Runner (CpuRunner or CudaRunner)
//!                   ^                                            |
//!                   +------------- sampled tokens ---------------+
//! ```
//! - One loop (`engine/run_loop.rs`) schedules, launches and reads the steps of either runner. Its input is a
//!   list of requests, or commands that add, extend, pause, resume and cancel sequences
//!   ([`Engine::run`]).
//! - A layer is computed by [`rlt_decoder::DecoderLayer::forward_with`], as in training. Only its linear
//!   layers are packed for few rows, and its attention reads a paged cache.
//! - A prompt that is longer than the token budget of a pass is prefilled in chunks, whose tokens attend to
//!   the cache.
//! - On a GPU (`device`) a step is launched before the tokens of the previous step are read.
//! - Sequences join and leave the batch between two steps, and no row of a batch is padding.
//! - Ranks may form a tensor-parallel group ([`Engine::with_tp_group`]): each rank packs its shard of every
//!   layer and caches the keys and values of its heads. All ranks run the same scheduler on the same
//!   requests, and sample from logits that are bitwise equal. In every step they verify that they sampled the
//!   same tokens, and exchange stop requests. Commands of the first rank reach all ranks before the same step
//!   (`engine/inbox.rs`). Embeddings and norms are full on each rank.
//! - `sync_weights` packs the weights one FSDP unit at a time, and computes a digest of every parameter.
//!   Generation first computes the digests of the trainer's parameters again, and refuses to run if one of
//!   them has changed. With FSDP each rank digests its shard, and gathered units are compared with the
//!   digests of all ranks.
//! - An adapter is merged into the packed weights, or stays unmerged (`unmerged`): the engine then keeps the
//!   packed base, and a sync transfers only the adapter.
//! - A sample depends on its prompt, its seed and the weights. On a CPU in f32, packed products, norms and
//!   attention compute each row independently, so a sample does not depend on its batch. On GPUs and in other
//!   dtypes, with three or more tensor-parallel shards, and after a preemption, sums may be added in another
//!   order, which changes a log-prob by about 1e-6. Such noise changes a token only if the seed's random
//!   number is that close to a boundary between two tokens (see [`rlt_core::sampling`]).
//!
//! Shapes: b sequences in a decode, t tokens, v vocabulary. Rewards and advantages are computed elsewhere.

mod completion;
mod device;
mod engine;
mod experts;
mod grouped_experts;
mod images;
mod kv_cache;
mod latent;
mod memory;
mod padded_heads;
mod product;
mod runner;
mod sampler;
mod tp_projections;
mod unmerged;
mod weights;

use std::sync::Arc;
use std::time::Duration;

use rlt_core::engine::{DetokenizeError, SchedulerError};
use rlt_core::images::{ImageError, PromptImage};
use rlt_core::sampling::{SamplingError, SamplingParams};
use rlt_core::types::TokenId;
use rlt_parallel::{DigestError, RankError};
use serde::{Deserialize, Serialize};
use tch::Kind;

pub use engine::{
    Command, CommandQueue, CommandSource, Engine, EngineEnded, EngineHandle, Event, NoCommandYet, NoCommands,
    command_queue,
};
pub use memory::MemoryShare;
pub use rlt_core::engine::{Detokenizer, SequenceId};

/// Settings and limits of a rollout engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Maximum number of sequences that decode together.
    pub max_num_seqs: usize,
    /// Number of tokens in a block of the key-value cache.
    pub block_size: usize,
    /// Compute dtype of the rollout; `None` means the actor's.
    pub compute: Option<Kind>,
    /// Maximum number of tokens of prompt and completion together; `None` means the model's
    /// `max_position_embeddings`, which is also the upper limit.
    pub max_model_len: Option<usize>,
    /// Memory limit for keys and values in bytes; `None` means as much as the requests can fill. Sequences
    /// that find no free block are preempted and computed again later.
    pub max_cache_bytes: Option<usize>,
    /// Memory limit for packed weights and cache together; `None` means no limit.
    pub memory: Option<MemoryShare>,
    /// Maximum number of prompt tokens that are prefilled in one pass; a longer prompt is prefilled in
    /// chunks.
    pub max_num_batched_tokens: usize,
    /// Whether decoding steps on a GPU are captured as CUDA graphs.
    pub uses_graphs: bool,
    /// Whether adapters are merged, so that each sync packs all weights. Otherwise the engine keeps the base,
    /// and a sync transfers only the unmerged adapter. Adapters are never merged into quantized weights.
    pub merge_lora: bool,
    /// Tokens that end a sample unless its parameters say otherwise: the tokenizer's end-of-sequence tokens.
    pub eos_token_ids: Vec<TokenId>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            max_num_seqs: 64,
            block_size: 16,
            compute: None,
            max_model_len: None,
            max_cache_bytes: None,
            memory: None,
            max_num_batched_tokens: 4096,
            uses_graphs: true,
            merge_lora: true,
            eos_token_ids: Vec::new(),
        }
    }
}

/// A prompt with the number of samples wanted and their sampling parameters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Prompt tokens, at least one.
    pub prompt: Arc<[TokenId]>,
    /// Images of the prompt, in the order of their placeholder tokens.
    pub images: Vec<Arc<PromptImage>>,
    /// Seed of each sample. The same seed gives the same sample.
    pub seeds: Vec<u64>,
    /// Sampling parameters, which also say where a sample ends.
    pub sampling: SamplingParams,
    /// Maximum length of a completion in tokens; the model's context may end it sooner.
    pub max_new_tokens: usize,
}

/// Progress of a call of `generate`, reported after each step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RolloutProgress {
    /// Number of tokens sampled so far.
    pub num_tokens: usize,
    /// Number of sequences that decode now.
    pub num_running: usize,
    /// Number of sequences that wait for a row of the batch or for cache blocks.
    pub num_waiting: usize,
    /// Number of sequences that are complete.
    pub num_finished: usize,
}

/// Counters and times of one call of `generate`. On a GPU the time of a phase is that of its launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RolloutStats {
    /// Number of new tokens of all completions.
    pub num_tokens: usize,
    /// Number of decode steps.
    pub num_steps: usize,
    /// Number of prompt tokens computed; a prompt is computed once for all samples of its group.
    pub num_prefilled_tokens: usize,
    /// Number of preemptions: sequences that ran out of cache blocks and were computed again.
    pub num_preemptions: usize,
    /// Size of this rank's key-value cache in bytes.
    pub cache_bytes: usize,
    /// Size of this rank's packed weights in bytes.
    pub weight_bytes: usize,
    /// Number of decoding steps that could not be captured as a CUDA graph. After the first one the engine
    /// decodes in eager mode.
    pub num_failed_captures: usize,
    /// Time to compute the digests of the trainer's weights.
    pub digest_time: Duration,
    /// Time to prefill prompts.
    pub prefill_time: Duration,
    /// Time to decode, without sampling.
    pub decode_time: Duration,
    /// Time to sample tokens from logits.
    pub sampling_time: Duration,
}

/// An error of sampling completions or of synchronising weights.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A stop was requested.
    #[error("the generation was interrupted")]
    Interrupted,
    /// No weights were synchronised, or they were dropped by `sleep`.
    #[error("failed to generate: the engine has no weights; synchronise them first")]
    Asleep,
    /// The trainer's weights have changed since the engine packed them.
    #[error(
        "failed to generate: parameter {parameter} has changed since policy version {policy_version} was \
         synchronised"
    )]
    StaleWeights {
        /// First parameter that differs.
        parameter: String,
        /// The policy version that the engine holds.
        policy_version: u64,
    },
    /// The offered weights are older than those that the engine has.
    #[error(
        "failed to synchronise weights: policy version {offered} is older than {current}, the present one"
    )]
    OlderWeights {
        /// Policy version that the engine holds.
        current: u64,
        /// Policy version that was offered.
        offered: u64,
    },
    /// The gathered weights differ from the ranks' shards, by their digests.
    #[error("failed to synchronise weights: the gathered parameters of {unit} differ from the ranks' shards")]
    GatherMismatch {
        /// Name of the unit of the model, such as `layer 3`.
        unit: String,
    },
    /// The weights could not be gathered, or a rank of the tensor-parallel group was lost.
    #[error("failed to gather weights, or to reduce the results of tensor-parallel shards")]
    Ranks(#[from] RankError),
    /// The digests of the weights could not be computed.
    #[error("failed to compare the weights with those of the trainer")]
    Digests(#[from] DigestError),
    /// The ranks of a tensor-parallel group have sampled different tokens.
    #[error("failed to generate: ranks of a tensor-parallel group sampled different tokens in step {step}")]
    Disagreement {
        /// Number of the step in the call, from 1.
        step: usize,
    },
    /// A request has the index of another request whose sequences still exist.
    #[error("request {request_idx} exists already; expected an index that no other request has")]
    RepeatedRequest {
        /// Index of the request.
        request_idx: usize,
    },
    /// A sampling parameter is outside its range.
    #[error("request {request_idx}")]
    Sampling {
        /// Index of the request in the call.
        request_idx: usize,
        /// The error, which names the parameter and its range.
        #[source]
        source: SamplingError,
    },
    /// A prompt leaves no room for a completion within the model's context.
    #[error("request {request_idx}: prompt has {prompt_len} tokens, the model's context {max_model_len}")]
    PromptTooLong {
        /// Index of the request in the call.
        request_idx: usize,
        /// Length of the prompt in tokens.
        prompt_len: usize,
        /// Maximum number of tokens of prompt and completion together.
        max_model_len: usize,
    },
    /// The placeholder tokens of a prompt do not match its images.
    #[error("request {request_idx}")]
    Images {
        /// Index of the request in the call.
        request_idx: usize,
        /// The difference between placeholders and images.
        #[source]
        source: ImageError,
    },
    /// A prompt has images, and the model has no vision tower.
    #[error(
        "request {request_idx} has {num_images} images; expected none before a model without a vision tower"
    )]
    NoVision {
        /// Index of the request in the call.
        request_idx: usize,
        /// Number of images in the prompt.
        num_images: usize,
    },
    /// A prompt contains a token id that is outside the model's vocabulary.
    #[error("request {request_idx}: token {token} is outside the model's vocabulary of {vocab_size}")]
    UnknownToken {
        /// Index of the request in the call.
        request_idx: usize,
        /// The invalid token id.
        token: TokenId,
        /// Number of rows of the embedding.
        vocab_size: usize,
    },
    /// The cache is too small for the longest sequence of a request.
    #[error(
        "spec.rollout.memoryFraction: {} of {} GiB leaves {} GiB for the KV cache and {} GiB of packed weights; expected \
         {} GiB for the longest sequence of request {request_idx}: raise spec.rollout.memoryFraction to at least {}, or lower \
         spec.rollout.maxModelTokens",
        share.fraction, gib(share.total_bytes), gib(*cache_bytes), gib(*weight_bytes), gib(*needed_bytes),
        share.fraction_of(weight_bytes + needed_bytes)
    )]
    CacheTooSmall {
        /// Index of the request in the call.
        request_idx: usize,
        /// Memory limit of packed weights and cache together.
        share: MemoryShare,
        /// Number of bytes left for the cache.
        cache_bytes: usize,
        /// Size of the packed weights in bytes.
        weight_bytes: usize,
        /// Size in bytes of the cache that the longest sample of the request needs.
        needed_bytes: usize,
    },
    /// The scheduler rejects a request, because it exceeds the engine's limits.
    #[error("failed to schedule sequences")]
    Schedule(#[source] SchedulerError),
    /// The model returned a NaN or an infinite logit.
    #[error(
        "logits of request {request_idx}, sample {sample_idx} are not finite at completion token {position}"
    )]
    NonFiniteLogits {
        /// Index of the request in the call.
        request_idx: usize,
        /// Index of the sample among those of the request.
        sample_idx: usize,
        /// Number of completion tokens before the one that could not be sampled.
        position: usize,
    },
    /// A completion could not be decoded to text.
    #[error("failed to decode the tokens of request {request_idx}, sample {sample_idx}")]
    Detokenize {
        /// Index of the request in the call.
        request_idx: usize,
        /// Index of the sample among those of the request.
        sample_idx: usize,
        /// Error of the tokenizer.
        #[source]
        source: DetokenizeError,
    },
    /// Weights or logits could not be read or packed.
    #[error("tensor operation failed for {what}")]
    Tensor {
        /// Name of the tensors, such as `logits`, or of the operation on them.
        what: String,
        /// Error of the tensor library.
        #[source]
        source: rlt_torch::Error,
    },
}

/// Formats bytes in GiB, with enough digits for small models.
fn gib(bytes: usize) -> String {
    let gib = bytes as f64 / f64::from(1 << 30);
    if gib >= 1.0 { format!("{gib:.1}") } else { format!("{gib:.2e}") }
}

impl EngineError {
    /// Index of the request that caused the error; `None` if no single request did.
    pub fn request_idx(&self) -> Option<usize> {
        match self {
            Self::RepeatedRequest { request_idx }
            | Self::Sampling { request_idx, .. }
            | Self::PromptTooLong { request_idx, .. }
            | Self::UnknownToken { request_idx, .. }
            | Self::Images { request_idx, .. }
            | Self::NoVision { request_idx, .. }
            | Self::CacheTooSmall { request_idx, .. }
            | Self::NonFiniteLogits { request_idx, .. }
            | Self::Detokenize { request_idx, .. } => Some(*request_idx),
            Self::Schedule(source) => source.request_idx(),
            Self::Interrupted
            | Self::Asleep
            | Self::StaleWeights { .. }
            | Self::OlderWeights { .. }
            | Self::GatherMismatch { .. }
            | Self::Ranks(_)
            | Self::Digests(_)
            | Self::Disagreement { .. }
            | Self::Tensor { .. } => None,
        }
    }
}
