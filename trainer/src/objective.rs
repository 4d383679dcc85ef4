//! From the job's words to the arithmetic's: which estimator, loss and KL term an algorithm means.
//!
//! One match for each choice and nothing else; defaults and presets were settled by the API, formulas live in
//! `rlt-core`.

use rlt_api::resolved::{self, PolicyGradient};
use rlt_api::spec;
use rlt_core::advantage::AdvantageEstimator;
use rlt_core::kl::KlEstimator;
use rlt_core::loss::{Aggregation, Clip, KlTerm, Objective, PolicyLoss};

/// Covariances among which clip-cov chooses: verl's `clip_cov_lb` and `clip_cov_ub` (arXiv 2505.22617).
const CLIP_COV_BAND: std::ops::Range<f64> = 1.0..5.0;

/// The objective of an update; `kl_coefficient` is the controller's current one.
pub fn objective(algorithm: &PolicyGradient, kl_coefficient: f64) -> Objective {
    let kl = match &algorithm.kl {
        resolved::Kl::Loss(term) => {
            Some(KlTerm { estimator: kl_estimator(term.estimator), coefficient: kl_coefficient })
        }
        resolved::Kl::None | resolved::Kl::Reward(_) => None,
    };
    Objective {
        policy: policy_loss(algorithm.loss.policy),
        aggregation: aggregation(algorithm.loss.aggregation),
        kl,
        entropy_coefficient: algorithm.loss.entropy_coefficient,
    }
}

/// The objective of supervised training: mean negative log-likelihood of the demonstrated tokens, which is
/// `gpg` with an advantage of 1.
pub fn supervised_objective() -> Objective {
    Objective {
        policy: PolicyLoss::Gpg,
        aggregation: Aggregation::TokenMean,
        kl: None,
        entropy_coefficient: 0.0,
    }
}

/// The estimator of the advantages; `reward_weights` are those of the reward functions by the order of their
/// names.
pub fn advantage_estimator(advantage: resolved::Advantage, reward_weights: &[f64]) -> AdvantageEstimator {
    use resolved::Advantage as From;
    match advantage {
        From::Grpo { normalize_by_std } => AdvantageEstimator::Grpo { normalize_by_std },
        From::GrpoPassk { normalize_by_std } => AdvantageEstimator::GrpoPassAtK { normalize_by_std },
        From::Rloo => AdvantageEstimator::RlooVectorized,
        From::ReinforcePlusPlus { gamma } => AdvantageEstimator::ReinforcePlusPlus { gamma },
        From::ReinforcePlusPlusBaseline => AdvantageEstimator::ReinforcePlusPlusBaseline,
        From::ReMax => AdvantageEstimator::Remax,
        From::Opo => AdvantageEstimator::Opo,
        From::Gpg => AdvantageEstimator::Gpg,
        From::OptimalTokenBaseline => AdvantageEstimator::OptimalTokenBaseline,
        From::Gae { gamma, lambda } => AdvantageEstimator::Gae { gamma, lambda },
        From::Gdpo => AdvantageEstimator::Gdpo { normalize_by_std: true, weights: reward_weights.to_vec() },
    }
}

/// The estimator of the KL divergence.
pub fn kl_estimator(estimator: spec::KlEstimator) -> KlEstimator {
    use spec::KlEstimator as From;
    match estimator {
        From::K1 => KlEstimator::K1,
        From::K1StraightThrough => KlEstimator::K1Plus,
        From::Abs => KlEstimator::Abs,
        From::K2 => KlEstimator::K2,
        From::K3 => KlEstimator::K3,
        From::K3StraightThrough => KlEstimator::K3Plus,
    }
}

fn policy_loss(policy: resolved::PolicyLoss) -> PolicyLoss {
    use resolved::PolicyLoss as From;
    let clip = |low: f64, high: f64| Clip { low, high };
    match policy {
        From::Vanilla { clip_low, clip_high, dual_clip } => {
            PolicyLoss::Vanilla { clip: clip(clip_low, clip_high), dual_clip }
        }
        From::Gspo { clip_low, clip_high } => PolicyLoss::Gspo { clip: clip(clip_low, clip_high) },
        From::Sapo { sapo_tau_positive, sapo_tau_negative } => {
            PolicyLoss::Sapo { tau_positive: sapo_tau_positive, tau_negative: sapo_tau_negative }
        }
        From::Gpg => PolicyLoss::Gpg,
        From::GeoMean { clip_low, clip_high } => PolicyLoss::GeoMean { clip: clip(clip_low, clip_high) },
        From::Cispo { clip_low, clip_high } => PolicyLoss::Cispo { clip: clip(clip_low, clip_high) },
        From::DppoTv { clip_low, clip_high, dual_clip } => {
            PolicyLoss::DppoTv { clip: clip(clip_low, clip_high), ratio_cap: dual_clip }
        }
        From::DppoKl { clip_low, clip_high, dual_clip } => {
            PolicyLoss::DppoKl { clip: clip(clip_low, clip_high), ratio_cap: dual_clip }
        }
        From::Dro { penalty } => PolicyLoss::Dro { beta: penalty },
        From::ClipCov { clip_low, clip_high, covariance_ratio } => PolicyLoss::ClipCov {
            clip: clip(clip_low, clip_high),
            ratio: covariance_ratio,
            lower: CLIP_COV_BAND.start,
            upper: CLIP_COV_BAND.end,
        },
        From::KlCov { covariance_ratio, penalty } => {
            PolicyLoss::KlCov { ratio: covariance_ratio, coefficient: penalty }
        }
    }
}

fn aggregation(aggregation: resolved::Aggregation) -> Aggregation {
    use resolved::Aggregation as From;
    match aggregation {
        From::TokenMean => Aggregation::TokenMean,
        From::TokenSum => Aggregation::TokenSum,
        From::SequenceMeanTokenMean => Aggregation::SeqMeanTokenMean,
        From::SequenceMeanTokenSum => Aggregation::SeqMeanTokenSum,
        From::SequenceMeanTokenSumNorm { normalization_tokens } => {
            Aggregation::SeqMeanTokenSumNorm { scale: f64::from(normalization_tokens) }
        }
    }
}
