//! Training a decoder on a batch: the loop that actor and critic share.
//!
//! ```text
//! epoch -> update of some rollout groups -> micro-batch: forward -> head and loss -> backward
//!                                        -> sum the gradients of all ranks -> clip -> optimizer step
//! ```
//! The two roles differ by their head: its loss on the hidden states that predict completion tokens, and the
//! gradient of that loss. Losses and their inputs are defined elsewhere.
//!
//! Legend of shapes: t tokens of a micro-batch, c completion tokens, d hidden size.

mod error;
mod gradients;
pub(crate) mod layer_schedule;
mod micro_batch;
mod mini_batches;
mod placed_images;
pub(crate) mod probe;
pub(crate) mod routes;
pub(crate) mod scoring;
mod update_stats;
mod vocabulary;

use std::path::Path;
use std::rc::Rc;

use tch::Tensor;

pub use self::error::LearnerError;
pub use self::gradients::EmbeddingAndHeadGradients;
use self::layer_schedule::DecoderPass;
pub use self::micro_batch::MicroBatch;
pub(crate) use self::micro_batch::PredictedTokens;
pub use self::mini_batches::MiniBatches;
pub use self::probe::ProbeError;
use self::routes::RouteComparison;
pub use self::update_stats::UpdateStats;
use crate::model::{Adapter, RouterObserver};
use crate::parallel::RankError;
use crate::roles::train_state::TrainState;

/// A role whose decoder is trained.
pub(crate) trait Learner {
    /// Settings of the role's forward and backward passes.
    fn forward_backward(&self) -> ForwardBackward<'_>;
    /// The parameters that the role's updates change.
    fn train_state(&mut self) -> TrainState<'_>;
}

/// Settings of a decoder's forward and backward passes.
pub(crate) struct ForwardBackward<'a> {
    pub model: DecoderPass<'a>,
    pub outer_gradients: &'a EmbeddingAndHeadGradients,
    /// Whether only layer inputs are kept for the backward pass.
    pub activation_checkpointing: bool,
    /// Folder of the offload storage for layer inputs; `None` if they stay on the device.
    pub offload_inputs_to: Option<&'a Path>,
    /// Seed of the adapters' dropout; `None` without dropout.
    pub dropout_seed: Option<u64>,
    /// Derivatives of the routers' auxiliary loss with respect to the probability of each expert; `None`
    /// without one.
    pub router_slopes: Option<&'a [f32]>,
    /// Counter of the routers' choices; `None` if no metric needs it.
    pub routes: Option<Rc<RouteComparison>>,
}

impl ForwardBackward<'_> {
    /// Adds the gradient of one micro-batch. `head` gets the predicting hidden states `[c, d]` after the
    /// final norm, and returns the gradient of the loss with respect to them, with a result of its own.
    pub(crate) fn accumulate<T>(
        &self,
        micro_batch: &MicroBatch,
        head: impl FnOnce(&Tensor) -> Result<(Tensor, T), LearnerError>,
    ) -> Result<T, LearnerError> {
        let Self { model, outer_gradients, .. } = *self;
        let mut context = model.decoder.context(&micro_batch.input, Adapter::On);
        context.dropout_seed = self.dropout_seed;
        context.router = self.router_slopes.map(|slopes| {
            RouterObserver::balancing(context.token_weights(&micro_batch.input.tokens), slopes)
        });
        context.routes = self.routes.as_ref().map(|routes| routes.watch(micro_batch));
        let options = layer_schedule::SaveOptions {
            inputs_only: self.activation_checkpointing,
            embedding_gradient: outer_gradients.wants_embedding(),
            offload_to: self.offload_inputs_to,
        };
        let tape = layer_schedule::forward(model, &micro_batch.input, &mut context, options)?;
        model.begin_outer_gradient();
        let (grad_normed_td, made) = {
            let normed_td = tape.normed_td.detach();
            let predicting_cd = normed_td.index_select(0, &micro_batch.predictors_c);
            let (grad_cd, made) = head(&predicting_cd)?;
            (normed_td.zeros_like().index_add_(0, &micro_batch.predictors_c, &grad_cd), made)
        };
        let grad_embedded = layer_schedule::backward_through(model, tape, &context, &grad_normed_td)?;
        self.routes.iter().for_each(|routes| routes.add(context.routes.take()));
        if let Some(grad_td) = grad_embedded {
            let grad_td = micro_batch.input.without_images(grad_td);
            let cuts = model.tensor_parallel().map(|tp| tp.cuts);
            outer_gradients.scatter_embedding(model.decoder, &micro_batch.input.tokens, &grad_td, cuts);
        }
        // Weights are freed before the reduce-scatter, which needs memory.
        model.end_pass()?;
        model.end_outer_gradient()?;
        Ok(made)
    }
}

/// Makes one optimizer update from the `passes` of this rank, see [`DecoderPass::passes`]. `accumulate` adds
/// the gradient of a micro-batch; its results are returned once the device has computed all of them.
pub(crate) fn optimizer_step<L: Learner, T, E: From<LearnerError> + From<RankError>>(
    learner: &mut L,
    passes: &[Option<MicroBatch>],
    learning_rate: f64,
    counts: &mut UpdateStats,
    mut accumulate: impl FnMut(&mut L, &MicroBatch) -> Result<T, E>,
) -> Result<Vec<T>, E> {
    let mut made = Vec::with_capacity(passes.len());
    for micro_batch in passes {
        match micro_batch {
            Some(micro_batch) => made.push(accumulate(learner, micro_batch)?),
            None => {
                let pass = learner.forward_backward();
                pass.model.join_forward_backward(pass.activation_checkpointing)?;
            }
        }
    }
    let mut train_state = learner.train_state();
    train_state.sum_gradients()?;
    // Applying reads the norm of the gradients, which waits for the device.
    counts.count(train_state.apply(learning_rate).map_err(LearnerError::from)?);
    Ok(made)
}
