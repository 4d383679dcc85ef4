//! The algorithm with the preset written out and only the constants that its parts use.

use rlt_algorithms::advantage::{AdvantageEstimator, EstimatorInput};
use rlt_algorithms::kto::Kto;
use rlt_algorithms::loss::{Aggregation, PolicyLoss};
use rlt_algorithms::preference::{Divergence, PreferenceLoss};
use serde::Serialize;

use crate::plan::model_config::OutputHead;
use crate::presets::Preset;
use crate::spec::{
    AdaptiveKlSpec, AdvantageSpec, AlgorithmKind, AlgorithmSpec, ColdStartSpec, CriticSpec,
    DynamicSamplingSpec, ImportanceCorrectionSpec, KlEstimator, KlPlacement, KlSpec, LearnsFrom,
    LossAggregation, LossSpec, PreferenceDivergence, PreferenceSpec, PresetProject,
    ProcessRewardTrainingSpec, ReferenceSyncSpec, RewardModelTrainingSpec, ReweightingSpec, RolloutSpec,
    WeightedLossSpec,
};

/// The algorithm.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedAlgorithm {
    /// The preset behind it.
    pub kind: AlgorithmKind,
    /// The project whose defaults it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<PresetProject>,
    /// Supervised training before the first step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_start: Option<ColdStartSpec>,
    /// The policy gradient; `None` for `SFT` and preferences.
    #[serde(flatten)]
    pub policy_gradient: Option<PolicyGradient>,
    /// The learning from preferences; `None` for other kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preference: Option<Preference>,
    /// How the reference follows the actor; `None` where it stays as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_sync: Option<ReferenceSyncSpec>,
    /// The training of a reward model; `None` for other kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward_model: Option<RewardModelTrainingSpec>,
    /// The training of a process reward model; `None` for other kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_reward: Option<ProcessRewardTrainingSpec>,
}

/// How preferences become a loss.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Preference {
    /// By pairs of completions.
    Pairs(PairPreference),
    /// By completions that are each desirable or not.
    Labels(Kto),
}

/// The losses of a pair.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum PairLosses {
    /// A single loss.
    One(PreferenceLoss),
    /// Several, which are added by their weights.
    Several {
        /// In the order of the manifest.
        losses: Vec<WeightedLoss>,
    },
}

/// One of several losses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WeightedLoss {
    /// The loss of a pair.
    #[serde(flatten)]
    pub loss: PreferenceLoss,
    /// Its weight.
    pub weight: f64,
}

impl PairLosses {
    /// Every loss with its weight.
    pub fn weighted(&self) -> Vec<(PreferenceLoss, f64)> {
        match self {
            Self::One(loss) => vec![(*loss, 1.0)],
            Self::Several { losses } => losses.iter().map(|one| (one.loss, one.weight)).collect(),
        }
    }
}

/// How pairs of completions become a loss.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PairPreference {
    /// The losses of a pair.
    #[serde(flatten)]
    pub losses: PairLosses,
    /// The divergence whose derivative scores a completion.
    #[serde(flatten)]
    pub divergence: Divergence,
    /// Weight of tokens behind the length of the shorter completion; `None` for 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length_desensitization: Option<f64>,
    /// Whether a pair is weighed by how likely the actor is to sample it.
    pub weigh_by_policy: bool,
    /// Weight of the negative log-likelihood of a chosen token.
    pub sft_weight: f64,
}

impl Preference {
    /// Whether log-probs under the reference are read.
    pub fn reads_reference(&self) -> bool {
        match self {
            Self::Pairs(pairs) => pairs.losses.weighted().iter().any(|(loss, _)| loss.reads_reference()),
            Self::Labels(_) => true,
        }
    }
}

