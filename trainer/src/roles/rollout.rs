//! The rollout engine: writes completions with the actor's own weights, many sequences at once.
//!
//! ```text
//!   sync_weights(policy, version) -> generate(requests) ... -> sleep() -> (update) -> sync_weights ...
//!
//!   generate:  Scheduler (rlt-core, no tensors)  -- Step -->  Runner (CpuRunner or CudaRunner)
//!                   ^                                            |
//!                   +------------- sampled tokens ---------------+
//! ```
//! - One loop (`engine/run_loop.rs`) schedules, launches and reads the steps of either runner. It works on a
//!   list of requests, or on commands of handles that add, extend, pause, resume and cancel sequences
//!   ([`RolloutEngine::run`]).
//! - One body: a layer's arithmetic is [`crate::model::DecoderLayer::forward_with`], which training runs too;
//!   only the linear layers are packed for few rows and the attention reads a paged cache.
//! - A prompt longer than a pass may be is prefilled in pieces, whose tokens attend to the cache.
//! - On a GPU (`device`) one step is launched before the tokens of the one before are read.
//! - Sequences join and leave between two steps; no row of a batch is padding.
//! - Ranks may form a tensor-parallel group ([`RolloutEngine::with_tp_group`]): each packs its shard of every
//!   layer and keeps keys and values of its heads; all run the same scheduler on the same requests, and draw
//!   from the same logits, bit by bit. In every step they verify that they drew the same tokens, and exchange
//!   stop requests. Commands of the first rank reach all of them before the same step (`engine/inbox.rs`).
//!   Embeddings and norms are whole on each.
//! - Weights are packed by `sync_weights`, unit by unit, which computes a digest of every parameter.
//!   Generation first computes the digests of the trainer's parameters again and refuses to run if one of
//!   them has changed. With FSDP each rank digests its shard, and gathered units are compared with the
//!   digests of all.
//! - An adapter is folded into what is packed, or stays beside it (`unmerged`): then the packed base is kept
//!   over the updates, and a sync brings the adapter alone.
//! - A sample depends on its prompt, its seed and the weights. On a CPU in f32 packed products, norms and
//!   attention treat each row by itself, so a sample does not depend on its batch. Elsewhere, with three
//!   tensor-parallel shards and more, and after a preemption, additions may have another order, by about 1e-6
//!   in a log-prob; the draw is made so that such noise moves no token unless the seed's number lies within
//!   it of a boundary (see [`rlt_core::sampling`]).
//!
//! Shapes: b sequences in a decode, t tokens, v vocabulary. Never here: rewards, advantages, what the prompts
//! mean.

mod completion;
mod device;
mod digest;
mod engine;
mod experts;
mod images;
mod kv_cache;
mod latent;
mod memory;
mod product;
mod role;
mod routes;
mod runner;
mod sampler;
mod stacked_experts;
mod tp_projections;
mod unmerged;
mod weights;
mod wide_heads;

use std::sync::Arc;
use std::time::Duration;

use rlt_core::engine::{DetokenizeError, SchedulerError};
use rlt_core::images::{ImageError, PromptImage};
use rlt_core::sampling::{SamplingError, SamplingParams};
use rlt_core::types::TokenId;
use serde::{Deserialize, Serialize};
use tch::Kind;

use crate::parallel::RankError;

pub use digest::WeightDigest;
pub use engine::{
    Command, CommandQueue, CommandSource, EngineEnded, EngineHandle, Event, NoCommandYet, NoCommands,
    RolloutEngine, command_queue,
};
pub use memory::MemoryShare;
pub use rlt_core::engine::{Detokenizer, SequenceId};
pub(crate) use role::SamplingCost;
pub use role::{RolloutRole, Sampled};

