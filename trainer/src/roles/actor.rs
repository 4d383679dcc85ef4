//! The actor: the policy that is trained. It computes log-probs of batches, gradients of losses, and updates.
//!
//! ```text
//! MicroBatch -> forward (tape) -> hidden of predicting positions -> head, chunk by chunk:
//!     log-probs, entropies -> loss (rlt-core) -> their derivatives -> hidden and head gradients -> backward
//! ```
//! The policy is a [`Learner`], which has the loop over micro-batches and updates, with the head in
//! `policy_head`. The reference policy is the same weights with the adapter off. Losses and batches are
//! defined in `rlt-core`. Each rank of a sequence-parallel group does this for its shard of the tokens;
//! log-probs and gradients are then summed over ranks.

mod chunked_loss;
mod classifier;
mod loftq;
mod loss_inputs;
mod policy_head;
mod policy_loss;
mod role;
mod scoring;
pub mod update;

use std::path::PathBuf;

use rlt_core::loss::PreparedLoss;
use rlt_decoder::{Adapter, Decoder};
use rlt_parallel::schedule::DecoderPass;
use rlt_parallel::schedule::probe::{self, ProbeError};
use rlt_parallel::{Ranks, ShardedParameters};

pub use self::chunked_loss::PolicySums;
pub use self::policy_head::EvaluateLoss;
pub(crate) use self::policy_head::PolicyHead;
pub use self::role::ActorRole;
use crate::roles::learner::scoring::Scoring;
use crate::roles::learner::{DeferredLoss, Learner, LearnerError, LearnerOptions, MicroBatch};
use crate::roles::optim::AdamW;

/// Settings of the actor's passes, which are fixed for a run.
#[derive(Clone, Copy, Debug)]
pub struct ActorOptions {
    /// Divisor of the logits, as in the rollout.
    pub temperature: f64,
    /// Number of tokens whose logits exist at the same time.
    pub head_chunk_tokens: usize,
    /// Whether only layer inputs are kept for the backward pass.
    pub activation_checkpointing: bool,
    /// Largest global norm of a gradient, to which larger ones are clipped.
    pub max_grad_norm: f64,
}

/// Log-probs and entropies of completion tokens, in nats.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenScores {
    /// Log-prob of each token under the policy.
    pub logprobs: Vec<f64>,
    /// Entropy of the distribution from which each token was drawn.
    pub entropies: Vec<f64>,
}

/// The trained policy.
#[derive(Debug)]
pub struct Actor {
    /// The weights with their optimizer, which other roles read.
    pub learner: Learner,
    head: PolicyHead,
    /// Ranks in the sequence-parallel groups of passes without gradients.
    scoring_ranks: Ranks,
    /// Ranks in the sequence-parallel groups of the reference's passes.
    reference_ranks: Ranks,
}

impl Actor {
    /// Creates an actor of `decoder`, whose trainable parameters are those of `optimizer`. All `ranks` must
    /// give the same.
    pub fn new(decoder: Decoder, optimizer: AdamW, options: ActorOptions, ranks: Ranks) -> Self {
        let ActorOptions { temperature, head_chunk_tokens, activation_checkpointing, max_grad_norm } =
            options;
        let (scoring_ranks, reference_ranks) = (ranks.clone(), ranks.clone());
        let options = LearnerOptions { activation_checkpointing, max_grad_norm };
        Self {
            learner: Learner::new(decoder, optimizer, options, ranks),
            head: PolicyHead { temperature, chunk_tokens: head_chunk_tokens },
            scoring_ranks,
            reference_ranks,
        }
    }

    /// Sets the ranks, with their sequence-parallel groups, for [`Self::score`] and other passes without
    /// gradients.
    #[must_use]
    pub fn scoring_by(self, ranks: Ranks) -> Self {
        Self { reference_ranks: ranks.clone(), scoring_ranks: ranks, ..self }
    }

    /// Sets the ranks, with their sequence-parallel groups, for passes of the reference.
    #[must_use]
    pub fn scoring_reference_by(self, ranks: Ranks) -> Self {
        Self { reference_ranks: ranks, ..self }
    }

    /// Sets the `shards` of a sharded decoder, see [`Learner::with_shards`].
    #[must_use]
    pub fn with_shards(self, shards: ShardedParameters) -> Self {
        Self { learner: self.learner.with_shards(Some(shards)), ..self }
    }

    /// Offloads layer inputs to files of `folder`, see [`Learner::with_offloaded_inputs`].
    #[must_use]
    pub fn with_offloaded_inputs(self, folder: PathBuf) -> Self {
        Self { learner: self.learner.with_offloaded_inputs(Some(folder)), ..self }
    }

    /// Sets the `coefficient` of the routers' auxiliary loss in updates; `None` omits the loss.
    #[must_use]
    pub fn with_router_loss(self, coefficient: Option<f64>) -> Self {
        Self { learner: self.learner.with_router_loss(coefficient), ..self }
    }

    /// Returns the head that computes the loss in updates of the policy.
    pub(crate) fn head(&self) -> PolicyHead {
        self.head
    }

    /// Returns the passes of the policy without gradients.
    fn scoring(&self) -> Scoring<'_> {
        let ranks = &self.scoring_ranks;
        let model = DecoderPass { sp_group: ranks.sp_group(), ..self.learner.model() };
        Scoring { model, ranks, adapter: Adapter::On, routes: None }
    }

    /// Checks that a sequence-parallel group computes what one of its ranks computes alone; otherwise all
    /// ranks fail together. `field` is the manifest's field of the degree.
    ///
    /// # Errors
    /// [`ProbeError`].
    pub fn check_sequence_parallel(&self, ranks: &Ranks, field: &'static str) -> Result<(), ProbeError> {
        probe::check(DecoderPass { sp_group: ranks.sp_group(), ..self.learner.model() }, ranks, field)
    }

    /// Adds the gradient of one micro-batch's share of the loss, on a CPU.
    ///
    /// # Errors
    /// If the loss does not fit the micro-batch.
    pub fn accumulate(
        &self,
        micro_batch: &MicroBatch,
        loss: &PreparedLoss<'_>,
    ) -> Result<PolicySums, LearnerError> {
        self.learner.forward_backward(micro_batch, |hidden_cd, context| {
            self.head.evaluate(hidden_cd, micro_batch, loss, context)
        })
    }

    /// Does the same as [`Self::accumulate`] on a GPU, without waiting: the stream calls `evaluate`, which
    /// owns its inputs, for each chunk. The gradient is valid for later work on the stream.
    ///
    /// # Errors
    /// When the device refuses a call.
    pub fn accumulate_in_stream(
        &self,
        micro_batch: &MicroBatch,
        evaluate: Box<EvaluateLoss>,
    ) -> Result<DeferredLoss<PolicySums>, LearnerError> {
        self.learner.forward_backward(micro_batch, |hidden_cd, context| {
            self.head.evaluate_in_stream(hidden_cd, micro_batch, evaluate, context)
        })
    }
}
