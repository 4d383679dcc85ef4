//! From a batch of completions to a batch with advantages: log-probs where somebody reads them, the rollout
//! correction, the KL penalty in the reward, the estimator.
//!
//! Formulas are in `rlt-core`; here is only what is computed when, and by which model.

use rlt_api::resolved::{Kl, PolicyGradient};
use rlt_api::spec::{ImportanceCorrectionSpec, ImportanceLevel, RejectionSpec, RejectionStatistic};
use rlt_core::advantage::{AdvantageInputs, EstimatorInput};
use rlt_core::batch::Batch;
use rlt_core::importance::{
    Divergence, RejectionLevel, RejectionRule, WeightBounds, WeightLevel, WeightRule, rollout_is,
    rollout_rejection,
};
use rlt_core::kl::{kl_in_reward, mean_kl};
use rlt_core::metrics::Metrics;

use super::collect::Collected;
use crate::actor::TokenScores;
use crate::error::TrainError;
use crate::model::Adapter;
use crate::phases::PhaseClock;
use crate::reference::Reference;
use crate::trainer::Trainer;
use crate::update::UpdatePlan;

/// Fills log-probs, correction weights and advantages of `batch`.
pub(super) fn fill(
    trainer: &mut Trainer,
    batch: &mut Batch,
    collected: &Collected,
    plan: &UpdatePlan,
    clock: &mut PhaseClock,
) -> Result<Metrics, TrainError> {
    let algorithm = trainer.algorithm()?.clone();
    if needs_old_logprobs(&algorithm, plan, batch) || trainer.is_critic_alone() {
        let scores = clock.measure("old_log_prob", || actor_scores(trainer, batch))?;
        batch.old_logprobs = Some(scores.logprobs);
    }
    if algorithm.kl.term().is_some() {
        let scores = clock.measure("ref", || reference_scores(trainer, batch))?;
        batch.ref_logprobs = Some(scores.logprobs);
    }
    if let Some(critic) = &trainer.critic {
        let max_tokens = trainer.spec().training.max_logprob_tokens as usize;
        batch.values = Some(clock.measure("values", || critic.values(batch, max_tokens))?);
    }
    let mut metrics = Metrics::new();
    // Outcomes are laid down before tokens are rejected: a rejected sample does not learn, but it still is a
    // sample of its group.
    let outcomes = batch.rows.at_last_valid(&batch.rewards);
    if let Some(correction) = &algorithm.importance_correction {
        metrics.extend(correct(batch, correction)?);
    }
    let token_rewards = token_rewards(trainer, batch, &algorithm, outcomes, &mut metrics)?;
    clock.measure("adv", || estimate(trainer, batch, collected, &algorithm, &token_rewards))?;
    metrics.insert("train/num_gen_batches".into(), f64::from(collected.num_batches));
    Ok(metrics)
}

/// Whether anybody reads the actor's log-probs before the update computes them anyway.
fn needs_old_logprobs(algorithm: &PolicyGradient, plan: &UpdatePlan, batch: &Batch) -> bool {
    !plan.is_on_policy(batch)
        || algorithm.importance_correction.is_some()
        || matches!(algorithm.kl, Kl::Reward(_))
        || algorithm.kl.term().is_some_and(|term| term.adaptive.is_some())
        || algorithm.advantage.reads(EstimatorInput::SumPiSquared)
}

fn actor_scores(trainer: &Trainer, batch: &Batch) -> Result<TokenScores, TrainError> {
    let max_tokens = trainer.spec().training.max_logprob_tokens as usize;
    Ok(trainer.actor.score(batch, Adapter::On, max_tokens)?)
}

fn reference_scores(trainer: &Trainer, batch: &Batch) -> Result<TokenScores, TrainError> {
    let max_tokens = trainer.spec().training.max_logprob_tokens as usize;
    let scores = match &trainer.reference {
        Reference::Frozen(Some(copy)) => trainer.actor.score_with(copy, batch, max_tokens),
        Reference::None | Reference::AdapterOff | Reference::Frozen(None) => {
            trainer.actor.score(batch, Adapter::Off, max_tokens)
        }
    };
    trainer.reference.rest();
    Ok(scores?)
}

/// Rewards of single tokens: their scores, less the KL penalty where it acts there.
fn token_rewards(
    trainer: &mut Trainer,
    batch: &Batch,
    algorithm: &PolicyGradient,
    scores: Vec<f64>,
    metrics: &mut Metrics,
) -> Result<Vec<f64>, TrainError> {
    let (Some(old), Some(reference)) = (&batch.old_logprobs, &batch.ref_logprobs) else { return Ok(scores) };
    let Some(term) = algorithm.kl.term() else { return Ok(scores) };
    let estimator = term.estimator;
    let coefficient = trainer.kl.coefficient();
    if let Kl::Reward(_) = algorithm.kl {
        let penalized = kl_in_reward(&batch.rows, &scores, old, reference, estimator, coefficient)?;
        metrics.insert("actor/reward_kl_penalty".into(), penalized.mean_kl);
        metrics.insert("actor/reward_kl_penalty_coeff".into(), coefficient);
        trainer.kl.update(penalized.mean_kl, batch.rows.num_rows());
        return Ok(penalized.token_rewards);
    }
    // In the loss the controller is steered by the same estimate, taken before the update.
    trainer.kl.update(mean_kl(&batch.rows, old, reference, estimator)?, batch.rows.num_rows());
    Ok(scores)
}

