//! Training a decoder on a batch, whatever its loss: actor, critic and reward models are trained alike.
//!
//! ```text
//! epoch -> update of some rollout groups -> micro-batch: forward -> head and loss -> backward
//!                                        -> sum the gradients of all ranks -> clip -> optimizer step
//! ```
//! A [`Learner`] holds the decoder, its optimizer and the settings of its passes, and does not depend on the
//! roles. Roles differ in their `LossHead`, which computes the loss from the hidden states that predict
//! completion tokens, and its gradient. Losses and their inputs are defined elsewhere.
//!
//! Legend of shapes: t tokens of a micro-batch, c completion tokens, d hidden size.

mod balance;
mod deferred_loss;
mod error;
mod gradients;
mod image_placement;
mod loss_head;
mod micro_batch;
mod mini_batches;
mod routes;
pub(crate) mod scoring;
pub(crate) mod train_state;
mod update_stats;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;

use rlt_core::batch::Batch;
use rlt_decoder::{Adapter, Decoder, RouteCounts, RouterObserver, RoutesOfCompletion};
use rlt_parallel::schedule::{self, DecoderPass, SaveOptions};
use rlt_parallel::{DecoderUnits, Ranks, ShardedParameters};
use tch::Tensor;

pub use self::deferred_loss::DeferredLoss;
pub use self::error::LearnerError;
pub use self::gradients::EmbeddingAndHeadGradients;
pub(crate) use self::loss_head::{HeadContext, LossHead, scaled};
pub use self::micro_batch::MicroBatch;
pub(crate) use self::micro_batch::PredictedTokens;
pub use self::mini_batches::MiniBatches;
use self::routes::RouteComparison;
use self::train_state::TrainState;
pub use self::update_stats::UpdateStats;
use crate::roles::optim::{AdamW, LossScale, OptimError, StepOutcome};

/// Settings of a learner's passes and updates, which are fixed for a run.
#[derive(Clone, Copy, Debug)]
pub struct LearnerOptions {
    /// Whether only layer inputs are kept for the backward pass.
    pub activation_checkpointing: bool,
    /// Largest global norm of a gradient, to which larger ones are clipped.
    pub max_grad_norm: f64,
}

/// A decoder that is trained: its weights or shards, optimizer and loss scale.
#[derive(Debug)]
pub struct Learner {
    decoder: Decoder,
    optimizer: AdamW,
    options: LearnerOptions,
    loss_scale: LossScale,
    outer_gradients: EmbeddingAndHeadGradients,
    /// Seed of the adapters' dropout; `None` without dropout.
    dropout_seed: Option<u64>,
    /// Coefficient of the routers' auxiliary loss; `None` without that loss.
    router_loss: Option<f64>,
    /// Derivatives of the routers' auxiliary loss with respect to the probability of each expert in the
    /// current update, multiplied by the loss scale; `None` without that loss.
    router_slopes: Option<Vec<f32>>,
    /// Counters of the routers' choices; `None` while nothing counts them.
    route_comparison: RefCell<Option<Rc<RouteComparison>>>,
    ranks: Ranks,
    shards: Option<ShardedParameters>,
    /// Folder for layer inputs that are offloaded between forward and backward pass; `None` if they stay.
    offload_inputs_to: Option<PathBuf>,
}

