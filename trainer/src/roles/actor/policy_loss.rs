//! The policy's loss of one optimizer update: what its objective needs of all rows of the update, and the
//! loss of each micro-batch.
//!
//! Legend of shapes: c completion tokens of a micro-batch, d hidden size.

use std::vec::IntoIter;

use rlt_core::batch::Batch;
use rlt_core::loss::{CovarianceInputs, Denominators, LossError, LossScope, Objective};
use rlt_decoder::Adapter;
use tch::Tensor;

use super::loss_inputs::PolicyLossInputs;
use super::{Actor, PolicyHead, PolicySums};
use crate::roles::learner::{DeferredLoss, HeadContext, LearnerError, LossHead, MicroBatch};

/// The loss of one optimizer update on some rows of a batch.
pub(super) struct UpdateLoss<'a> {
    batch: &'a Batch,
    objective: &'a Objective,
    /// Log-probs under the old policy; `None` while the actor itself is the old policy.
    old_logprobs: Option<&'a [f64]>,
    head: PolicyHead,
    denominators: Denominators,
    /// Tokens of the batch that the loss treats specially; `None` for most losses.
    selected: Option<Vec<bool>>,
    /// Weights of positive examples, one per token of the batch; `None` without that term.
    positive_weights: Option<Vec<f64>>,
    /// Log-probs of the micro-batches that are still to come, for losses that need them before the gradient.
    scored: Option<IntoIter<Vec<f64>>>,
}

impl<'a> UpdateLoss<'a> {
    /// Creates the loss of the rows `row_idxs` of `batch`, which can be evaluated after [`Self::prepare`].
    pub(super) fn new(
        batch: &'a Batch,
        row_idxs: &[usize],
        objective: &'a Objective,
        old_logprobs: Option<&'a [f64]>,
        head: PolicyHead,
    ) -> Self {
        Self {
            batch,
            objective,
            old_logprobs,
            head,
            denominators: Denominators::of(&batch.micro_rows(row_idxs)),
            selected: None,
            positive_weights: None,
            scored: None,
        }
    }

    /// Computes the values that the objective needs from all rows of the update before the first gradient.
    /// `passes` are this rank's micro-batches of these rows; `seed` determines random choices among tokens.
    /// Collective.
    ///
    /// # Errors
    /// When the loss does not fit the rows, or a rank is lost.
    pub(super) fn prepare(
        &mut self,
        actor: &Actor,
        row_idxs: &[usize],
        passes: &[Option<MicroBatch>],
        seed: u64,
    ) -> Result<(), LearnerError> {
        self.selected = self.select_tokens(actor, row_idxs, passes, seed)?;
        self.positive_weights = self.weigh_positive_examples(row_idxs)?;
        self.scored = self.score_sequences(actor, passes)?.map(Vec::into_iter);
        Ok(())
    }

    /// Selects the tokens that a loss of the full batch treats specially, one flag per token of the batch;
    /// `None` for other losses.
    fn select_tokens(
        &self,
        actor: &Actor,
        row_idxs: &[usize],
        passes: &[Option<MicroBatch>],
        seed: u64,
    ) -> Result<Option<Vec<bool>>, LearnerError> {
        let Self { batch, objective, old_logprobs, .. } = *self;
        if objective.policy.scope() != LossScope::Batch {
            return Ok(None);
        }
        let mut logprobs = vec![0.0; batch.rows.num_tokens()];
        let mut mask = vec![false; batch.rows.num_tokens()];
        let scores = actor.score_passes(passes, Adapter::On)?;
        for (micro_batch, scores) in passes.iter().flatten().zip(&scores) {
            if actor.learner.ranks().is_sp_leader() {
                batch.scatter(&micro_batch.row_idxs, &scores.logprobs, &mut logprobs);
            }
        }
        actor.learner.ranks().all_reduce(&mut [&mut logprobs])?;
        batch.scatter(row_idxs, batch.micro_rows(row_idxs).mask(), &mut mask);
        let inputs = CovarianceInputs {
            rows: &batch.rows.with_mask(mask).map_err(LossError::from)?,
            advantages: &batch.advantages,
            logprobs: &logprobs,
            old_logprobs,
            seed,
        };
        Ok(Some(objective.policy.select_tokens(&inputs)?))
    }

    /// Returns the weights of positive examples, one per token of the batch; `None` if the objective has no
    /// such term. They are divided by the number of positive tokens of the full update.
    fn weigh_positive_examples(&self, row_idxs: &[usize]) -> Result<Option<Vec<f64>>, LossError> {
        let batch = self.batch;
        let rewards: Vec<f64> = row_idxs.iter().map(|row_idx| batch.rewards[*row_idx]).collect();
        let weights = self.objective.positive_weights(&batch.micro_rows(row_idxs), &rewards)?;
        Ok(weights.map(|weights| {
            let mut all = vec![0.0; batch.rows.num_tokens()];
            batch.scatter(row_idxs, &weights, &mut all);
            all
        }))
    }

    /// Computes the actor's log-probs of each micro-batch of this rank, for losses that need them before the
    /// gradient: off-policy, a token's loss depends on the ratio of its whole sequence.
    fn score_sequences(
        &self,
        actor: &Actor,
        passes: &[Option<MicroBatch>],
    ) -> Result<Option<Vec<Vec<f64>>>, LearnerError> {
        if self.objective.policy.scope() != LossScope::Sequence || self.old_logprobs.is_none() {
            return Ok(None);
        }
        let scores = actor.score_passes(passes, Adapter::On)?;
        Ok(Some(scores.into_iter().map(|scores| scores.logprobs).collect()))
    }

    /// Gathers the per-token values of the next micro-batch.
    fn gather(&mut self, micro_batch: &MicroBatch) -> PolicyLossInputs {
        let (batch, rows) = (self.batch, &micro_batch.row_idxs);
        let part = |values: Option<&[f64]>| values.map(|values| batch.gather(rows, values));
        PolicyLossInputs {
            advantages: batch.gather(rows, &batch.advantages),
            old_logprobs: part(self.old_logprobs),
            ref_logprobs: part(batch.ref_logprobs.as_deref()),
            importance_weights: part(batch.importance_weights.as_deref()),
            actor_logprobs: self.scored.as_mut().and_then(Iterator::next),
            selected: self.selected.as_ref().map(|selected| batch.gather(rows, selected)),
            positive_weights: part(self.positive_weights.as_deref()),
        }
    }
}

impl LossHead for UpdateLoss<'_> {
    type Sums = PolicySums;

    /// Evaluates the loss of a micro-batch by its predicting hidden states `[c, d]`.
    fn forward_backward(
        &mut self,
        hidden_cd: &Tensor,
        micro_batch: &MicroBatch,
        context: &HeadContext<'_>,
    ) -> Result<(Tensor, DeferredLoss<PolicySums>), LearnerError> {
        let inputs = self.gather(micro_batch);
        let loss = self.objective.prepare(inputs.as_loss_inputs(&micro_batch.rows), &self.denominators)?;
        if hidden_cd.device().is_cuda() {
            let evaluate = inputs.clone().evaluates(&loss, micro_batch);
            return self.head.evaluate_in_stream(hidden_cd, micro_batch, evaluate, context);
        }
        let (grad_cd, sums) = self.head.evaluate(hidden_cd, micro_batch, &loss, context)?;
        Ok((grad_cd, DeferredLoss::evaluated(sums)))
    }
}
