//! The actor's update: trains the actor on a batch with advantages.
//!
//! The loop is in [`crate::roles::learner`], and the loss in `policy_loss`; this module has the settings and
//! the report of the updates. Losses are divided by counts of the full update, so the split into
//! micro-batches only limits memory. Advantages are computed elsewhere.

use rlt_api::ExitCode;
use rlt_core::batch::Batch;
use rlt_core::loss::{LossMetrics, Objective};
use rlt_core::metrics::Metrics;
use rlt_decoder::RouterLoad;
use rlt_parallel::{RankError, Ranks};

use super::policy_loss::UpdateLoss;
use super::{Actor, PolicyHead, PolicySums};
use crate::roles::error::StepFault;
use crate::roles::learner::{LearnerError, MicroBatch, MiniBatches, UpdateStats};

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
    /// Adds the sums of a micro-batch of this rank.
    fn add(&mut self, batch: &Batch, micro_batch: &MicroBatch, sums: &PolicySums, ranks: &Ranks) {
        self.loss += sums.loss;
        batch.scatter(&micro_batch.row_idxs, &sums.logprobs, &mut self.actor_logprobs);
        self.num_micro_batches += usize::from(ranks.is_sp_leader());
    }

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
    update_by_head(actor, batch, plan, actor.head())
}

/// Does the same as [`update`] with another `head`, for a loss at another temperature than the rollout's.
/// Losses that score the batch before the gradient use the actor's own head.
pub(super) fn update_by_head(
    actor: &mut Actor,
    batch: &Batch,
    plan: &UpdatePlan,
    head: PolicyHead,
) -> Result<UpdateReport, UpdateError> {
    let mut report =
        UpdateReport { actor_logprobs: vec![0.0; batch.rows.num_tokens()], ..UpdateReport::default() };
    let is_on_policy = plan.mini_batches().is_one_update(batch);
    let old_logprobs = batch.old_logprobs.as_deref().filter(|_| !is_on_policy);
    let update_rows = |(epoch, update_idx): (usize, usize), row_idxs: &[usize]| -> Result<(), LearnerError> {
        let seed = plan.seed.wrapping_add(((epoch as u64) << 32) | update_idx as u64);
        let passes = actor.learner.passes(batch, row_idxs, plan.max_tokens)?;
        let mut loss = UpdateLoss::new(batch, row_idxs, &plan.objective, old_logprobs, head);
        loss.prepare(actor, row_idxs, &passes, seed)?;
        report.router_loads.extend(actor.learner.balance_routers(&passes)?);
        actor.learner.set_dropout_seed(Some(seed));
        let sums = actor.learner.update(&passes, &mut loss, plan.learning_rate, &mut report.updates)?;
        for (micro_batch, sums) in passes.iter().flatten().zip(&sums) {
            report.add(batch, micro_batch, sums, actor.learner.ranks());
        }
        Ok(())
    };
    plan.mini_batches().for_each_update(batch, update_rows)?;
    report.updates.set_loss_scale(actor.learner.loss_scale());
    report.add_up(actor.learner.ranks()).map_err(LearnerError::from)?;
    Ok(report)
}
