//! The critic as a role: it is copied from the actor before the first step, then fills in values of batches
//! and is updated on them.

use std::rc::Rc;

use rlt_api::spec::LoraSpec;
use rlt_core::batch::Batch;
use rlt_parallel::Ranks;
use rlt_storage::checkpoint::{Checkpoint, CheckpointError};

use super::{Critic, CriticOptions, CriticSetupError, value_metrics};
use crate::observe::tracking::console::Phase;
use crate::roles::actor::ActorRole;
use crate::roles::error::StepError;
use crate::roles::learner::MiniBatches;
use crate::roles::learner::train_state::TrainState;
use crate::roles::optim::LossScale;
use crate::roles::step_context::StepContext;

/// The value function as a role.
pub struct CriticRole {
    /// The critic; `None` before the first step, and for algorithms without one.
    pub(crate) value_function: Option<Critic>,
    /// Settings of the critic; `None` for algorithms without one.
    pub(crate) plan: Option<CriticPlan>,
    pub(crate) mini_batches: MiniBatches,
    /// Token budget of a pass without gradients on one rank.
    pub(crate) max_forward_tokens: usize,
    pub(crate) context: Rc<StepContext>,
}

/// Settings of a critic that is initialized from the actor.
#[derive(Clone, Debug)]
pub(crate) struct CriticPlan {
    pub options: CriticOptions,
    /// Adapter of the critic, with its seed; `None` if all weights are trained.
    pub lora: Option<(LoraSpec, u64)>,
    pub ranks: Ranks,
}

impl CriticRole {
    /// Makes the critic from the actor's present weights, if the algorithm needs one and it does not exist
    /// yet.
    ///
    /// # Errors
    /// [`CriticSetupError`].
    pub(crate) fn begin(&mut self, actor: &ActorRole) -> Result<(), CriticSetupError> {
        let Some(plan) = self.plan.as_ref().filter(|_| self.value_function.is_none()) else { return Ok(()) };
        let lora = plan.lora.as_ref().map(|(spec, seed)| (spec, *seed));
        let (options, ranks) = (plan.options.clone(), plan.ranks.clone());
        self.value_function = Some(Critic::from_actor(&actor.policy, lora, options, ranks)?);
        Ok(())
    }

    /// Returns the critic's parameters and optimizer state, which a checkpoint saves; `None` without a
    /// critic.
    pub(crate) fn train_state(&mut self) -> Option<TrainState<'_>> {
        self.value_function.as_mut().map(|critic| critic.learner.train_state())
    }

    /// Returns the scale of the critic's loss in half precision; `None` without a critic.
    pub(crate) fn loss_scale(&self) -> Option<LossScale> {
        self.value_function.as_ref().map(|critic| critic.learner.loss_scale())
    }

    /// Restores the loss scale of a checkpoint, if there is a critic and both runs compute in half precision.
    pub(crate) fn resume_loss_scale(&mut self, saved: Option<LossScale>) {
        if let Some(critic) = &mut self.value_function {
            critic.learner.resume_loss_scale(saved);
        }
    }

    /// Loads the critic, if there is one, from a checkpoint of any number of ranks.
    ///
    /// # Errors
    /// [`CheckpointError`] if the checkpoint lacks a tensor, or one has another shape.
    pub(crate) fn load(&mut self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        self.value_function.as_mut().map_or(Ok(()), |critic| critic.load(checkpoint))
    }

    /// Whether the present step trains the critic alone.
    pub fn is_warming_up(&self) -> bool {
        let step = self.context.position().num_done;
        self.value_function.as_ref().is_some_and(|critic| step < critic.warmup_steps())
    }

    /// Fills in the value of every completion token of `batch`.
    ///
    /// # Errors
    /// [`StepError::Failed`], [`StepError::WithoutCritic`].
    pub fn value(&self, mut batch: Batch) -> Result<Batch, StepError> {
        let critic = self.value_function.as_ref().ok_or(StepError::WithoutCritic)?;
        self.context.end_sampling()?;
        let values = self.context.measure("values", || critic.values(&batch, self.max_forward_tokens))?;
        batch.values = Some(values);
        Ok(batch)
    }

    /// Fits the values to the returns of `batch`, in as many updates as the actor makes.
    ///
    /// # Errors
    /// [`StepError::Failed`]; weights are those after the last applied update.
    pub fn update(&mut self, batch: &Batch) -> Result<(), StepError> {
        let critic = self.value_function.as_mut().ok_or(StepError::WithoutCritic)?;
        self.context.end_sampling()?;
        self.context.watch().begin_phase(Phase::Update, 0);
        let report = self.context.measure("update_critic", || critic.learn(batch, self.mini_batches))?;
        self.context.record_update("critic", batch, report.updates.num_skipped);
        self.context.record(value_metrics(batch));
        self.context.record(report.metrics());
        Ok(())
    }
}
