//! The actor as a role: it fills in log-probs of batches and is updated on them, with the settings of the
//! manifest.

use std::rc::Rc;

use rlt_core::batch::Batch;
use rlt_core::importance::mismatch_metrics;
use rlt_core::loss::Objective;
use rlt_core::schedule::Schedule;
use rlt_data::seeds::SeedUse;
use rlt_decoder::{Adapter, Decoder, ModelError, Weights};
use rlt_parallel::{DecoderUnits, RankError};
use rlt_storage::checkpoint::{Checkpoint, CheckpointError};

use super::update::{UpdatePlan, UpdateReport, update_by_head};
use super::{Actor, PolicyHead};
use crate::observe::tracking::Stage;
use crate::observe::tracking::console::Phase;
use crate::roles::error::StepError;
use crate::roles::learner::MiniBatches;
use crate::roles::learner::train_state::TrainState;
use crate::roles::objective::supervised_objective;
use crate::roles::optim::{LossScale, OptimError};
use crate::roles::step_context::{StepContext, StepPosition};

/// The trained policy as a role.
pub struct ActorRole {
    /// The trained weights with their optimizer. Other roles read them.
    pub(crate) policy: Actor,
    /// Split of a batch into updates by [`Self::update`].
    pub(crate) mini_batches: MiniBatches,
    /// Token budget of a pass without gradients on one rank.
    pub(crate) max_logprob_tokens: usize,
    pub(crate) schedule: Schedule,
    pub(crate) cold_start_schedule: Option<Schedule>,
    pub(crate) context: Rc<StepContext>,
}

impl ActorRole {
    /// Returns the weights of the policy. Its parameters can be read while their unit is unsharded.
    pub fn decoder(&self) -> &Decoder {
        self.policy.learner.decoder()
    }

