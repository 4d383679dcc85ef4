//! The trained model as a classifier: values of labels instead of log-probs, and one update from their
//! derivatives. Reward models are trained with it.
//!
//! The head is linear, so its gradient follows from the derivatives alone. A loss over several completions
//! can therefore be evaluated once all of them are computed, in any micro-batches.
//!
//! Legend of shapes: k labels, c positions of a micro-batch that can be read, d hidden size.

use rlt_core::batch::Batch;
use rlt_core::metrics::Metrics;
use rlt_decoder::Adapter;
use tch::{Kind, Tensor, no_grad};

use super::Actor;
use super::role::ActorRole;
use super::update::UpdateError;
use crate::observe::tracking::console::Phase;
use crate::roles::error::StepError;
use crate::roles::learner::scoring::TokenValues;
use crate::roles::learner::{
    DeferredLoss, HeadContext, LearnerError, LossHead, MicroBatch, UpdateStats, scaled,
};

impl Actor {
    /// Computes the values of `K` labels at every position of `batch`, see [`Batch::to_read`].
    ///
    /// # Errors
    /// If a sequence alone is longer than `max_tokens`, or a rank is lost.
    pub fn labels<const K: usize>(
        &self,
        batch: &Batch,
        max_tokens: usize,
    ) -> Result<[Vec<f64>; K], LearnerError> {
        self.scoring().batch(batch, max_tokens, |hidden_cd, _| {
            TokenValues::of_rows(&self.learner.decoder().labels(hidden_cd))
        })
    }

    /// Adds the gradient of a loss, whose `derivatives` with respect to each label's value are given at the
    /// positions of the micro-batch's rows.
    ///
    /// # Errors
    /// When a rank is lost.
    pub fn accumulate_labels(
        &self,
        micro_batch: &MicroBatch,
        derivatives: &[Vec<f64>],
    ) -> Result<(), LearnerError> {
        self.learner.forward_backward(micro_batch, |hidden_cd, context| {
            Ok((hidden_gradient(hidden_cd, micro_batch, derivatives, context), ()))
        })
    }

    /// Makes one update from the `derivatives` of a loss on the full batch, see [`Self::accumulate_labels`],
    /// in micro-batches of at most `max_tokens` tokens. Returns its outcome, and the number of micro-batches
    /// of all ranks.
    ///
    /// # Errors
    /// If a sequence alone is longer than `max_tokens`, or a rank is lost; the weights are then unchanged.
    pub fn update_by_label_gradient(
        &mut self,
        batch: &Batch,
        derivatives: &[Vec<f64>],
        max_tokens: usize,
        learning_rate: f64,
    ) -> Result<(UpdateStats, f64), LearnerError> {
        let rows: Vec<usize> = (0..batch.rows.num_rows()).collect();
        let passes = self.learner.passes(batch, &rows, max_tokens)?;
        let is_counted = self.learner.ranks().is_sp_leader();
        let mut num_micro_batches =
            vec![if is_counted { passes.iter().flatten().count() as f64 } else { 0.0 }];
        self.learner.set_dropout_seed(None);
        let (mut head, mut counts) = (LabelHead { batch, derivatives }, UpdateStats::default());
        self.learner.update(&passes, &mut head, learning_rate, &mut counts)?;
        counts.set_loss_scale(self.learner.loss_scale());
        self.learner.ranks().all_reduce(&mut [&mut num_micro_batches])?;
        Ok((counts, num_micro_batches[0]))
    }
}

/// Loss head of a classifier, given the derivatives of the loss.
struct LabelHead<'a> {
    batch: &'a Batch,
    /// Derivatives of the loss with respect to each label's value, at the positions of the batch.
    derivatives: &'a [Vec<f64>],
}

impl LossHead for LabelHead<'_> {
    type Sums = ();

    fn forward_backward(
        &mut self,
        hidden_cd: &Tensor,
        micro_batch: &MicroBatch,
        context: &HeadContext<'_>,
    ) -> Result<(Tensor, DeferredLoss<()>), LearnerError> {
        let of_label = |all: &Vec<f64>| self.batch.gather(&micro_batch.row_idxs, all);
        let derivatives: Vec<Vec<f64>> = self.derivatives.iter().map(of_label).collect();
        let grad_cd = hidden_gradient(hidden_cd, micro_batch, &derivatives, context);
        Ok((grad_cd, DeferredLoss::evaluated(())))
    }
}

/// Adds the gradient of a classifier's head, and returns that of its hidden states `[c, d]`, from the
/// `derivatives` of a loss with respect to each label's value at the positions of the micro-batch's rows.
fn hidden_gradient(
    hidden_cd: &Tensor,
    micro_batch: &MicroBatch,
    derivatives: &[Vec<f64>],
    context: &HeadContext<'_>,
) -> Tensor {
    let of_label = |all: &Vec<f64>| scaled(&micro_batch.local_values(all), context.scale);
    let all: Vec<f32> = derivatives.iter().flat_map(of_label).collect();
    let decoder = context.model.decoder;
    // A rank of a sequence-parallel group may have no position at all, so no size is inferred.
    let size = [derivatives.len() as i64, hidden_cd.size()[0]];
    let derivative_kc = rlt_torch::upload_f32(&all, decoder.device()).view(size);
    no_grad(|| {
        context.outer_gradients.add_labels(&derivative_kc, hidden_cd);
        let weight_kd = decoder.compute_head_weight(Adapter::On).to_kind(Kind::Float);
        derivative_kc.tr().matmul(&weight_kd).to_kind(hidden_cd.kind())
    })
}

impl ActorRole {
    /// Returns the token that pads a classifier's batches. No value is read after it.
    pub fn pad(&self) -> Option<u32> {
        self.decoder().config.pad_token_id
    }

    /// Computes the values of `K` labels at the positions of `batch` that are read, see [`Batch::to_read`].
    ///
    /// # Errors
    /// [`StepError::Failed`].
    pub fn labels<const K: usize>(&self, batch: &Batch) -> Result<[Vec<f64>; K], StepError> {
        self.context.end_sampling()?;
        let numbers = || self.policy.labels::<K>(batch, self.max_logprob_tokens);
        let numbers = self.context.measure("old_log_prob", numbers)?;
        Ok(numbers.map(|numbers| batch.read(&numbers)))
    }

    /// Makes one update with the gradient of a loss. `derivatives` has a vector for each label, with the
    /// loss's derivative with respect to each value that is read.
    ///
    /// # Errors
    /// [`StepError::Failed`]; the weights are then unchanged.
    pub fn update_by_label_gradient(
        &mut self,
        batch: &Batch,
        derivatives: &[Vec<f64>],
    ) -> Result<(), StepError> {
        self.context.end_sampling()?;
        self.context.watch().begin_phase(Phase::Update, 0);
        let derivatives: Vec<_> = derivatives.iter().map(|read| batch.at_read_positions(read)).collect();
        let learning_rate = self.schedule.at(self.context.position().num_done);
        let (actor, max_tokens) = (&mut self.policy, self.mini_batches.max_tokens);
        let update = || actor.update_by_label_gradient(batch, &derivatives, max_tokens, learning_rate);
        let updated = self.context.measure("update_actor", update);
        let (counts, num_micro_batches) = updated.map_err(UpdateError::from)?;
        self.context.record_update("actor", batch, counts.num_skipped);
        let mut metrics = counts.metrics("actor");
        metrics.extend(Metrics::from([
            ("actor/lr".to_owned(), learning_rate),
            ("training/num_micro_batches".to_owned(), num_micro_batches),
        ]));
        self.context.record(metrics);
        Ok(())
    }
}
