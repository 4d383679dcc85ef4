//! Supervised steps: demonstrations in, changed weights out. The cold start before reinforcement learning,
//! and the whole of an `SFT` job.

use rlt_api::spec::ColdStartSpec;
use rlt_core::batch::Batch;
use rlt_core::metrics::Metrics;
use rlt_core::schedule::{Decay, Schedule};

use crate::error::TrainError;
use crate::objective::supervised_objective;
use crate::phases::{PhaseClock, communication_metrics, cost_metrics};
use crate::stop::StopReason;
use crate::tracking::Stage;
use crate::tracking::console::Phase;
use crate::trainer::{SeedStream, Trainer};
use crate::update::{UpdatePlan, update};

/// Trains on demonstrations before the first step, from wherever that stands; the reason if it was asked to
/// stop.
///
/// # Errors
/// [`TrainError`].
pub fn cold_start(trainer: &mut Trainer) -> Result<Option<StopReason>, TrainError> {
    let Some(spec) = trainer.spec().algorithm.cold_start.clone() else { return Ok(None) };
    let num_steps = u64::from(spec.steps);
    if trainer.progress.step > 0 || trainer.progress.cold_start_steps >= num_steps {
        return Ok(None);
    }
    trainer.watch.begin_stage(Stage::ColdStart, trainer.progress.cold_start_steps, num_steps);
    let schedule = cold_start_schedule(&spec);
    while trainer.progress.cold_start_steps < num_steps {
        if let Some(reason) = trainer.stop_reason()? {
            return Ok(Some(reason));
        }
        let step = trainer.progress.cold_start_steps;
        let followed = tracing::info_span!(target: rlt_traces::TARGET, "cold start step", step = step + 1);
        let _followed = followed.entered();
        let metrics = supervised_step(trainer, spec.batch_size as usize, schedule.at(step), &[0, step])?;
        trainer.progress.cold_start_steps += 1;
        trainer.watch.end_step(Stage::ColdStart, trainer.progress.cold_start_steps, metrics);
        trainer.check_divergence()?;
    }
    // What comes next is another problem: moments of the supervised loss would steer its first updates.
    trainer.actor.optimizer.reset()?;
    Ok(None)
}

/// The learning rate rises over a tenth of the steps and then stays.
fn cold_start_schedule(spec: &ColdStartSpec) -> Schedule {
    Schedule {
        learning_rate: spec.learning_rate,
        decay: Decay::Constant,
        warmup_steps: u64::from(spec.steps / 10),
        num_steps: u64::from(spec.steps),
        min_ratio: 0.0,
    }
}

/// One supervised update on the next `batch_size` demonstrations.
///
/// # Errors
/// [`TrainError`].
pub fn supervised_step(
    trainer: &mut Trainer,
    batch_size: usize,
    learning_rate: f64,
    stream: &[u64],
) -> Result<Metrics, TrainError> {
    let exchanged = trainer.ranks.traffic();
    let mut clock = PhaseClock::start();
    let Some(loader) = trainer.demonstrations.as_mut() else { return Err(TrainError::NoDemonstrations) };
    let demonstrations = loader.next_batch(batch_size);
    let batch = Batch::from_demonstrations(demonstrations.iter().map(AsRef::as_ref));
    let training = &trainer.spec().training;
    let plan = UpdatePlan {
        objective: supervised_objective(),
        groups_per_update: batch_size,
        num_epochs: 1,
        max_tokens: training.max_tokens_per_micro_batch as usize,
        learning_rate,
        seed: trainer.seed(SeedStream::Update, stream),
    };
    trainer.watch.begin_phase(Phase::Update, 0);
    let report = clock.measure("update_actor", || update(&mut trainer.actor, &batch, &plan))?;
    trainer.count_skipped(report.num_skipped);
    let mut metrics = report.metrics(&plan);
    let loss = metrics.remove("actor/pg_loss").unwrap_or(f64::NAN);
    // The ratio of a policy to itself says nothing here.
    for name in ["actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_lower"] {
        metrics.remove(name);
    }
    metrics.insert("sft/loss".into(), loss);
    let num_tokens: usize = batch.sequence_lens().iter().sum();
    trainer.progress.num_tokens += num_tokens as u64;
    metrics.extend(cost_metrics(num_tokens, &clock));
    metrics.extend(communication_metrics(&trainer.ranks, exchanged)?);
    Ok(metrics)
}
