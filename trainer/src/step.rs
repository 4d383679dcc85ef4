//! One step of reinforcement learning: the algorithm in order.
//!
//! Every rank runs this same step on the same batch, and does its share of the sampling, scoring and
//! gradients. What each line does is one module away: sampling in [`collect`], advantages in [`advantages`],
//! the update in [`crate::update`].

mod advantages;
mod collect;

pub(crate) use collect::{Sampling, sample_groups, training_sampling};

use rlt_core::batch::Batch;
use rlt_core::importance::mismatch_metrics;
use rlt_core::metrics::{Metrics, rollout_metrics, summarize};
use rlt_core::types::RolloutGroup;

use crate::critic::value_metrics;
use crate::error::TrainError;
use crate::objective;
use crate::phases::{PhaseClock, communication_metrics, cost_metrics};
use crate::state;
use crate::stop::StopReason;
use crate::tracking::console::Phase;
use crate::trainer::{SeedStream, Trainer};
use crate::update::{UpdatePlan, update};

/// How a step ended.
#[derive(Debug)]
pub enum StepEnd {
    /// The weights are updated; what was measured.
    Complete(Metrics),
    /// It was asked to stop before the weights were touched; nothing of it counts.
    Dropped(StopReason),
}

/// Runs one step.
///
/// # Errors
/// [`TrainError`]; the step does not count.
pub fn step(trainer: &mut Trainer) -> Result<StepEnd, TrainError> {
    let position = trainer.prompts.as_ref().map(|loader| loader.state().clone());
    let exchanged = trainer.ranks.traffic();
    let mut clock = PhaseClock::start();
    let collected = collect::groups(trainer, &mut clock)?;
    // Sampling is the longest part of a step: a checkpoint does not wait for its end.
    state::look_after_save(trainer)?;
    let dropped = trainer.stop_reason()?;
    let (Some(collected), None) = (collected, dropped) else {
        // A dropped step gives its prompts back, so that it comes again, the same, after a resume.
        if let (Some(loader), Some(position)) = (trainer.prompts.as_mut(), position) {
            loader.resume(&position)?;
        }
        return Ok(StepEnd::Dropped(dropped.unwrap_or(StopReason::Signal)));
    };
    let mut batch = collected.batch(trainer)?;
    let plan = update_plan(trainer)?;
    // The mismatch is that of everything sampled, tokens that the correction rejects for it included.
    let sampled = batch.rows.clone();
    let mut metrics = advantages::fill(trainer, &mut batch, &collected, &plan, &mut clock)?;
    trainer.watch.begin_phase(Phase::Update, 0);
    let learned = learn(trainer, &batch, &plan, &mut clock)?;
    metrics.extend(learned.metrics);
    let actor_logprobs = batch.old_logprobs.as_ref().or(learned.actor_logprobs.as_ref());
    if let Some(actor_logprobs) = actor_logprobs {
        metrics.extend(mismatch_metrics(&sampled, actor_logprobs, &batch.rollout_logprobs)?);
    }
    metrics.insert("training/num_skipped_updates".into(), learned.num_skipped as f64);
    trainer.count_skipped(learned.num_skipped);
    trainer.watch.completions(trainer.progress.step + 1, false, &collected.groups);
    metrics.extend(step_metrics(trainer, &collected.groups, &batch, &clock)?);
    metrics.extend(collected.cost.metrics());
    metrics.extend(communication_metrics(&trainer.ranks, exchanged)?);
    Ok(StepEnd::Complete(metrics))
}

/// What the roles learned from a batch.
#[derive(Default)]
struct Learned {
    metrics: Metrics,
    num_skipped: usize,
    /// The actor's log-probs as its update saw them; `None` where it was not updated.
    actor_logprobs: Option<Vec<f64>>,
}

/// The critic's updates, then the actor's unless the critic is still alone.
fn learn(
    trainer: &mut Trainer,
    batch: &Batch,
    plan: &UpdatePlan,
    clock: &mut PhaseClock,
) -> Result<Learned, TrainError> {
    let mut learned = Learned { metrics: value_metrics(batch), ..Learned::default() };
    if let Some(critic) = &mut trainer.critic {
        let report = clock.measure("update_critic", || critic.learn(batch, plan))?;
        learned.num_skipped += report.num_skipped;
        learned.metrics.extend(report.metrics());
    }
    if !trainer.is_critic_alone() {
        let report = clock.measure("update_actor", || update(&mut trainer.actor, batch, plan))?;
        learned.num_skipped += report.num_skipped;
        learned.metrics.extend(report.metrics(plan));
        learned.actor_logprobs = Some(report.actor_logprobs);
    }
    Ok(learned)
}

/// What the update of the present step is to do.
pub(crate) fn update_plan(trainer: &Trainer) -> Result<UpdatePlan, TrainError> {
    let training = &trainer.spec().training;
    Ok(UpdatePlan {
        objective: objective::objective(trainer.algorithm()?, trainer.kl.coefficient()),
        groups_per_update: training.prompts_per_update as usize,
        num_epochs: training.epochs_per_batch as usize,
        max_tokens: training.max_tokens_per_micro_batch as usize,
        learning_rate: trainer.schedule.at(trainer.progress.step),
        seed: trainer.seed(SeedStream::Update, &[trainer.progress.step]),
    })
}

fn step_metrics(
    trainer: &mut Trainer,
    groups: &[RolloutGroup],
    batch: &Batch,
    clock: &PhaseClock,
) -> Result<Metrics, TrainError> {
    let mut metrics = rollout_metrics(groups);
    let counted = |values: &[f64]| -> Vec<f64> {
        batch.rows.valid(0..batch.rows.num_tokens()).map(|token| values[token]).collect()
    };
    summarize(&mut metrics, "critic/advantages", counted(&batch.advantages));
    let num_tokens: usize = batch.sequence_lens().iter().sum();
    trainer.progress.num_tokens += num_tokens as u64;
    metrics.extend(cost_metrics(num_tokens, clock));
    let num_new: usize = groups.iter().flat_map(|g| &g.rollouts).map(|r| r.completion.tokens.len()).sum();
    metrics.insert("perf/rollout_throughput".into(), num_new as f64 / clock.seconds("gen").max(1e-9));
    Ok(metrics)
}
