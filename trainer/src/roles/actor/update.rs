//! The actor's update: trains the actor on a batch with advantages.
//!
//! The loop is in [`crate::roles::learner`]; this module has the actor's loss with its inputs, and the report
//! of its updates. Losses are divided by counts of the whole update, so the split into micro-batches only
//! limits memory. Advantages are computed elsewhere.

use std::vec::IntoIter;

use rlt_api::ExitCode;
use rlt_core::batch::Batch;
use rlt_core::loss::{CovarianceInputs, Denominators, LossError, LossMetrics, LossScope, Objective};
use rlt_core::metrics::Metrics;
use tch::Tensor;

use super::loss_inputs::PolicyLossInputs;
use super::{Actor, PolicyHead, PolicySums};
use crate::model::{Adapter, RouterLoad};
use crate::parallel::{RankError, Ranks};
use crate::roles::StepFault;
use crate::roles::learner::{
    DeferredLoss, HeadContext, LearnerError, LossHead, MicroBatch, MiniBatches, UpdateStats,
};

/// An error of updating the actor.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct UpdateError(#[from] LearnerError);

impl StepFault for UpdateError {
    fn act(&self) -> &'static str {
        "failed to update the actor"
    }

    fn exit_code(&self) -> ExitCode {
        self.0.exit_code()
    }
}

/// Settings of the updates on one batch.
#[derive(Clone, Copy, Debug)]
pub struct UpdatePlan {
    /// Objective that the updates minimise.
    pub objective: Objective,
    /// Number of rollout groups in one update.
    pub groups_per_update: usize,
    /// Number of passes over the batch.
    pub num_epochs: usize,
    /// Token budget of one forward and backward pass on one rank.
    pub max_tokens: usize,
    /// Learning rate of all updates of the step.
    pub learning_rate: f64,
    /// Seed of random choices in an update: dropout, and the tokens of Clip-Cov.
    pub seed: u64,
}

impl UpdatePlan {
    /// Returns the split of the batch into updates and micro-batches.
    pub fn mini_batches(&self) -> MiniBatches {
        let Self { groups_per_update, num_epochs, max_tokens, .. } = *self;
        MiniBatches { groups_per_update, num_epochs, max_tokens }
    }
}

/// Report of the updates of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UpdateReport {
    /// Sums of the loss metrics over all updates.
    pub loss: LossMetrics,
    /// Outcomes of the updates.
    pub updates: UpdateStats,
    /// Log-prob of each token of the batch under the actor, from its last update, before that update's
    /// optimizer step. With one update these are the log-probs under the weights that sampled.
    pub actor_logprobs: Vec<f64>,
    /// Number of forward and backward passes.
    pub num_micro_batches: usize,
    /// Load of the routers in each update; empty unless they have an auxiliary loss.
    pub router_loads: Vec<RouterLoad>,
}

impl UpdateReport {
    /// All-reduces the sums over ranks; norms and skipped updates are already the same on all ranks.
    fn add_up(&mut self, ranks: &Ranks) -> Result<(), RankError> {
        let loss = self.loss;
        let counts = [loss.num_clipped, loss.num_clipped_lower, loss.num_tokens, self.num_micro_batches];
        let mut sums = vec![loss.pg_loss, loss.kl_loss, loss.entropy, loss.positive_loss, loss.ppo_kl_sum];
        sums.extend(counts.map(|count| count as f64));
        ranks.all_reduce(&mut [&mut sums, &mut self.actor_logprobs])?;
        self.loss = LossMetrics {
            pg_loss: sums[0],
            kl_loss: sums[1],
            entropy: sums[2],
            positive_loss: sums[3],
            ppo_kl_sum: sums[4],
            num_clipped: sums[5] as usize,
            num_clipped_lower: sums[6] as usize,
            num_tokens: sums[7] as usize,
        };
        self.num_micro_batches = sums[8] as usize;
        Ok(())
    }