/// Settings and limits of a rollout engine.
#[derive(Clone, Debug)]
pub struct RolloutOptions {
    /// Sequences that decode together.
    pub max_concurrent: usize,
    /// Tokens a block of the key-value cache holds.
    pub block_size: usize,
    /// Numbers in which is sampled; `None` is what the policy computes in.
    pub compute: Option<Kind>,
    /// Longest prompt and completion together, in tokens, within the model's own `max_position_embeddings`;
    /// `None` is that.
    pub max_model_len: Option<usize>,
    /// Most memory for keys and values, in bytes; `None` is as much as the requests can fill. With less,
    /// sequences that find no room are computed again later.
    pub max_cache_bytes: Option<usize>,
    /// Most memory for packed weights and cache together; `None` bounds neither.
    pub memory: Option<MemoryShare>,
    /// Prompt tokens that are prefilled in one pass; a longer prompt is prefilled in pieces.
    pub max_prefill_tokens: usize,
    /// Whether steps on a GPU are captured as graphs.
    pub uses_graphs: bool,
    /// Whether an adapter is folded into the weights, all of which each sync packs. Otherwise it is beside
    /// its base, which the engine keeps, and a sync brings the adapter alone. Quantized weights are never
    /// folded into.
    pub merge_lora: bool,
    /// Tokens that end a sample unless its parameters say otherwise: the tokenizer's.
    pub eos_token_ids: Vec<TokenId>,
}

impl Default for RolloutOptions {
    fn default() -> Self {
        Self {
            max_concurrent: 64,
            block_size: 16,
            compute: None,
            max_model_len: None,
            max_cache_bytes: None,
            memory: None,
            max_prefill_tokens: 4096,
            uses_graphs: true,
            merge_lora: true,
            eos_token_ids: Vec::new(),
        }
    }
}

/// A prompt and how many samples of it are wanted, with what parameters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RolloutRequest {
    /// Prompt tokens, at least one.
    pub prompt: Arc<[TokenId]>,
    /// Images of the prompt, in the order of their placeholder tokens.
    pub images: Vec<Arc<PromptImage>>,
    /// One seed a sample. The same seed gives the same sample.
    pub seeds: Vec<u64>,
    /// How tokens are drawn and where samples end.
    pub sampling: SamplingParams,
    /// Longest completion in tokens; the model's context may end it sooner.
    pub max_new_tokens: usize,
}

/// How far a call of `generate` has come, reported after each step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RolloutProgress {
    /// New tokens so far.
    pub num_tokens: usize,
    /// Sequences that decode now.
    pub num_running: usize,
    /// Sequences that wait for a place.
    pub num_waiting: usize,
    /// Sequences that are complete.
    pub num_finished: usize,
}

/// Counts of one call of `generate`, and where its time went. On a GPU a phase's time is that of its
/// launches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RolloutStats {
    /// Number of new tokens of all completions.
    pub num_tokens: usize,
    /// Number of decode steps.
    pub num_steps: usize,
    /// Prompt tokens computed; less than the prompts' sum over all samples, as a group shares its prompt.
    pub num_prefilled_tokens: usize,
    /// Sequences that ran out of cache and were computed again.
    pub num_preemptions: usize,
    /// Memory of this rank's key-value cache in bytes.
    pub cache_bytes: usize,
    /// Memory of this rank's packed weights in bytes.
    pub weight_bytes: usize,
    /// Number of decoding steps that could not be captured as a CUDA graph. After the first one the engine
    /// decodes in eager mode.
    pub num_failed_captures: usize,
    /// Time to take the digest of the trainer's weights.
    pub digest_time: Duration,
    /// Time to compute keys and values of prompts.
    pub prefill_time: Duration,
    /// Time to decode, sampling excluded.
    pub decode_time: Duration,
    /// Time to turn logits into tokens.
    pub sampling_time: Duration,
}

