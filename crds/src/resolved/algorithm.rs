//! The algorithm with the preset written out and only the constants that its parts use.

use serde::Serialize;

use super::preset::Preset;
use crate::spec::{
    AdaptiveKlSpec, AdvantageEstimator, AdvantageSpec, AlgorithmKind, AlgorithmSpec, ColdStartSpec,
    CriticSpec, DynamicSamplingSpec, ImportanceCorrectionSpec, KlEstimator, KlPlacement, KlSpec,
    LossAggregation, LossSpec, PolicyLossKind, RolloutSpec,
};

/// The algorithm.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedAlgorithm {
    /// The preset it came from.
    pub kind: AlgorithmKind,
    /// Supervised training before the first step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_start: Option<ColdStartSpec>,
    /// The reinforcement learning; `None` for `SFT`.
    #[serde(flatten)]
    pub policy_gradient: Option<PolicyGradient>,
}

/// Everything that reinforcement learning needs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyGradient {
    /// How rewards become advantages.
    pub advantage: Advantage,
    /// How advantages become a loss.
    pub loss: PolicyGradientLoss,
    /// The critic; `None` for estimators that know none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critic: Option<CriticSpec>,
    /// How the actor is held near the reference policy.
    pub kl: Kl,
    /// Correction for the difference between sampling and trained policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub importance_correction: Option<ImportanceCorrectionSpec>,
    /// Sampling anew for groups without differing rewards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamic_sampling: Option<DynamicSamplingSpec>,
}

/// An advantage estimator with its constants. See [`AdvantageEstimator`] for what each does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "estimator", rename_all_fields = "camelCase")]
#[expect(missing_docs, reason = "the variants are documented once, in AdvantageEstimator and AdvantageSpec")]
pub enum Advantage {
    Grpo { normalize_by_std: bool },
    GrpoPassk { normalize_by_std: bool },
    Rloo,
    ReinforcePlusPlus { gamma: f64 },
    ReinforcePlusPlusBaseline,
    ReMax,
    Opo,
    Gpg,
    OptimalTokenBaseline,
    Gdpo,
    Gae { gamma: f64, lambda: f64 },
}

/// The loss: per token, over a batch, and the entropy bonus.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyGradientLoss {
    /// The loss of a token or sequence.
    #[serde(flatten)]
    pub policy: PolicyLoss,
    /// The loss of a batch.
    #[serde(flatten)]
    pub aggregation: Aggregation,
    /// Factor of the entropy that is subtracted; 0 for none.
    pub entropy_coefficient: f64,
}

/// A policy loss with its constants. See [`PolicyLossKind`] for what each does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "policy", rename_all_fields = "camelCase")]
#[expect(missing_docs, reason = "the variants are documented once, in PolicyLossKind and LossSpec")]
pub enum PolicyLoss {
    Vanilla {
        clip_low: f64,
        clip_high: f64,
        #[serde(skip_serializing_if = "Option::is_none")]
        dual_clip: Option<f64>,
    },
    Gspo {
        clip_low: f64,
        clip_high: f64,
    },
    Sapo {
        sapo_tau_positive: f64,
        sapo_tau_negative: f64,
    },
    Gpg,
    GeoMean {
        clip_low: f64,
        clip_high: f64,
    },
    Cispo {
        clip_low: f64,
        clip_high: f64,
    },
    DppoTv {
        clip_low: f64,
        clip_high: f64,
        /// Cap of the importance weight.
        dual_clip: f64,
    },
    DppoKl {
        clip_low: f64,
        clip_high: f64,
        /// Cap of the importance weight.
        dual_clip: f64,
    },
    Dro {
        penalty: f64,
    },
    ClipCov {
        clip_low: f64,
        clip_high: f64,
        covariance_ratio: f64,
    },
    KlCov {
        covariance_ratio: f64,
        penalty: f64,
    },
}

/// A loss aggregation with its constant. See [`LossAggregation`] for what each does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "aggregation", rename_all_fields = "camelCase")]
#[expect(missing_docs, reason = "the variants are documented once, in LossAggregation and LossSpec")]
pub enum Aggregation {
    TokenMean,
    TokenSum,
    SequenceMeanTokenMean,
    SequenceMeanTokenSum,
    SequenceMeanTokenSumNorm { normalization_tokens: u32 },
}

/// The KL term, by where it acts.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "placement")]
pub enum Kl {
    /// Nowhere: there is no reference policy.
    None,
    /// Added to the loss.
    Loss(KlTerm),
    /// Subtracted from each token's reward.
    Reward(KlTerm),
}

/// The KL term's constants.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KlTerm {
    /// The estimator.
    pub estimator: KlEstimator,
    /// Its factor, the first one if it adapts.
    pub coefficient: f64,
    /// The controller of the factor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<AdaptiveKlSpec>,
}

impl Kl {
    /// The term, wherever it acts; `None` when no reference policy is needed.
    pub fn term(&self) -> Option<&KlTerm> {
        match self {
            Self::None => None,
            Self::Loss(term) | Self::Reward(term) => Some(term),
        }
    }
}

impl ResolvedAlgorithm {
    pub(super) fn resolve(spec: &AlgorithmSpec, preset: &Preset, rollout: &RolloutSpec) -> Self {
        let loss = spec.loss.clone().unwrap_or_default();
        let advantage = resolve_advantage(&spec.advantage.clone().unwrap_or_default(), preset);
        let has_critic = matches!(advantage, Advantage::Gae { .. });
        let policy_gradient = (spec.kind != AlgorithmKind::Sft).then(|| PolicyGradient {
            advantage,
            critic: has_critic.then(|| spec.critic.clone().unwrap_or_default()),
            loss: PolicyGradientLoss {
                policy: resolve_policy_loss(&loss, preset),
                aggregation: resolve_aggregation(&loss, preset, rollout),
                entropy_coefficient: loss.entropy_coefficient.unwrap_or(0.0),
            },
            kl: resolve_kl(&spec.kl.clone().unwrap_or_default(), preset),
            importance_correction: spec.importance_correction.clone(),
            dynamic_sampling: spec.dynamic_sampling.clone().or(preset.dynamic_sampling.clone()),
        });
        Self { kind: spec.kind, cold_start: spec.cold_start.clone(), policy_gradient }
    }
}