    /// Returns the decoder for callers that read all of its weights, unit by unit.
    pub fn units(&self) -> DecoderUnits<'_> {
        self.policy.learner.units()
    }

    /// Returns the actor's parameters and optimizer state, which a checkpoint saves.
    pub(crate) fn train_state(&mut self) -> TrainState<'_> {
        self.policy.learner.train_state()
    }

    /// Returns the scale of the actor's loss in half precision.
    pub(crate) fn loss_scale(&self) -> LossScale {
        self.policy.learner.loss_scale()
    }

    /// Restores the loss scale of a checkpoint, if both runs compute in half precision.
    pub(crate) fn resume_loss_scale(&mut self, saved: Option<LossScale>) {
        self.policy.learner.resume_loss_scale(saved);
    }

    /// Resets the optimizer's moments and step counts, as if no step had been taken.
    ///
    /// # Errors
    /// [`OptimError`] if offloaded moments cannot be written.
    pub(crate) fn reset_optimizer(&mut self) -> Result<(), OptimError> {
        self.policy.learner.reset_optimizer()
    }

    /// Loads the actor from a checkpoint of any number of ranks.
    ///
    /// # Errors
    /// [`CheckpointError`] if the checkpoint lacks a tensor, or one has another shape.
    pub(crate) fn load(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        self.policy.learner.train_state().restore(checkpoint)
    }

    /// Starts a fresh adapter from the quantization error of `weights`, see [`Actor::start_from_error`].
    /// Collective.
    ///
    /// # Errors
    /// [`ModelError`] if the weights cannot be read, [`RankError`] when a rank is lost or an offloaded
    /// parameter cannot be written.
    pub(crate) fn start_from_error<E: From<ModelError> + From<RankError>>(
        &mut self,
        weights: &Weights,
    ) -> Result<(), E> {
        self.policy.start_from_error(weights)
    }

    /// Fills in the old policy's log-probs: those of the actor before the update. Records how far they are
    /// from the rollout's.
    ///
    /// # Errors
    /// [`StepError::Failed`].
    pub fn score(&self, mut batch: Batch) -> Result<Batch, StepError> {
        self.context.end_sampling()?;
        self.policy.learner.watch_routes(self.context.routes_of(&batch));
        let score = || self.policy.score(&batch, Adapter::On, self.max_logprob_tokens);
        let scores = self.context.measure("old_log_prob", score)?;
        self.record_mismatch(&batch, &scores.logprobs)?;
        self.record_routes()?;
        batch.old_logprobs = Some(scores.logprobs);
        Ok(batch)
    }

    /// Computes the sum of the squared probabilities of the vocabulary at every completion token of `batch`.
    ///
    /// # Errors
    /// [`StepError::Failed`].
    pub fn sum_pi_squared(&self, batch: &Batch) -> Result<Vec<f64>, StepError> {
        self.context.end_sampling()?;
        Ok(self.policy.sum_pi_squared(batch, self.max_logprob_tokens)?)
    }

    /// Whether `batch` is trained on in one update, by the same weights that are its old policy. Then the
    /// update computes the old log-probs itself.
    pub fn is_on_policy(&self, batch: &Batch) -> bool {
        self.mini_batches.is_one_update(batch)
    }

    /// Minimises `objective` on `batch`, whose advantages are filled in, with `epochsPerBatch` passes in
    /// updates of `promptsPerUpdate` rollout groups.
    ///
    /// # Errors
    /// [`StepError::Failed`]; weights are those after the last applied update.
    pub fn update(&mut self, batch: &Batch, objective: &Objective) -> Result<(), StepError> {
        let MiniBatches { groups_per_update, num_epochs, max_tokens } = self.mini_batches;
        let step = self.context.position().num_done;
        let plan = UpdatePlan {
            objective: *objective,
            groups_per_update,
            num_epochs,
            max_tokens,
            learning_rate: self.schedule.at(step),
            seed: self.context.seed(SeedUse::Update, &[step]),
        };
        let report = self.update_by(batch, &plan, self.policy.head())?;
        self.context.record(report.metrics(&plan));
        self.context.record_actor_logprobs(batch, &report.actor_logprobs);
        if batch.old_logprobs.is_none() {
            self.record_mismatch(batch, &report.actor_logprobs)?;
        }
        Ok(())
    }

    /// Makes the tokens of `batch` likelier in one update: minimises their mean negative log-likelihood, each
    /// weighted by its advantage, which is 1 for demonstrations. In a cold start that is the likelihood at
    /// temperature 1.
    ///
    /// # Errors
    /// [`StepError::Failed`]; the weights are then unchanged.
    pub fn update_supervised(&mut self, batch: &Batch) -> Result<(), StepError> {
        let StepPosition { stage, num_done } = self.context.position();
        let head = self.policy.head();
        let (schedule, seed_part, head) = match stage {
            // The rollout did not sample the demonstrations, so its temperature does not apply to them.
            Stage::ColdStart => {
                let schedule = self.cold_start_schedule.as_ref().unwrap_or(&self.schedule);
                (schedule, 0, PolicyHead { temperature: 1.0, ..head })
            }
            Stage::Training => (&self.schedule, 1, head),
        };
        let plan = UpdatePlan {
            objective: supervised_objective(),
            groups_per_update: usize::MAX,
            num_epochs: 1,
            max_tokens: self.mini_batches.max_tokens,
            learning_rate: schedule.at(num_done),
            seed: self.context.seed(SeedUse::Update, &[seed_part, num_done]),
        };
        let mut metrics = self.update_by(batch, &plan, head)?.metrics(&plan);
        let loss = metrics.remove("actor/pg_loss").unwrap_or(f64::NAN);
        // The ratio of a policy to itself is meaningless here.
        for name in ["actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_lower"] {
            metrics.remove(name);
        }
        metrics.insert("sft/loss".into(), loss);
        self.context.record(metrics);
        Ok(())
    }

    /// Makes one update with the gradient of a loss whose derivatives with respect to the log-probs of
    /// `batch` are `dlogprobs`. It serves losses of full completions, whose derivatives are known only after
    /// all completions are scored ([`Self::score`]).
    ///
    /// # Errors
    /// [`StepError::Failed`]; the weights are then unchanged.
    pub fn update_by_gradient(&mut self, mut batch: Batch, dlogprobs: &[f64]) -> Result<(), StepError> {
        let step = self.context.position().num_done;
        // The objective is a mean over tokens, so its derivative with respect to a log-prob is minus the
        // advantage, divided by the number of tokens.
        let num_tokens = batch.rows.num_valid_tokens() as f64;
        batch.advantages = dlogprobs.iter().map(|slope| -slope * num_tokens).collect();
        let plan = UpdatePlan {
            objective: supervised_objective(),
            groups_per_update: usize::MAX,
            num_epochs: 1,
            max_tokens: self.mini_batches.max_tokens,
            learning_rate: self.schedule.at(step),
            seed: self.context.seed(SeedUse::Update, &[step]),
        };
        let mut metrics = self.update_by(&batch, &plan, self.policy.head())?.metrics(&plan);
        // The mean of derivatives times log-probs is not a loss.
        for name in ["actor/pg_loss", "actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_lower"] {
            metrics.remove(name);
        }
        self.context.record(metrics);
        Ok(())
    }

    fn update_by(
        &mut self,
        batch: &Batch,
        plan: &UpdatePlan,
        head: PolicyHead,
    ) -> Result<UpdateReport, StepError> {
        self.context.end_sampling()?;
        self.context.watch().begin_phase(Phase::Update, 0);
        // Routes of a scored batch were counted when it was scored.
        if batch.old_logprobs.is_none() {
            self.policy.learner.watch_routes(self.context.routes_of(batch));
        }
        let update = || update_by_head(&mut self.policy, batch, plan, head);
        let report = self.context.measure("update_actor", update)?;
        self.record_routes()?;
        self.context.record_update("actor", batch, report.updates.num_skipped);
        Ok(report)
    }

    /// Records how often routers chose the same experts as in the rollout, and how balanced their choices
    /// are.
    fn record_routes(&self) -> Result<(), StepError> {
        let Some(counts) = self.policy.learner.take_route_counts()? else { return Ok(()) };
        let layers =
            self.decoder().config.experts.iter().flat_map(|experts| experts.layers.iter().enumerate());
        let layer_idxs = layers.filter(|(_, has_experts)| **has_experts).map(|(layer_idx, _)| layer_idx);
        self.context.record(counts.metrics(layer_idxs));
        Ok(())
    }

    /// Records the distance between rollout and actor over all sampled tokens, including those that a
    /// correction later rejects because of this distance. Nothing is recorded for completions of a data set.
    fn record_mismatch(&self, batch: &Batch, actor_logprobs: &[f64]) -> Result<(), StepError> {
        if batch.rollout_logprobs.is_empty() {
            return Ok(());
        }
        self.context.record(mismatch_metrics(&batch.rows, actor_logprobs, &batch.rollout_logprobs)?);
        Ok(())
    }
}
