//! Algorithm with the preset's values filled in, and only the constants that its parts use.

use rlt_algorithms::advantage::{AdvantageEstimator, EstimatorInput};
use rlt_algorithms::kto::Kto;
use rlt_algorithms::loss::{Aggregation, PolicyLoss};
use rlt_algorithms::preference::{Divergence, PreferenceLoss};
use serde::Serialize;

use super::OutputHead;
use crate::presets::Preset;
use crate::spec::{
    AdaptiveKlSpec, AdvantageSpec, AlgorithmKind, AlgorithmSpec, ColdStartSpec, CriticSpec,
    DynamicSamplingSpec, ImportanceCorrectionSpec, KlEstimator, KlPlacement, KlSpec, LearnsFrom,
    LossAggregation, LossSpec, ModelSpec, PreferenceDivergence, PreferenceSpec, PresetProject,
    ProcessRewardTrainingSpec, ReferenceSyncSpec, RewardModelTrainingSpec, ReweightingSpec, RolloutSpec,
    WeightedLossSpec,
};

/// Algorithm of a job, with every default filled in.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedAlgorithm {
    /// Preset on which the algorithm is based.
    pub kind: AlgorithmKind,
    /// Project whose defaults were applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preset: Option<PresetProject>,
    /// Supervised training before the first step; `None` without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cold_start: Option<ResolvedColdStart>,
    /// Policy gradient; `None` for `SFT` and preferences.
    #[serde(flatten)]
    pub policy_gradient: Option<PolicyGradient>,
    /// Preference learning; `None` for other kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preference: Option<Preference>,
    /// How the reference policy follows the actor; `None` if it stays fixed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference_sync: Option<ReferenceSyncSpec>,
    /// Training of a reward model; `None` for other kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reward_model: Option<RewardModelTrainingSpec>,
    /// Training of a process reward model; `None` for other kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process_reward: Option<ProcessRewardTrainingSpec>,
}

/// Supervised training before the first step, with every default filled in.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ResolvedColdStart {
    /// Number of optimizer steps.
    pub steps: u32,
    /// Number of demonstrations per step.
    pub batch_size: u32,
    /// Peak learning rate.
    pub learning_rate: f64,
}

impl ResolvedColdStart {
    /// Fills in the learning rate. A newly initialized model gets a high one. For a pretrained model it is
    /// TRL's default for `SFT`: 2e-5, and ten times as much with an adapter.
    fn resolve(spec: &ColdStartSpec, model: &ModelSpec) -> Self {
        let default = match (&model.architecture, &model.lora) {
            (Some(_), _) => 1e-3,
            (None, Some(_)) => 2e-4,
            (None, None) => 2e-5,
        };
        let ColdStartSpec { steps, batch_size, learning_rate } = *spec;
        Self { steps, batch_size, learning_rate: learning_rate.unwrap_or(default) }
    }
}

/// Loss of preference learning, by the kind of data.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Preference {
    /// Loss of pairs of completions.
    Pairs(PairPreference),
    /// Loss of completions that are each labelled desirable or not (KTO).
    Labels(Kto),
}

/// Losses that are applied to each pair.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum PairLosses {
    /// A single loss of weight 1.
    One(PreferenceLoss),
    /// Weighted sum of several losses.
    Several {
        /// Losses in the order of the manifest.
        losses: Vec<WeightedLoss>,
    },
}

/// One term of a weighted sum of losses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WeightedLoss {
    /// Loss of a pair.
    #[serde(flatten)]
    pub loss: PreferenceLoss,
    /// Factor of the loss in the sum.
    pub weight: f64,
}

impl PairLosses {
    /// Returns all losses with their weights.
    pub fn weighted(&self) -> Vec<(PreferenceLoss, f64)> {
        match self {
            Self::One(loss) => vec![(*loss, 1.0)],
            Self::Several { losses } => losses.iter().map(|one| (one.loss, one.weight)).collect(),
        }
    }
}