    /// Returns the metrics under verl's names: `actor/*` and `training/num_micro_batches`; in half precision
    /// also `actor/loss_scale` and `actor/num_overflows`.
    pub fn metrics(&self, plan: &UpdatePlan) -> Metrics {
        let num_updates = self.updates.num_updates();
        let mut metrics: Metrics = self
            .loss
            .values()
            .into_iter()
            .map(|(name, value)| {
                // Losses are sums of means, one for each update; fractions already are means over tokens.
                let is_sum = ["actor/pg_loss", "actor/kl_loss", "actor/entropy", "actor/positive_loss"];
                let is_sum = is_sum.contains(&name);
                (name.to_owned(), if is_sum { value / num_updates } else { value })
            })
            .collect();
        if let Some(kl) = plan.objective.kl {
            metrics.insert("actor/kl_coef".into(), kl.coefficient);
        } else {
            metrics.remove("actor/kl_loss");
        }
        if plan.objective.positive.is_none() {
            metrics.remove("actor/positive_loss");
        }
        if !self.router_loads.is_empty() {
            let mean = |of: fn(&RouterLoad) -> f64| {
                self.router_loads.iter().map(of).sum::<f64>() / self.router_loads.len() as f64
            };
            metrics.insert("actor/aux_loss".into(), mean(RouterLoad::loss));
            metrics.insert("actor/expert_imbalance".into(), mean(RouterLoad::imbalance));
        }
        metrics.extend(self.updates.metrics("actor"));
        metrics.insert("actor/lr".into(), plan.learning_rate);
        metrics.insert("training/num_skipped_updates".into(), self.updates.num_skipped as f64);
        metrics.insert("training/num_micro_batches".into(), self.num_micro_batches as f64);
        metrics
    }
}

/// Trains the actor on `batch` as `plan` says.
///
/// # Errors
/// [`UpdateError`]; weights are those after the last applied update.
pub fn update(actor: &mut Actor, batch: &Batch, plan: &UpdatePlan) -> Result<UpdateReport, UpdateError> {
    let mut report =
        UpdateReport { actor_logprobs: vec![0.0; batch.rows.num_tokens()], ..UpdateReport::default() };
    let is_on_policy = plan.mini_batches().is_one_update(batch);
    plan.mini_batches().for_each_update(batch, |(epoch, update_idx), row_idxs| {
        let one = OneUpdate {
            batch,
            plan,
            old_logprobs: batch.old_logprobs.as_deref().filter(|_| !is_on_policy),
            seed: plan.seed.wrapping_add(((epoch as u64) << 32) | update_idx as u64),
        };
        one.run(actor, row_idxs, &mut report)
    })?;
    report.updates.set_loss_scale(actor.loss_scale());
    report.add_up(actor.ranks()).map_err(LearnerError::from)?;
    Ok(report)
}

/// One optimizer update on some rows of a batch.
struct OneUpdate<'a> {
    batch: &'a Batch,
    plan: &'a UpdatePlan,
    /// Log-probs under the old policy; `None` while the actor itself is the old policy.
    old_logprobs: Option<&'a [f64]>,
    seed: u64,
}