fn estimate(
    trainer: &Trainer,
    batch: &mut Batch,
    collected: &Collected,
    algorithm: &PolicyGradient,
    token_rewards: &[f64],
) -> Result<(), TrainError> {
    let functions = &trainer.spec().rewards.functions;
    let weight = |name: &String| functions.iter().find(|f| &f.name == name).map_or(1.0, |f| f.weight);
    let weights: Vec<f64> = batch.reward_names.iter().map(weight).collect();
    let greedy: Option<Vec<f64>> = collected
        .greedy_rewards
        .as_ref()
        .map(|greedy| batch.groups.iter().map(|group_idx| greedy[*group_idx]).collect());
    let sum_pi_squared = algorithm
        .advantage
        .reads(EstimatorInput::SumPiSquared)
        .then(|| trainer.actor.sum_pi_squared(batch, trainer.spec().training.max_logprob_tokens as usize))
        .transpose()?;
    let inputs = AdvantageInputs {
        greedy_rewards: greedy.as_deref(),
        old_logprobs: batch.old_logprobs.as_deref(),
        sum_pi_squared: sum_pi_squared.as_deref(),
        importance_weights: batch.importance_weights.as_deref(),
        values: batch.values.as_deref(),
        reward_parts: &batch.reward_parts,
        reward_weights: &weights,
        ..AdvantageInputs::new(&batch.rows, token_rewards, &batch.groups)
    };
    let estimated = algorithm.advantage.estimate(&inputs)?;
    batch.returns = batch.values.is_some().then_some(estimated.returns);
    batch.advantages = estimated.advantages;
    Ok(())
}

/// Weights and rejections for the difference between rollout and actor.
fn correct(batch: &mut Batch, spec: &ImportanceCorrectionSpec) -> Result<Metrics, TrainError> {
    let Some(old) = &batch.old_logprobs else { return Ok(Metrics::new()) };
    let log_ratios: Vec<f64> = old.iter().zip(&batch.rollout_logprobs).map(|(o, r)| o - r).collect();
    let rule = WeightRule {
        level: match spec.level {
            ImportanceLevel::Token => WeightLevel::Token,
            ImportanceLevel::Sequence => WeightLevel::Sequence,
        },
        bounds: match spec.lower_threshold {
            None => WeightBounds::Truncate { upper: spec.threshold },
            Some(lower) => WeightBounds::Mask { lower, upper: spec.threshold },
        },
        batch_normalize: spec.normalize,
    };
    let correction = rollout_is(&batch.rows, &log_ratios, &rule)?;
    let mut metrics = correction.metrics;
    batch.importance_weights = Some(correction.weights);
    if let Some(rejection) = &spec.rejection {
        let rejected = rollout_rejection(&batch.rows, &log_ratios, &[rejection_rule(rejection)])?;
        metrics.extend(rejected.metrics);
        batch.rows = batch.rows.with_mask(rejected.mask)?;
    }
    Ok(metrics)
}

fn rejection_rule(spec: &RejectionSpec) -> RejectionRule {
    use RejectionStatistic as From;
    let RejectionSpec { statistic, upper, lower } = *spec;
    let k1 = Divergence::K1 { lower: lower.unwrap_or(1.0 / upper), upper };
    let (k2, k3) = (Divergence::K2 { upper }, Divergence::K3 { upper });
    let (level, divergence) = match statistic {
        From::TokenK1 => (RejectionLevel::Token, k1),
        From::TokenK2 => (RejectionLevel::Token, k2),
        From::TokenK3 => (RejectionLevel::Token, k3),
        From::SequenceSumK1 => (RejectionLevel::SequenceSum, k1),
        From::SequenceSumK2 => (RejectionLevel::SequenceSum, k2),
        From::SequenceSumK3 => (RejectionLevel::SequenceSum, k3),
        From::SequenceMeanK1 => (RejectionLevel::SequenceMean, k1),
        From::SequenceMeanK2 => (RejectionLevel::SequenceMean, k2),
        From::SequenceMeanK3 => (RejectionLevel::SequenceMean, k3),
        From::SequenceMaxK2 => (RejectionLevel::SequenceMax, k2),
        From::SequenceMaxK3 => (RejectionLevel::SequenceMax, k3),
    };
    RejectionRule { level, divergence }
}