impl Learner {
    /// Creates a learner of `decoder`, whose trained parameters are those of `optimizer`. All `ranks` must
    /// give the same.
    pub fn new(decoder: Decoder, optimizer: AdamW, options: LearnerOptions, ranks: Ranks) -> Self {
        let outer_gradients = EmbeddingAndHeadGradients::new(&decoder);
        let loss_scale = LossScale::of(decoder.compute_kind());
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
            shards: None,
            offload_inputs_to: None,
        }
    }

    /// Sets the `shards` of a sharded decoder, whose local shards must be the parameters of the optimizer.
    #[must_use]
    pub fn with_shards(self, shards: Option<ShardedParameters>) -> Self {
        Self { shards, ..self }
    }

    /// Offloads layer inputs that are kept for the backward pass, on the CPU to unlinked files of `folder`;
    /// `None` keeps them on the device. Without activation checkpointing, the device keeps other activations,
    /// too.
    #[must_use]
    pub fn with_offloaded_inputs(self, folder: Option<PathBuf>) -> Self {
        Self { offload_inputs_to: folder, ..self }
    }

    /// Returns the decoder that is trained.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Returns the optimizer of the trained parameters, with its state.
    pub fn optimizer(&self) -> &AdamW {
        &self.optimizer
    }

    /// Returns the ranks that train together.
    pub fn ranks(&self) -> &Ranks {
        &self.ranks
    }

    /// Returns this rank's shards of the decoder; `None` if it is not sharded.
    pub fn shards(&self) -> Option<&ShardedParameters> {
        self.shards.as_ref()
    }

    /// Returns the decoder for callers that read all of its weights, unit by unit.
    pub fn units(&self) -> DecoderUnits<'_> {
        DecoderUnits::new(&self.decoder, self.shards.as_ref())
    }

    /// Returns the loss scale of the next update.
    pub fn loss_scale(&self) -> LossScale {
        self.loss_scale
    }

    /// Restores the loss scale of a checkpoint, if both runs compute in half precision. A fixed one is kept.
    pub(crate) fn resume_loss_scale(&mut self, saved: Option<LossScale>) {
        if let Some(saved) = saved.filter(|saved| saved.is_dynamic() && self.loss_scale.is_dynamic()) {
            self.loss_scale = saved;
        }
    }

    /// Resets the optimizer's moments and step counts, as if no step had been taken.
    ///
    /// # Errors
    /// [`OptimError`] if offloaded moments cannot be written.
    pub(crate) fn reset_optimizer(&mut self) -> Result<(), OptimError> {
        self.optimizer.reset()
    }

    /// Sets the seed of the adapters' dropout for the next update; `None` disables it.
    pub fn set_dropout_seed(&mut self, seed: Option<u64>) {
        self.dropout_seed = seed;
    }

    /// Returns the decoder with its shards and sequence-parallel group, for a pass.
    pub(crate) fn model(&self) -> DecoderPass<'_> {
        DecoderPass { decoder: &self.decoder, shards: self.shards.as_ref(), sp_group: self.ranks.sp_group() }
    }

    /// Returns the parameters that updates change, with their optimizer.
    pub(crate) fn train_state(&mut self) -> TrainState<'_> {
        TrainState {
            optimizer: &mut self.optimizer,
            loss_scale: &mut self.loss_scale,
            shards: self.shards.as_ref(),
            ranks: &self.ranks,
            max_grad_norm: self.options.max_grad_norm,
        }
    }

    /// Packs this rank's share of the rows `row_idxs` of `batch` into micro-batches of at most `max_tokens`
    /// tokens, see [`MicroBatch::share`] and [`DecoderPass::passes`].
    ///
    /// # Errors
    /// When a sequence alone is longer than a micro-batch may be, or a rank is lost.
    pub(crate) fn passes(
        &self,
        batch: &Batch,
        row_idxs: &[usize],
        max_tokens: usize,
    ) -> Result<Vec<Option<MicroBatch>>, LearnerError> {
        let own = MicroBatch::share(batch, row_idxs, &self.decoder, max_tokens, &self.ranks)?;
        Ok(self.model().passes(&self.ranks, own)?)
    }

    /// Makes one optimizer update from the `passes` of this rank, see [`Self::passes`], and counts its
    /// outcome. Returns the summands of each micro-batch, once the device has computed all of them.
    ///
    /// # Errors
    /// [`LearnerError`]; weights are those after the last applied update.
    pub(crate) fn update<H: LossHead>(
        &mut self,
        passes: &[Option<MicroBatch>],
        head: &mut H,
        learning_rate: f64,
        stats: &mut UpdateStats,
    ) -> Result<Vec<H::Sums>, LearnerError> {
        let mut losses = Vec::with_capacity(passes.len());
        for micro_batch in passes {
            let Some(micro_batch) = micro_batch else {
                self.model().join_forward_backward(self.options.activation_checkpointing)?;
                continue;
            };
            losses.push(self.forward_backward(micro_batch, |hidden_cd, context| {
                head.forward_backward(hidden_cd, micro_batch, context)
            })?);
        }
        self.train_state().sum_gradients()?;
        // Applying reads the norm of the gradients, which waits for the device.
        stats.count(self.apply(learning_rate)?);
        losses.into_iter().map(DeferredLoss::finish).collect()
    }

    /// Clips the reduced gradients, applies them at `learning_rate`, and clears them. A non-finite gradient
    /// is discarded and changes no parameter, on all ranks together.
    ///
    /// # Errors
    /// If libtorch refuses an operation, or a rank is lost.
    pub fn apply(&mut self, learning_rate: f64) -> Result<StepOutcome, LearnerError> {
        self.train_state().apply(learning_rate)
    }

    /// Adds the gradient of one micro-batch. `head` gets the predicting hidden states `[c, d]` after the
    /// final norm, and returns the gradient of the loss with respect to them, with a result of its own.
    pub(crate) fn forward_backward<T>(
        &self,
        micro_batch: &MicroBatch,
        head: impl FnOnce(&Tensor, &HeadContext<'_>) -> Result<(Tensor, T), LearnerError>,
    ) -> Result<T, LearnerError> {
        let (model, outer_gradients) = (self.model(), &self.outer_gradients);
        let mut context = model.decoder.context(&micro_batch.input, Adapter::On);
        context.dropout_seed = self.dropout_seed;
        context.router = self.router_slopes.as_deref().map(|slopes| {
            RouterObserver::balancing(context.token_weights(&micro_batch.input.tokens), slopes)
        });
        let routes = self.route_comparison();
        context.routes = routes.as_ref().map(|routes| routes.watch(micro_batch));
        let options = SaveOptions {
            inputs_only: self.options.activation_checkpointing,
            embedding_gradient: outer_gradients.wants_embedding(),
            offload_to: self.offload_inputs_to.as_deref(),
        };
        let tape = schedule::forward(model, &micro_batch.input, &mut context, options)?;
        model.begin_outer_gradient();
        let (grad_normed_td, made) = {
            let normed_td = tape.normed_td.detach();
            let predicting_cd = normed_td.index_select(0, &micro_batch.predictors_c);
            let (grad_cd, made) = head(&predicting_cd, &self.head_context())?;
            (normed_td.zeros_like().index_add_(0, &micro_batch.predictors_c, &grad_cd), made)
        };
        let grad_embedded = schedule::backward_through(model, tape, &context, &grad_normed_td)?;
        routes.iter().for_each(|routes| routes.add(context.routes.take()));
        if let Some(grad_td) = grad_embedded {
            let grad_td = micro_batch.input.without_images(grad_td);
            outer_gradients.scatter_embedding(model.decoder, &micro_batch.input.tokens, &grad_td);
        }
        // Weights are freed before the reduce-scatter, which needs memory.
        model.end_pass()?;
        model.end_outer_gradient()?;
        Ok(made)
    }

    fn head_context(&self) -> HeadContext<'_> {
        HeadContext {
            model: self.model(),
            outer_gradients: &self.outer_gradients,
            ranks: &self.ranks,
            scale: self.loss_scale.factor(),
        }
    }

    /// Returns the counters of the routers' choices; `None` while nothing counts them.
    pub(crate) fn route_comparison(&self) -> Option<Rc<RouteComparison>> {
        self.route_comparison.borrow().clone()
    }

    /// Starts to count the routers' choices in passes over a batch, until [`Self::take_route_counts`].
    /// `of_rows` holds the routes that the rollout logged for each row. Nothing is counted without experts.
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
}

#[cfg(test)]
mod tests;