impl OneUpdate<'_> {
    fn run(
        &self,
        actor: &mut Actor,
        row_idxs: &[usize],
        report: &mut UpdateReport,
    ) -> Result<(), LearnerError> {
        let Self { batch, plan, seed, .. } = *self;
        let passes = actor.learner.passes(batch, row_idxs, plan.max_tokens)?;
        let mut loss = UpdateLoss {
            update: self,
            head: actor.head(),
            denominators: Denominators::of(&batch.micro_rows(row_idxs)),
            selected: self.select_tokens(actor, row_idxs, &passes)?,
            positive_weights: self.positive_weights(row_idxs)?,
            scored: self.score_sequences(actor, &passes)?.map(Vec::into_iter),
        };
        report.router_loads.extend(actor.learner.balance_routers(&passes)?);
        actor.set_dropout_seed(Some(seed));
        let sums = actor.learner.update(&passes, &mut loss, plan.learning_rate, &mut report.updates)?;
        for (micro_batch, sums) in passes.iter().flatten().zip(sums) {
            self.report(micro_batch, sums, actor.ranks(), report);
        }
        Ok(())
    }

    fn report(&self, micro_batch: &MicroBatch, sums: PolicySums, ranks: &Ranks, report: &mut UpdateReport) {
        report.loss += sums.loss;
        self.batch.scatter(&micro_batch.row_idxs, &sums.logprobs, &mut report.actor_logprobs);
        report.num_micro_batches += usize::from(ranks.is_sp_leader());
    }

    /// Computes the actor's log-probs of each micro-batch of this rank, for losses that need them before the
    /// gradient: off-policy, the ratio of a sequence must be known before its first token can be evaluated.
    fn score_sequences(
        &self,
        actor: &Actor,
        passes: &[Option<MicroBatch>],
    ) -> Result<Option<Vec<Vec<f64>>>, LearnerError> {
        if self.plan.objective.policy.scope() != LossScope::Sequence || self.old_logprobs.is_none() {
            return Ok(None);
        }
        let scores = actor.score_passes(passes, Adapter::On)?;
        Ok(Some(scores.into_iter().map(|scores| scores.logprobs).collect()))
    }

    /// Returns the weights of positive examples, one per token of the batch; `None` if the objective has no
    /// such term. They are divided by the number of positive tokens of the whole update.
    fn positive_weights(&self, row_idxs: &[usize]) -> Result<Option<Vec<f64>>, LossError> {
        let batch = self.batch;
        let rewards: Vec<f64> = row_idxs.iter().map(|row_idx| batch.rewards[*row_idx]).collect();
        let weights = self.plan.objective.positive_weights(&batch.micro_rows(row_idxs), &rewards)?;
        Ok(weights.map(|weights| {
            let mut all = vec![0.0; batch.rows.num_tokens()];
            batch.scatter(row_idxs, &weights, &mut all);
            all
        }))
    }

    /// Gathers the per-token values of a micro-batch from the batch.
    fn gather(&self, micro_batch: &MicroBatch) -> PolicyLossInputs {
        let (batch, rows) = (self.batch, &micro_batch.row_idxs);
        let part = |values: Option<&[f64]>| values.map(|values| batch.gather(rows, values));
        PolicyLossInputs {
            advantages: batch.gather(rows, &batch.advantages),
            old_logprobs: part(self.old_logprobs),
            ref_logprobs: part(batch.ref_logprobs.as_deref()),
            importance_weights: part(batch.importance_weights.as_deref()),
            ..PolicyLossInputs::default()
        }
    }

    /// Selects the tokens that a loss of the whole batch treats specially, one flag per token of the batch;
    /// `None` for other losses.
    fn select_tokens(
        &self,
        actor: &Actor,
        row_idxs: &[usize],
        passes: &[Option<MicroBatch>],
    ) -> Result<Option<Vec<bool>>, LearnerError> {
        let Self { batch, plan, old_logprobs, seed } = *self;
        if plan.objective.policy.scope() != LossScope::Batch {
            return Ok(None);
        }
        let mut logprobs = vec![0.0; batch.rows.num_tokens()];
        let mut mask = vec![false; batch.rows.num_tokens()];
        let scores = actor.score_passes(passes, Adapter::On)?;
        for (micro_batch, scores) in passes.iter().flatten().zip(&scores) {
            if actor.ranks().is_sp_leader() {
                batch.scatter(&micro_batch.row_idxs, &scores.logprobs, &mut logprobs);
            }
        }
        actor.ranks().all_reduce(&mut [&mut logprobs])?;
        batch.scatter(row_idxs, batch.micro_rows(row_idxs).mask(), &mut mask);
        let inputs = CovarianceInputs {
            rows: &batch.rows.with_mask(mask).map_err(LossError::from)?,
            advantages: &batch.advantages,
            logprobs: &logprobs,
            old_logprobs,
            seed,
        };
        Ok(Some(plan.objective.policy.select_tokens(&inputs)?))
    }
}

/// The loss of one optimizer update.
struct UpdateLoss<'a> {
    update: &'a OneUpdate<'a>,
    head: PolicyHead,
    denominators: Denominators,
    /// Tokens of the batch that the loss treats specially; `None` for most losses.
    selected: Option<Vec<bool>>,
    /// Weights of positive examples, one per token of the batch; `None` without that term.
    positive_weights: Option<Vec<f64>>,
    /// Log-probs of the micro-batches that are still to come, for losses that need them before the gradient.
    scored: Option<IntoIter<Vec<f64>>>,
}

impl LossHead for UpdateLoss<'_> {
    type Sums = PolicySums;

    fn forward_backward(
        &mut self,
        hidden_cd: &Tensor,
        micro_batch: &MicroBatch,
        context: &HeadContext<'_>,
    ) -> Result<(Tensor, DeferredLoss<PolicySums>), LearnerError> {
        let (inputs, objective) = (self.inputs(micro_batch), &self.update.plan.objective);
        let loss = objective.prepare(inputs.as_loss_inputs(&micro_batch.rows), &self.denominators)?;
        if hidden_cd.device().is_cuda() {
            let evaluate = inputs.clone().evaluates(&loss, micro_batch);
            return self.head.evaluate_in_stream(hidden_cd, micro_batch, evaluate, context);
        }
        let (grad_cd, sums) = self.head.evaluate(hidden_cd, micro_batch, &loss, context)?;
        Ok((grad_cd, DeferredLoss::known(sums)))
    }
}

impl UpdateLoss<'_> {
    /// Gathers the per-token values of the next micro-batch.
    fn inputs(&mut self, micro_batch: &MicroBatch) -> PolicyLossInputs {
        let (batch, rows) = (self.update.batch, &micro_batch.row_idxs);
        PolicyLossInputs {
            actor_logprobs: self.scored.as_mut().and_then(Iterator::next),
            selected: self.selected.as_ref().map(|selected| batch.gather(rows, selected)),
            positive_weights: self.positive_weights.as_ref().map(|weights| batch.gather(rows, weights)),
            ..self.update.gather(micro_batch)
        }
    }
}
