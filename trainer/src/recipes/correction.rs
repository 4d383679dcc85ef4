//! Correction for the difference between the rollout policy and the actor: importance weights of tokens, and
//! rejection. The formulas are in `rlt-core`.

use rlt_api::resolved;
use rlt_api::spec::{ImportanceCorrectionSpec, ImportanceLevel, RejectionSpec, RejectionStatistic};
use rlt_core::batch::Batch;
use rlt_core::importance::{
    Divergence, RejectionLevel, RejectionRule, WeightBounds, WeightLevel, WeightRule, rollout_is,
    rollout_rejection,
};

use crate::roles::{Roles, StepError};

/// Weights and rejects tokens by the probability ratio of actor and rollout policy; without a specification
/// it changes nothing.
#[derive(Clone, Debug)]
pub struct RolloutCorrection(Option<ImportanceCorrectionSpec>);

impl RolloutCorrection {
    /// Creates the correction of the algorithm's `importanceCorrection`.
    pub fn of(algorithm: &resolved::PolicyGradient) -> Self {
        Self(algorithm.importance_correction.clone())
    }

    /// Whether [`Self::apply`] reads the actor's log-probs from before the update.
    pub fn reads_old_logprobs(&self) -> bool {
        self.0.is_some()
    }

    /// Subtracts the KL penalty from the rewards, then weights and rejects tokens as [`Self::apply`] does.
    /// The order is verl's: the penalty belongs to all that was sampled, rejected tokens included.
    ///
    /// # Errors
    /// [`StepError::Failed`], and those of [`ReferenceRole::penalize`].
    ///
    /// [`ReferenceRole::penalize`]: crate::roles::reference::ReferenceRole::penalize
    pub fn penalize_and_apply(&self, roles: &mut Roles, batch: Batch) -> Result<Batch, StepError> {
        let batch = roles.reference.penalize(batch)?;
        self.apply(roles, batch)
    }

    /// Fills in the batch's importance weights, and masks the rejected tokens.
    ///
    /// # Errors
    /// [`StepError::Failed`].
    pub fn apply(&self, roles: &Roles, mut batch: Batch) -> Result<Batch, StepError> {
        let (Some(spec), Some(old)) = (&self.0, &batch.old_logprobs) else { return Ok(batch) };
        let log_ratios: Vec<f64> = old.iter().zip(&batch.rollout_logprobs).map(|(o, r)| o - r).collect();
        let correction = rollout_is(&batch.rows, &log_ratios, &weight_rule(spec))?;
        roles.context().record(correction.metrics);
        batch.importance_weights = Some(correction.weights);
        if let Some(rejection) = &spec.rejection {
            let rejected = rollout_rejection(&batch.rows, &log_ratios, &[rejection_rule(rejection)])?;
            roles.context().record(rejected.metrics);
            batch.rows = batch.rows.with_mask(rejected.mask)?;
        }
        Ok(batch)
    }
}

fn weight_rule(spec: &ImportanceCorrectionSpec) -> WeightRule {
    WeightRule {
        level: match spec.level {
            ImportanceLevel::Token => WeightLevel::Token,
            ImportanceLevel::Sequence => WeightLevel::Sequence,
        },
        bounds: match spec.lower_threshold {
            None => WeightBounds::Truncate { upper: spec.threshold },
            Some(lower) => WeightBounds::Mask { lower, upper: spec.threshold },
        },
        batch_normalize: spec.normalize,
    }
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
