//! The actor: the policy that is trained. It computes log-probs of batches, gradients of losses, and updates.
//!
//! ```text
//! MicroBatch -> forward (tape) -> hidden of predicting positions -> head, chunk by chunk:
//!     log-probs, entropies -> loss (rlt-core) -> their derivatives -> hidden and head gradients -> backward
//! ```
//! This file is the actor's head; the loop over micro-batches and updates is in [`crate::roles::learner`],
//! the schedule over layers in its `layer_schedule`. The reference policy is the same weights with the adapter
//! off. Losses and batches are defined in `rlt-core`. Each rank of a sequence-parallel group does this for
//! its shard of the tokens; log-probs and gradients are then summed over ranks.
//!
//! Legend of shapes: c completion tokens of a micro-batch, d hidden size.

mod balance;
mod classifier;
mod in_stream;
mod loftq;
mod loss_sums;
mod role;
mod scoring;

use std::cell::RefCell;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use rlt_core::loss::PreparedLoss;
use tch::Tensor;

pub use self::in_stream::{EvaluateLoss, PendingLoss, StreamLoss};
pub use self::loss_sums::Accumulated;
use self::loss_sums::LossSums;
pub(crate) use self::loss_sums::scaled;
pub use self::role::ActorRole;
use crate::model::{Adapter, Decoder, RouteCounts, RoutesOfCompletion};
use crate::parallel::{DecoderUnits, RankError, Ranks, ShardedParameters};
use crate::roles::learner::layer_schedule::DecoderPass;
use crate::roles::learner::routes::RouteComparison;
use crate::roles::learner::{
    EmbeddingAndHeadGradients, ForwardBackward, Learner, LearnerError, MicroBatch, ProbeError, probe,
};
use crate::roles::optim::{AdamW, LossScale, StepOutcome};
use crate::roles::train_state::TrainState;

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

/// The trained policy with its optimizer.
#[derive(Debug)]
pub struct Actor {
    /// Weights of the policy; the rollout engine reads them, too.
    pub decoder: Decoder,
    /// Optimizer of the trained parameters, with its state.
    pub optimizer: AdamW,
    options: ActorOptions,
    loss_scale: LossScale,
    outer_gradients: EmbeddingAndHeadGradients,
    dropout_seed: Option<u64>,
    /// Coefficient of the routers' auxiliary loss; `None` without that loss.
    router_loss: Option<f64>,
    /// Derivatives of the routers' auxiliary loss with respect to probabilities in the current update,
    /// multiplied by the loss scale.
    router_slopes: Option<Vec<f32>>,
    /// Counters of the routers' choices; `None` while nothing counts them.
    route_comparison: RefCell<Option<Rc<RouteComparison>>>,
    ranks: Ranks,
    /// Ranks in the sequence-parallel groups of passes without gradients.
    scoring_ranks: Ranks,
    /// Ranks in the sequence-parallel groups of the reference's passes.
    reference_ranks: Ranks,
    shards: Option<ShardedParameters>,
    /// Folder for layer inputs that are offloaded between forward and backward pass; `None` if they stay.
    offload_inputs_to: Option<PathBuf>,
}

impl Actor {
    /// An actor of `decoder`, whose trainable parameters are those of `optimizer`. All `ranks` must give the
    /// same.
    pub fn new(decoder: Decoder, optimizer: AdamW, options: ActorOptions, ranks: Ranks) -> Self {
        let outer_gradients = EmbeddingAndHeadGradients::new(&decoder);
        let loss_scale = LossScale::of(decoder.compute_kind());
        let (scoring_ranks, reference_ranks) = (ranks.clone(), ranks.clone());
        Self {
            decoder,
            optimizer,
            options,
            loss_scale,
            outer_gradients,
            dropout_seed: None,
            router_loss: None,
            router_slopes: None,
            route_comparison: RefCell::default(),
            ranks,
            scoring_ranks,
            reference_ranks,
            shards: None,
            offload_inputs_to: None,
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

    /// Sets the `shards` of a sharded decoder, whose pieces must be the parameters of the optimizer.
    #[must_use]
    pub fn with_shards(self, shards: ShardedParameters) -> Self {
        Self { shards: Some(shards), ..self }
    }

    /// Offloads layer inputs that are kept for the backward pass, on the CPU to unlinked files of `folder`.
    /// Only with `activation_checkpointing` is nothing else kept.
    #[must_use]
    pub fn with_offloaded_inputs(self, folder: PathBuf) -> Self {
        Self { offload_inputs_to: Some(folder), ..self }
    }

    /// This rank's shards of the decoder; `None` if it is not sharded.
    pub fn shards(&self) -> Option<&ShardedParameters> {
        self.shards.as_ref()
    }

    /// Loss scale of the actor.
    pub fn loss_scale(&self) -> LossScale {
        self.loss_scale
    }

    /// Restores the loss scale of a checkpoint, if both runs compute in half precision.
    pub(crate) fn resume_loss_scale(&mut self, saved: Option<LossScale>) {
        resume_loss_scale(&mut self.loss_scale, saved);
    }

    /// The decoder for callers that read all of it, unit by unit.
    pub fn units(&self) -> DecoderUnits<'_> {
        DecoderUnits::new(&self.decoder, self.shards.as_ref())
    }

    fn model(&self) -> DecoderPass<'_> {
        DecoderPass { decoder: &self.decoder, shards: self.shards.as_ref(), sp_group: self.ranks.sp_group() }
    }