/// Everything that reinforcement learning needs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyGradient {
    /// How rewards become advantages.
    pub advantage: AdvantageEstimator,
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
    /// Sampling again for groups without differing rewards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamic_sampling: Option<DynamicSamplingSpec>,
    /// Drawing samples again by their rewards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reweighting: Option<ReweightingSpec>,
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
    /// Factor of the loss of positive examples; 0 for none.
    pub positive_coefficient: f64,
    /// The reward above which an example is positive; `None` without that loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub positive_threshold: Option<f64>,
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
        let has_critic = advantage.reads(EstimatorInput::Values);
        let learns_from = spec.kind.learns_from();
        let policy_gradient = (learns_from == LearnsFrom::Rewards).then(|| PolicyGradient {
            advantage,
            critic: has_critic.then(|| resolve_critic(spec.critic.clone().unwrap_or_default(), preset)),
            loss: PolicyGradientLoss {
                policy: resolve_policy_loss(&loss, preset),
                aggregation: resolve_aggregation(&loss, preset, rollout),
                entropy_coefficient: loss.entropy_coefficient.unwrap_or(0.0),
                positive_coefficient: positive_coefficient(&loss, preset),
                positive_threshold: (positive_coefficient(&loss, preset) > 0.0)
                    .then(|| loss.positive_threshold.unwrap_or(0.0)),
            },
            kl: resolve_kl(&spec.kl.clone().unwrap_or_default(), preset),
            importance_correction: spec.importance_correction.clone(),
            dynamic_sampling: spec.dynamic_sampling.clone().or(preset.dynamic_sampling.clone()),
            reweighting: spec.reweighting.or(preset.reweighting),
        });
        let preference = spec.preference.clone().unwrap_or_default();
        Self {
            kind: spec.kind,
            preset: spec.preset,
            cold_start: spec.cold_start.clone(),
            policy_gradient,
            preference: learns_from
                .is_preference()
                .then(|| resolve_preference(learns_from, &preference, preset)),
            reference_sync: spec.reference_sync,
            reward_model: (learns_from == LearnsFrom::ScoredPairs)
                .then(|| spec.reward_model.unwrap_or_default()),
            process_reward: (learns_from == LearnsFrom::Steps)
                .then(|| spec.process_reward.clone().unwrap_or_default()),
        }
    }

    /// Whether it samples the completions that it learns from.
    pub fn samples(&self) -> bool {
        self.kind.samples()
    }

    /// The output head of the trained model.
    pub fn head(&self) -> OutputHead {
        match (&self.reward_model, &self.process_reward) {
            (Some(_), _) => OutputHead::Sequence,
            (None, Some(_)) => OutputHead::Tokens,
            (None, None) => OutputHead::Vocabulary,
        }
    }

    /// Whether it learns from demonstrations alone.
    pub fn is_supervised(&self) -> bool {
        self.kind.learns_from() == LearnsFrom::Demonstrations
    }

    /// Whether it reads log-probs under a reference policy.
    pub fn reads_reference(&self) -> bool {
        let has_kl = self.policy_gradient.as_ref().is_some_and(|algorithm| algorithm.kl.term().is_some());
        has_kl || self.preference.as_ref().is_some_and(Preference::reads_reference)
    }
}

fn resolve_preference(learns_from: LearnsFrom, spec: &PreferenceSpec, preset: &Preset) -> Preference {
    let loss = PreferenceLoss::resolve(spec.loss.unwrap_or(preset.preference), &spec.parameters);
    if learns_from == LearnsFrom::Labels {
        return Preference::Labels(Kto {
            beta: loss.beta(),
            desirable_weight: spec.desirable_weight.unwrap_or(1.0),
            undesirable_weight: spec.undesirable_weight.unwrap_or(1.0),
            reference_point: spec.reference_point.unwrap_or(true),
        });
    }
    let divergence = match spec.divergence.unwrap_or_default() {
        PreferenceDivergence::ReverseKl => Divergence::ReverseKl,
        PreferenceDivergence::ForwardKl => Divergence::ForwardKl,
        PreferenceDivergence::JensenShannon => Divergence::JensenShannon,
        PreferenceDivergence::Alpha => Divergence::Alpha { alpha: spec.divergence_alpha.unwrap_or(0.5) },
    };
    let losses = if spec.losses.is_empty() {
        PairLosses::One(loss)
    } else {
        PairLosses::Several { losses: spec.losses.iter().map(resolve_weighted).collect() }
    };
    Preference::Pairs(PairPreference {
        losses,
        divergence,
        length_desensitization: spec.length_desensitization,
        weigh_by_policy: spec.weigh_by_policy.unwrap_or(false),
        sft_weight: spec.sft_weight.unwrap_or(preset.sft_weight),
    })
}

fn resolve_weighted(spec: &WeightedLossSpec) -> WeightedLoss {
    let loss = PreferenceLoss::resolve(spec.loss, &spec.parameters);
    WeightedLoss { loss, weight: spec.weight.unwrap_or(1.0) }
}

fn resolve_critic(spec: CriticSpec, preset: &Preset) -> CriticSpec {
    CriticSpec { warmup_steps: spec.warmup_steps.or(Some(preset.critic_warmup_steps)), ..spec }
}

fn positive_coefficient(spec: &LossSpec, preset: &Preset) -> f64 {
    spec.positive_coefficient.unwrap_or(preset.positive_coefficient)
}

fn resolve_advantage(spec: &AdvantageSpec, preset: &Preset) -> AdvantageEstimator {
    let estimator = spec.estimator.unwrap_or(preset.estimator);
    AdvantageEstimator::resolve(estimator, &spec.parameters.or(&preset.advantage))
}

fn resolve_policy_loss(spec: &LossSpec, preset: &Preset) -> PolicyLoss {
    PolicyLoss::resolve(spec.policy.unwrap_or(preset.policy), &spec.parameters.or(&preset.loss))
}

fn resolve_aggregation(spec: &LossSpec, preset: &Preset, rollout: &RolloutSpec) -> Aggregation {
    if let (None, Some(own)) = (spec.aggregation, resolve_policy_loss(spec, preset).aggregation()) {
        return own;
    }
    match spec.aggregation.unwrap_or(preset.aggregation) {
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
        KlPlacement::Loss => Kl::Loss(term(preset.kl_loss_estimator)),
        KlPlacement::Reward => Kl::Reward(term(KlEstimator::K1)),
    }
}
