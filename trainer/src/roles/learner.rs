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

use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use rlt_core::batch::Batch;
use rlt_core::metrics::Metrics;
use tch::Tensor;

use crate::model::{Adapter, RouterObserver};
use crate::parallel::RankError;
use crate::roles::actor::layer_schedule::{self, DecoderPass};
use crate::roles::actor::routes::RouteComparison;
use crate::roles::actor::{ActorError, EmbeddingAndHeadGradients, MicroBatch};
use crate::roles::optim::{LossScale, StepOutcome};
use crate::roles::train_state::TrainState;

/// A role whose decoder is trained.
pub(crate) trait Learner {
    /// Settings of the role's forward and backward passes.
    fn forward_backward(&self) -> ForwardBackward<'_>;
    /// The parameters that the role's updates change.
    fn train_state(&mut self) -> TrainState<'_>;
}

/// Split of a batch into updates and micro-batches, the same for actor and critic except for the token
/// budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MiniBatches {
    /// Number of rollout groups in one update.
    pub groups_per_update: usize,
    /// Number of passes over the batch.
    pub num_epochs: usize,
    /// Token budget of one forward and backward pass on one rank.
    pub max_tokens: usize,
}

impl MiniBatches {
    /// Whether `batch` is used once, in one update: then the actor itself is its old policy.
    pub fn is_one_update(&self, batch: &Batch) -> bool {
        self.num_epochs == 1 && group_ranges(batch, self.groups_per_update).len() == 1
    }

    /// Calls `update` for each update of each epoch with the indices of both, and the update's rows of the
    /// batch.
    pub(crate) fn for_each_update<E>(
        &self,
        batch: &Batch,
        mut update: impl FnMut((usize, usize), &[usize]) -> Result<(), E>,
    ) -> Result<(), E> {
        let updates = group_ranges(batch, self.groups_per_update);
        for epoch in 0..self.num_epochs {
            for (update_idx, row_idxs) in updates.iter().enumerate() {
                update((epoch, update_idx), &row_idxs.clone().collect::<Vec<_>>())?;
            }
        }
        Ok(())
    }
}

/// Returns the rows of each update: those of `groups_per_update` consecutive rollout groups of the step.
/// Groups of which no sample is left, because it was masked or not drawn, count too, so that the number of
/// updates does not depend on chance.
fn group_ranges(batch: &Batch, groups_per_update: usize) -> Vec<Range<usize>> {
    let update_of = |group: &usize| group / groups_per_update.max(1);
    let updates = batch.groups.chunk_by(|left, right| update_of(left) == update_of(right));
    let mut end = 0;
    let range = |rows: &[usize]| {
        let start = end;
        end += rows.len();
        start..end
    };
    updates.map(range).collect()
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
        head: impl FnOnce(&Tensor) -> Result<(Tensor, T), ActorError>,
    ) -> Result<T, ActorError> {
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
pub(crate) fn optimizer_step<L: Learner, T, E: From<ActorError> + From<RankError>>(
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
    counts.count(train_state.apply(learning_rate).map_err(ActorError::from)?);
    Ok(made)
}

/// Outcomes of the updates of one step; the same on all ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpdateStats {
    /// Gradient norms before clipping, one for each applied update.
    pub grad_norms: Vec<f64>,
    /// Number of updates that were skipped because a gradient was not finite.
    pub num_skipped: usize,
    /// Number of updates that were skipped because a scaled gradient overflowed, see
    /// [`crate::roles::optim::LossScale`].
    pub num_overflows: usize,
    /// Factor of the loss scale after the updates; `None` if it is fixed.
    pub loss_scale: Option<f64>,
}

impl UpdateStats {
    fn count(&mut self, outcome: StepOutcome) {
        match outcome {
            StepOutcome::Applied { grad_norm } => self.grad_norms.push(grad_norm),
            StepOutcome::SkippedNonFinite => self.num_skipped += 1,
            StepOutcome::SkippedOverflow => self.num_overflows += 1,
        }
    }

    /// Records the loss scale after the last update.
    pub(crate) fn set_loss_scale(&mut self, scale: LossScale) {
        self.loss_scale = scale.is_dynamic().then(|| scale.factor());
    }

    /// Number of updates, applied or not; at least 1, because it is used as a divisor.
    pub(crate) fn num_updates(&self) -> f64 {
        (self.grad_norms.len() + self.num_skipped + self.num_overflows).max(1) as f64
    }

    /// Metrics of the updates: `{role}/grad_norm`; in half precision also `{role}/loss_scale` and
    /// `{role}/num_overflows`.
    pub(crate) fn metrics(&self, role: &str) -> Metrics {
        let mut metrics = Metrics::new();
        if !self.grad_norms.is_empty() {
            let mean = self.grad_norms.iter().sum::<f64>() / self.grad_norms.len() as f64;
            metrics.insert(format!("{role}/grad_norm"), mean);
        }
        if let Some(factor) = self.loss_scale {
            metrics.insert(format!("{role}/loss_scale"), factor);
            metrics.insert(format!("{role}/num_overflows"), self.num_overflows as f64);
        }
        metrics
    }
}

#[cfg(test)]
mod tests {
    use rlt_core::batch::Demonstration;

    use super::*;

    #[test]
    fn samples_that_were_drawn_or_masked_are_split_by_their_prompts() {
        let row = Demonstration { tokens: vec![1, 2], loss_mask: vec![false, true], images: Vec::new() };
        let mut batch = Batch::from_demonstrations(&vec![row; 8]);
        batch.groups = vec![0, 0, 1, 1, 2, 2, 3, 3];
        let mini_batches = MiniBatches { groups_per_update: 2, num_epochs: 1, max_tokens: 8 };
        let updates = |batch: &Batch| {
            let mut updates = Vec::new();
            let ended: Result<(), ()> = mini_batches.for_each_update(batch, |_, row_idxs| {
                updates.push(row_idxs.to_vec());
                Ok(())
            });
            ended.unwrap();
            updates
        };
        assert_eq!(updates(&batch), [[0, 1, 2, 3], [4, 5, 6, 7]]);
        let drawn = batch.select(&[0, 0, 1, 5, 5, 5, 6, 7]);
        assert_eq!(drawn.groups, [0, 0, 0, 2, 2, 2, 3, 3]);
        assert_eq!(updates(&drawn), [vec![0, 1, 2], vec![3, 4, 5, 6, 7]]);
        let only_last = batch.select(&[6, 7]);
        assert!(mini_batches.is_one_update(&only_last) && !mini_batches.is_one_update(&drawn));
    }
}