    fn scoring_model(&self) -> DecoderPass<'_> {
        DecoderPass { sp_group: self.scoring_ranks.sp_group(), ..self.model() }
    }

    /// Checks that a sequence-parallel group computes what one of its ranks computes alone; otherwise all
    /// ranks fail together. `field` is the manifest's field of the degree.
    ///
    /// # Errors
    /// [`ProbeError`].
    pub fn check_sequence_parallel(&self, ranks: &Ranks, field: &'static str) -> Result<(), ProbeError> {
        probe::check(DecoderPass { sp_group: ranks.sp_group(), ..self.model() }, ranks, field)
    }

    /// The ranks that train together.
    pub fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    /// Adds the gradient of one micro-batch's share of the loss. Head and loss run chunk by chunk in one
    /// pass, so logits are computed only once.
    ///
    /// # Errors
    /// If the loss does not fit the micro-batch.
    pub fn accumulate(
        &self,
        micro_batch: &MicroBatch,
        loss: &PreparedLoss<'_>,
    ) -> Result<Accumulated, LearnerError> {
        let head = |predicting_cd: &Tensor| self.head_and_loss(predicting_cd, micro_batch, loss);
        self.forward_backward().accumulate(micro_batch, head)
    }

    /// The gradient of one micro-batch's loss with respect to its predicting hidden states, `[c, d]`, and its
    /// sums.
    fn head_and_loss(
        &self,
        predicting_cd: &Tensor,
        micro_batch: &MicroBatch,
        loss: &PreparedLoss<'_>,
    ) -> Result<(Tensor, Accumulated), LearnerError> {
        let mut sums = LossSums::of(micro_batch, self.loss_scale.factor());
        let mut per_chunk = |chunk: Range<usize>, logprobs: &[f32], entropies: &[f32]| {
            let (mut by_logprob, mut by_entropy) = (vec![0.0; chunk.len()], vec![0.0; chunk.len()]);
            let derivatives = [by_logprob.as_mut_slice(), &mut by_entropy];
            sums.add(&micro_batch.predicted, chunk, [logprobs, entropies], derivatives, |tokens, l, e| {
                loss.evaluate(tokens, l, e)
            });
            (by_logprob, by_entropy)
        };
        let (model, weight_vd) = (self.model(), self.decoder.compute_head_weight(Adapter::On));
        let grad_cd = model.with_head(&weight_vd, |weight_vd| {
            rlt_torch::head_forward_backward(
                predicting_cd,
                weight_vd,
                &micro_batch.targets,
                self.decoder.distribution(self.options.temperature),
                self.options.head_chunk_tokens,
                self.outer_gradients.head().as_mut(),
                &mut per_chunk,
            )
        })?;
        Ok((model.sum_of_head(grad_cd)?, sums.finish()?))
    }

    /// All-reduces the gradients, so that each rank applies the sum over all ranks.
    ///
    /// # Errors
    /// When a rank is lost.
    pub fn sum_gradients(&mut self) -> Result<(), RankError> {
        self.train_state().sum_gradients()
    }

    /// Clips the reduced gradients, applies them at `learning_rate`, and clears them. A non-finite gradient
    /// is discarded and changes no parameter, on all ranks together.
    ///
    /// # Errors
    /// If libtorch refuses an operation, or a rank is lost.
    pub fn apply(&mut self, learning_rate: f64) -> Result<StepOutcome, LearnerError> {
        Ok(self.train_state().apply(learning_rate)?)
    }

    /// Starts to count the routers' choices in passes over a batch, for whose rows the rollout logged
    /// `of_rows`, until [`Self::take_route_counts`]. Nothing is counted without experts.
    pub(crate) fn watch_routes(&self, of_rows: Vec<Option<RoutesOfCompletion>>) {
        let experts = self.decoder.config.experts.as_ref();
        let watched = experts.map(|experts| Rc::new(RouteComparison::new(of_rows, experts)));
        self.route_comparison.replace(watched);
    }

    /// Ends the count, and returns the counts of all ranks.
    ///
    /// # Errors
    /// When a rank is lost.
    pub(crate) fn take_route_counts(&self) -> Result<Option<RouteCounts>, LearnerError> {
        let Some(watched) = self.route_comparison.take() else { return Ok(None) };
        let num_experts = self.decoder.config.experts.as_ref().map_or(0, |experts| experts.num_experts);
        let mut numbers = watched.all().to_numbers();
        self.ranks.all_reduce(&mut [&mut numbers])?;
        Ok(Some(RouteCounts::from_numbers(&numbers, num_experts)))
    }

    /// Sets the seed of the adapters' dropout for the next update; `None` disables it.
    pub fn set_dropout_seed(&mut self, seed: Option<u64>) {
        self.dropout_seed = seed;
    }
}

impl Learner for Actor {
    fn forward_backward(&self) -> ForwardBackward<'_> {
        ForwardBackward {
            model: self.model(),
            outer_gradients: &self.outer_gradients,
            activation_checkpointing: self.options.activation_checkpointing,
            offload_inputs_to: self.offload_inputs_to.as_deref(),
            dropout_seed: self.dropout_seed,
            router_slopes: self.router_slopes.as_deref(),
            routes: self.route_comparison.borrow().clone(),
        }
    }

    fn train_state(&mut self) -> TrainState<'_> {
        TrainState {
            optimizer: &mut self.optimizer,
            loss_scale: &mut self.loss_scale,
            shards: self.shards.as_ref(),
            ranks: &self.ranks,
            max_grad_norm: self.options.max_grad_norm,
        }
    }
}

/// Restores the saved value of a dynamic loss scale; a fixed one is kept.
pub(crate) fn resume_loss_scale(scale: &mut LossScale, saved: Option<LossScale>) {
    if let Some(saved) = saved.filter(|saved| saved.is_dynamic() && scale.is_dynamic()) {
        *scale = saved;
    }
}
