//! Declaration of a preset: the data from which it learns, and its values.

use rlt_algorithms::declaration::Parameters;
use rlt_algorithms::kl::KlEstimator;

use crate::spec::{
    AdvantageEstimatorKind, DynamicSamplingSpec, KlPlacement, LossAggregation, OverlongRewardSpec,
    PolicyLossKind, PreferenceLossKind, ReweightingSpec, ScheduleKind,
};

/// Declaration of a preset, one constant in its file.
pub(crate) struct Declaration {
    /// Name in manifests.
    pub(super) name: &'static str,
    /// Documentation; the first paragraph is the description in the CRD.
    pub(super) doc: &'static str,
    pub(super) learns_from: LearnsFrom,
    /// Returns the preset's values for completions of at most the given number of tokens.
    pub(super) preset: fn(u32) -> Preset,
}

/// Kind of data from which an algorithm learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearnsFrom {
    /// Demonstrations from a data set.
    Demonstrations,
    /// Rewards of completions that the job samples.
    Rewards,
    /// Pairs of completions from a data set, one of which is preferred.
    Pairs,
    /// Completions from a data set, each labelled desirable or undesirable.
    Labels,
    /// The best and the worst of the completions that the job samples for a prompt.
    RankedSamples,
    /// Pairs of completions from a data set, for training a reward model.
    ScoredPairs,
    /// Completions from a data set whose steps are each labelled right or wrong, for training a process
    /// reward model.
    Steps,
}

/// Values of an algorithm's fields that the manifest leaves open.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    /// Estimator that turns rewards into advantages.
    pub estimator: AdvantageEstimatorKind,
    /// Parameters of advantage estimators that differ from the estimator's own defaults.
    pub advantage: Parameters<AdvantageEstimatorKind>,
    /// Policy loss of a token or sequence.
    pub policy: PolicyLossKind,
    /// Parameters of policy losses that differ from the loss's own defaults.
    pub loss: Parameters<PolicyLossKind>,
    /// Aggregation of token losses over a batch.
    pub aggregation: LossAggregation,
    /// Preference loss, for kinds that have one.
    pub preference: PreferenceLossKind,
    /// Weight of the negative log-likelihood of chosen completions, which is added to the preference loss.
    pub sft_weight: f64,
    /// Placement of the KL divergence: in the loss, in the reward, or none.
    pub kl_placement: KlPlacement,
    /// Factor of the KL divergence, also for a placement that the manifest adds.
    pub kl_coefficient: f64,
    /// Estimator of a KL divergence in the loss.
    pub kl_loss_estimator: KlEstimator,
    /// Factor of the additional loss of positive examples; 0 for none.
    pub positive_coefficient: f64,
    /// Number of first steps in which only the critic learns.
    pub critic_warmup_steps: u32,
    /// Resampling of samples by their rewards; `None` for none.
    pub reweighting: Option<ReweightingSpec>,
    /// Additional rollouts for groups whose rewards are all equal; `None` for none.
    pub dynamic_sampling: Option<DynamicSamplingSpec>,
    /// Penalty on completions close to the length limit; `None` for none.
    pub overlong: Option<OverlongRewardSpec>,
    /// Peak learning rate of the trained model: the policy, or a reward model.
    pub learning_rate: f64,
    /// Decoupled weight decay of AdamW.
    pub weight_decay: f64,
    /// Shape of the learning rate after the warm-up.
    pub schedule: ScheduleKind,
}

/// Values that presets share unless they set others: GRPO's advantages, PPO's loss with clip 0.2, no KL.
impl Default for Preset {
    fn default() -> Self {
        Self {
            estimator: AdvantageEstimatorKind::Grpo,
            advantage: Parameters::default(),
            policy: PolicyLossKind::Vanilla,
            loss: Parameters::default(),
            aggregation: LossAggregation::TokenMean,
            preference: PreferenceLossKind::Sigmoid,
            sft_weight: 0.0,
            kl_placement: KlPlacement::None,
            kl_coefficient: 0.001,
            // The value of K3 is never negative, and the gradient of K2 is that of the divergence itself.
            kl_loss_estimator: KlEstimator::K3StraightThrough,
            positive_coefficient: 0.0,
            critic_warmup_steps: 0,
            reweighting: None,
            dynamic_sampling: None,
            overlong: None,
            learning_rate: 1e-6,
            weight_decay: 0.01,
            schedule: ScheduleKind::Constant,
        }
    }
}

impl LearnsFrom {
    /// Whether the job samples the completions from which it learns.
    pub fn samples(self) -> bool {
        matches!(self, Self::Rewards | Self::RankedSamples)
    }

    /// Whether the data are preferences, from a data set or by rewards.
    pub fn is_preference(self) -> bool {
        matches!(self, Self::Pairs | Self::Labels | Self::RankedSamples)
    }

    /// Whether the trained model is a reward model instead of a policy.
    pub fn trains_reward_model(self) -> bool {
        matches!(self, Self::ScoredPairs | Self::Steps)
    }

    /// Whether the loss needs the scores of full completions, which are computed in a pass before the
    /// gradient's.
    pub fn scores_completions(self) -> bool {
        !matches!(self, Self::Demonstrations | Self::Rewards)
    }

    /// Whether jobs of a kind never read log-probs of a reference policy.
    pub fn never_reads_reference(self) -> bool {
        matches!(self, Self::Demonstrations | Self::ScoredPairs | Self::Steps)
    }

    /// Whether a step is one update, with a loss that needs neither rewards nor advantages.
    pub fn updates_once(self) -> bool {
        self != Self::Rewards
    }

    /// Number of completions in one row of the data set; `None` where completions are sampled.
    pub fn completions_of_row(self) -> Option<u64> {
        match self {
            Self::Demonstrations | Self::Steps => Some(1),
            Self::Pairs | Self::Labels | Self::ScoredPairs => Some(2),
            Self::Rewards | Self::RankedSamples => None,
        }
    }
}