/// An error while completions are sampled or weights are synchronised.
#[derive(Debug, thiserror::Error)]
pub enum RolloutError {
    /// A stop was requested.
    #[error("generate: interrupted")]
    Interrupted,
    /// No weights were synchronised, or they were dropped by `sleep`.
    #[error("generate: the engine has no weights; synchronise them first")]
    Asleep,
    /// The trainer's weights are no longer those that the engine packed.
    #[error(
        "generate: parameter {parameter} has changed since policy version {policy_version} was synchronised"
    )]
    StaleWeights {
        /// First parameter that differs.
        parameter: String,
        /// The policy version that the engine holds.
        policy_version: u64,
    },
    /// Weights are older than those the engine already has.
    #[error("synchronise weights: policy version {offered} comes after {current}, which is newer")]
    OlderWeights {
        /// The engine's version.
        current: u64,
        /// The version that was to replace it.
        offered: u64,
    },
    /// The gathered weights differ from those that the ranks hold.
    #[error("synchronise weights: the gathered parameters of {unit} differ from the ranks' shards")]
    Torn {
        /// Name of the unit of the model, such as `layer 3`.
        unit: String,
    },
    /// The weights could not be gathered, or a rank of the tensor-parallel group was lost.
    #[error("failed to gather weights, or to reduce the results of tensor-parallel shards")]
    Ranks(#[from] RankError),
    /// Ranks of a tensor-parallel group disagree.
    #[error("generate: ranks of a tensor-parallel group have drawn different tokens in step {step}")]
    Disagreement {
        /// The how many-th step of the call, from 1.
        step: usize,
    },
    /// A request has the index of one whose sequences still exist.
    #[error("request {request_idx} exists already; expected an index that no other request has")]
    RepeatedRequest {
        /// Index of the request.
        request_idx: usize,
    },
    /// A sampling parameter is out of its range.
    #[error("request {request_idx}")]
    Sampling {
        /// Number of the request in the call.
        request_idx: usize,
        /// The error, which names the parameter and its range.
        #[source]
        source: SamplingError,
    },
    /// A prompt leaves no room for a completion.
    #[error("request {request_idx}: prompt has {prompt_len} tokens, the model's context {max_model_len}")]
    PromptTooLong {
        /// Number of the request in the call.
        request_idx: usize,
        /// Length of the prompt in tokens.
        prompt_len: usize,
        /// Longest sequence in tokens, prompt and completion together.
        max_model_len: usize,
    },
    /// The tokens of a prompt are not those of its images.
    #[error("request {request_idx}")]
    Images {
        /// Number of the request in the call.
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
        /// Number of the request in the call.
        request_idx: usize,
        /// Number of images of the prompt.
        num_images: usize,
    },
    /// A prompt holds a token that the model does not know.
    #[error("request {request_idx}: token {token} is outside the model's vocabulary of {vocab_size}")]
    UnknownToken {
        /// Number of the request in the call.
        request_idx: usize,
        /// The token id that is out of range.
        token: TokenId,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// The cache has no room for one longest sequence.
    #[error(
        "spec.rollout.memoryFraction: {} of {} GiB leaves {} GiB for the KV cache beside {} GiB of packed weights; expected \
         {} GiB for the longest sequence of request {request_idx}: raise spec.rollout.memoryFraction to at least {}, or lower \
         spec.rollout.maxModelTokens",
        share.fraction, gib(share.total_bytes), gib(*cache_bytes), gib(*weight_bytes), gib(*needed_bytes),
        share.fraction_of(weight_bytes + needed_bytes)
    )]
    CacheTooSmall {
        /// Number of the request in the call.
        request_idx: usize,
        /// Memory that packed weights and cache may take together.
        share: MemoryShare,
        /// Bytes that are left for the cache.
        cache_bytes: usize,
        /// Bytes that the packed weights take.
        weight_bytes: usize,
        /// Bytes of cache for the longest sample of the request.
        needed_bytes: usize,
    },
    /// The requests do not fit the engine's limits.
    #[error("schedule rollouts")]
    Schedule(#[source] SchedulerError),
    /// The model gave a NaN or an infinite logit.
    #[error(
        "logits of request {request_idx}, sample {sample_idx} are not finite at completion token {position}"
    )]
    NonFiniteLogits {
        /// Number of the request in the call.
        request_idx: usize,
        /// Position among the request's samples.
        sample_idx: usize,
        /// Completion tokens before the one that could not be drawn.
        position: usize,
    },
    /// A completion could not be turned into text.
    #[error("turn the completion of request {request_idx}, sample {sample_idx} into text")]
    Detokenize {
        /// Number of the request in the call.
        request_idx: usize,
        /// Position among the request's samples.
        sample_idx: usize,
        /// The tokenizer's error.
        #[source]
        source: DetokenizeError,
    },
    /// Weights or logits could not be read or packed.
    #[error("reach the tensors of {what}")]
    Tensor {
        /// The tensors, such as `logits`, or the work on them.
        what: String,
        /// The error of the tensor library.
        #[source]
        source: rlt_torch::Error,
    },
}

/// GiB with enough digits for small models.
fn gib(bytes: usize) -> String {
    let gib = bytes as f64 / f64::from(1 << 30);
    if gib >= 1.0 { format!("{gib:.1}") } else { format!("{gib:.2e}") }
}

impl RolloutError {
    /// Number of the request at fault, where there is one.
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
            | Self::Torn { .. }
            | Self::Ranks(_)
            | Self::Disagreement { .. }
            | Self::Tensor { .. } => None,
        }
    }
}