fn resolve_advantage(spec: &AdvantageSpec, preset: &Preset) -> Advantage {
    let normalize_by_std = spec.normalize_by_std.unwrap_or(preset.normalize_by_std);
    match spec.estimator.unwrap_or(preset.estimator) {
        AdvantageEstimator::Grpo => Advantage::Grpo { normalize_by_std },
        AdvantageEstimator::GrpoPassk => Advantage::GrpoPassk { normalize_by_std },
        AdvantageEstimator::Rloo => Advantage::Rloo,
        AdvantageEstimator::ReinforcePlusPlus => {
            Advantage::ReinforcePlusPlus { gamma: spec.gamma.unwrap_or(1.0) }
        }
        AdvantageEstimator::ReinforcePlusPlusBaseline => Advantage::ReinforcePlusPlusBaseline,
        AdvantageEstimator::ReMax => Advantage::ReMax,
        AdvantageEstimator::Opo => Advantage::Opo,
        AdvantageEstimator::Gpg => Advantage::Gpg,
        AdvantageEstimator::OptimalTokenBaseline => Advantage::OptimalTokenBaseline,
        AdvantageEstimator::Gdpo => Advantage::Gdpo,
        AdvantageEstimator::Gae => {
            Advantage::Gae { gamma: spec.gamma.unwrap_or(1.0), lambda: spec.lambda.unwrap_or(1.0) }
        }
    }
}

fn resolve_policy_loss(spec: &LossSpec, preset: &Preset) -> PolicyLoss {
    let clip_low = spec.clip_low.unwrap_or(preset.clip_low);
    let clip_high = spec.clip_high.unwrap_or(preset.clip_high);
    // verl 0.10 caps the importance weight of DPPO at 20 where nothing is set.
    let dual_clip = spec.dual_clip.unwrap_or(20.0);
    match spec.policy.unwrap_or(preset.policy) {
        PolicyLossKind::Vanilla => PolicyLoss::Vanilla { clip_low, clip_high, dual_clip: spec.dual_clip },
        PolicyLossKind::Gspo => PolicyLoss::Gspo { clip_low, clip_high },
        PolicyLossKind::Sapo => PolicyLoss::Sapo {
            sapo_tau_positive: spec.sapo_tau_positive.unwrap_or(1.0),
            sapo_tau_negative: spec.sapo_tau_negative.unwrap_or(1.05),
        },
        PolicyLossKind::Gpg => PolicyLoss::Gpg,
        PolicyLossKind::GeoMean => PolicyLoss::GeoMean { clip_low, clip_high },
        PolicyLossKind::Cispo => PolicyLoss::Cispo { clip_low, clip_high },
        PolicyLossKind::DppoTv => PolicyLoss::DppoTv { clip_low, clip_high, dual_clip },
        PolicyLossKind::DppoKl => PolicyLoss::DppoKl { clip_low, clip_high, dual_clip },
        PolicyLossKind::Dro => PolicyLoss::Dro { penalty: spec.penalty.unwrap_or(0.1) },
        // verl's defaults for both (arXiv 2505.22617).
        PolicyLossKind::ClipCov => PolicyLoss::ClipCov {
            clip_low,
            clip_high,
            covariance_ratio: spec.covariance_ratio.unwrap_or(2e-4),
        },
        PolicyLossKind::KlCov => PolicyLoss::KlCov {
            covariance_ratio: spec.covariance_ratio.unwrap_or(2e-4),
            penalty: spec.penalty.unwrap_or(1.0),
        },
    }
}

fn resolve_aggregation(spec: &LossSpec, preset: &Preset, rollout: &RolloutSpec) -> Aggregation {
    let policy = spec.policy.unwrap_or(preset.policy);
    let by_policy =
        PolicyLossKind::BY_SEQUENCE.contains(&policy).then_some(LossAggregation::SequenceMeanTokenMean);
    match spec.aggregation.or(by_policy).unwrap_or(preset.aggregation) {
        LossAggregation::TokenMean => Aggregation::TokenMean,
        LossAggregation::TokenSum => Aggregation::TokenSum,
        LossAggregation::SequenceMeanTokenMean => Aggregation::SequenceMeanTokenMean,
        LossAggregation::SequenceMeanTokenSum => Aggregation::SequenceMeanTokenSum,
        LossAggregation::SequenceMeanTokenSumNorm => Aggregation::SequenceMeanTokenSumNorm {
            normalization_tokens: spec.normalization_tokens.unwrap_or(rollout.max_completion_tokens),
        },
    }
}

fn resolve_kl(spec: &KlSpec, preset: &Preset) -> Kl {
    let placement = spec.placement.unwrap_or(preset.kl_placement);
    let term = |estimator| KlTerm {
        estimator: spec.estimator.unwrap_or(estimator),
        coefficient: spec.coefficient.unwrap_or(preset.kl_coefficient),
        adaptive: spec.adaptive.clone(),
    };
    match placement {
        KlPlacement::None => Kl::None,
        // The value of K3 never falls below 0 and the gradient of K2 is that of the divergence itself.
        KlPlacement::Loss => Kl::Loss(term(KlEstimator::K3StraightThrough)),
        KlPlacement::Reward => Kl::Reward(term(KlEstimator::K1)),
    }
}