/// Preference learning from pairs of completions.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PairPreference {
    /// Losses that are applied to each pair.
    #[serde(flatten)]
    pub losses: PairLosses,
    /// Divergence whose derivative scores a completion.
    #[serde(flatten)]
    pub divergence: Divergence,
    /// Weight of tokens beyond the length of the shorter completion; `None` for 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length_desensitization: Option<f64>,
    /// Whether a pair is weighted by the probability with which the actor samples it.
    pub weigh_by_policy: bool,
    /// Weight of the negative log-likelihood of a chosen token; 0 for none.
    pub sft_weight: f64,
}

impl Preference {
    /// Whether the loss reads log-probs under the reference policy.
    pub fn reads_reference(&self) -> bool {
        match self {
            Self::Pairs(pairs) => pairs.losses.weighted().iter().any(|(loss, _)| loss.reads_reference()),
            Self::Labels(_) => true,
        }
    }
}

/// Settings of policy-gradient training.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyGradient {
    /// Estimator that turns rewards into advantages.
    pub advantage: AdvantageEstimator,
    /// Loss that is computed from advantages.
    pub loss: PolicyGradientLoss,
    /// Critic; `None` for estimators without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critic: Option<CriticSpec>,
    /// KL term that holds the actor near the reference policy.
    pub kl: Kl,
    /// Correction for the difference between the sampling and the trained policy; `None` for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub importance_correction: Option<ImportanceCorrectionSpec>,
    /// Resampling for groups whose rewards are all equal; `None` for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamic_sampling: Option<DynamicSamplingSpec>,
    /// Resampling of samples in proportion to their rewards; `None` for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reweighting: Option<ReweightingSpec>,
}

/// Policy loss of a token, its aggregation over a batch, and the entropy bonus.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyGradientLoss {
    /// Loss of a token or sequence.
    #[serde(flatten)]
    pub policy: PolicyLoss,
    /// Aggregation of token losses over a batch.
    #[serde(flatten)]
    pub aggregation: Aggregation,
    /// Factor of the entropy that is subtracted from the loss; 0 for none.
    pub entropy_coefficient: f64,
    /// Factor of the additional loss of positive examples; 0 for none.
    pub positive_coefficient: f64,
    /// Reward above which an example is positive; `None` without that loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub positive_threshold: Option<f64>,
}

/// KL term to the reference policy, by placement.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "placement")]
pub enum Kl {
    /// No KL term, so no reference policy is needed for it.
    None,
    /// Term that is added to the loss.
    Loss(KlTerm),
    /// Term that is subtracted from each token's reward.
    Reward(KlTerm),
}

/// Constants of the KL term.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct KlTerm {
    /// Estimator of the KL divergence.
    pub estimator: KlEstimator,
    /// Factor of the term; the initial one if it adapts.
    pub coefficient: f64,
    /// Controller that adapts the factor; `None` if it is fixed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adaptive: Option<AdaptiveKlSpec>,
}

impl Kl {
    /// Returns the term, whatever its placement; `None` when no reference policy is needed.
    pub fn term(&self) -> Option<&KlTerm> {
        match self {
            Self::None => None,
            Self::Loss(term) | Self::Reward(term) => Some(term),
        }
    }
}

impl ResolvedAlgorithm {
    pub(super) fn resolve(
        spec: &AlgorithmSpec,
        preset: &Preset,
        rollout: &RolloutSpec,
        model: &ModelSpec,
    ) -> Self {
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
            cold_start: spec.cold_start.as_ref().map(|spec| ResolvedColdStart::resolve(spec, model)),
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

    /// Whether the algorithm samples the completions from which it learns.
    pub fn samples(&self) -> bool {
        self.kind.samples()
    }

    /// Returns the output head of the trained model.
    pub fn head(&self) -> OutputHead {
        match (&self.reward_model, &self.process_reward) {
            (Some(_), _) => OutputHead::Sequence,
            (None, Some(_)) => OutputHead::Tokens,
            (None, None) => OutputHead::Vocabulary,
        }
    }

    /// Whether the algorithm learns from demonstrations only.
    pub fn is_supervised(&self) -> bool {
        self.kind.learns_from() == LearnsFrom::Demonstrations
    }

    /// Whether the algorithm reads log-probs under a reference policy.
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
