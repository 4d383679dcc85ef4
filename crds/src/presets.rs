//! The presets behind `algorithm.kind`, one file each, with name, source, kind of data, and the parts of an
//! algorithm that it selects. The list below registers it; the enum of the custom resource, rules, reference
//! and resolution are derived from it.

#[macro_use]
mod registry;
mod projects;

mod cispo;
mod cpo;
mod dapo;
mod dpo;
mod dr_grpo;
mod grpo;
mod gspo;
mod kto;
mod online_dpo;
mod orpo;
mod pf_ppo;
mod ppo;
mod process_reward;
mod reinforce_plus_plus;
mod remax;
mod reward_model;
mod rloo;
mod sft;
mod simpo;
mod vapo;

use rlt_algorithms::declaration::Parameters;
use rlt_algorithms::kl::KlEstimator;

pub use projects::PresetProject;

use crate::spec::{
    AdvantageEstimatorKind, DynamicSamplingSpec, KlPlacement, LossAggregation, OverlongRewardSpec,
    PolicyLossKind, PreferenceLossKind, ReweightingSpec, ScheduleKind,
};

register_presets! {
    sft::Sft,
    ppo::Ppo,
    grpo::Grpo,
    dr_grpo::DrGrpo,
    dapo::Dapo,
    rloo::Rloo,
    reinforce_plus_plus::ReinforcePlusPlus,
    remax::ReMax,
    gspo::Gspo,
    cispo::Cispo,
    dpo::Dpo,
    simpo::SimPo,
    cpo::Cpo,
    orpo::Orpo,
    kto::Kto,
    online_dpo::OnlineDpo,
    vapo::Vapo,
    pf_ppo::PfPpo,
    reward_model::RewardModel,
    process_reward::ProcessReward,
}

/// A preset.
pub(crate) struct Declaration {
    /// Its name in manifests.
    name: &'static str,
    /// Its documentation. The first paragraph is the description in the CRD.
    doc: &'static str,
    learns_from: LearnsFrom,
    /// Its parts, for completions of at most so many tokens.
    preset: fn(u32) -> Preset,
}

/// The kind of data that an algorithm learns from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LearnsFrom {
    /// Demonstrations of a data set.
    Demonstrations,
    /// Rewards of completions that it samples.
    Rewards,
    /// Pairs of completions of a data set, of which one is preferred.
    Pairs,
    /// Completions of a data set that are each desirable or undesirable.
    Labels,
    /// The best and the worst of the completions that it samples for a prompt.
    RankedSamples,
    /// Pairs of completions of a data set, as a model that scores them.
    ScoredPairs,
    /// Completions of a data set whose steps are each right or wrong, as a model that judges them.
    Steps,
}

/// The parts of an algorithm where the manifest says nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    /// How rewards become advantages.
    pub estimator: AdvantageEstimatorKind,
    /// Parameters of estimators, where they are not the estimator's own.
    pub advantage: Parameters<AdvantageEstimatorKind>,
    /// The policy loss.
    pub policy: PolicyLossKind,
    /// Parameters of policy losses, where they are not the loss's own.
    pub loss: Parameters<PolicyLossKind>,
    /// How the losses of tokens become the loss of a batch.
    pub aggregation: LossAggregation,
    /// The loss of preferences, for kinds that have any.
    pub preference: PreferenceLossKind,
    /// Weight of the likelihood of chosen completions beside it.
    pub sft_weight: f64,
    /// Where the KL divergence acts.
    pub kl_placement: KlPlacement,
    /// Factor of the KL divergence; also the one of a placement that the manifest adds.
    pub kl_coefficient: f64,
    /// The estimator of a KL divergence in the loss.
    pub kl_loss_estimator: KlEstimator,
    /// Factor of the loss of positive examples; 0 for none.
    pub positive_coefficient: f64,
    /// Steps in which only the critic learns.
    pub critic_warmup_steps: u32,
    /// Resampling by rewards.
    pub reweighting: Option<ReweightingSpec>,
    /// Further rollouts for groups without differing rewards.
    pub dynamic_sampling: Option<DynamicSamplingSpec>,
    /// The penalty on completions close to the limit.
    pub overlong: Option<OverlongRewardSpec>,
    /// Peak learning rate of the policy, or of the model that judges.
    pub learning_rate: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// The learning rate's shape after the warm-up.
    pub schedule: ScheduleKind,
}

/// The defaults of presets: advantages and loss of PPO without a critic, clip 0.2, no KL.
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
            // The value of K3 never falls below 0 and the gradient of K2 is that of the divergence itself.
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
    /// Whether the completions that it learns from are sampled.
    pub fn samples(self) -> bool {
        matches!(self, Self::Rewards | Self::RankedSamples)
    }

    /// Whether these are preferences, of a data set or of rewards.
    pub fn is_preference(self) -> bool {
        matches!(self, Self::Pairs | Self::Labels | Self::RankedSamples)
    }

    /// Whether a model is trained that judges, and no policy.
    pub fn trains_reward_model(self) -> bool {
        matches!(self, Self::ScoredPairs | Self::Steps)
    }

    /// Whether a step is one update of a loss that knows neither rewards nor advantages.
    pub fn updates_once(self) -> bool {
        self != Self::Rewards
    }

    /// Completions of a row of the data set; `None` where they are sampled.
    pub fn completions_of_row(self) -> Option<u64> {
        match self {
            Self::Demonstrations | Self::Steps => Some(1),
            Self::Pairs | Self::Labels | Self::ScoredPairs => Some(2),
            Self::Rewards | Self::RankedSamples => None,
        }
    }
}

impl AlgorithmKind {
    /// The kind of data that it learns from.
    pub fn learns_from(self) -> LearnsFrom {
        self.declaration().learns_from
    }

    /// Whether it samples the completions that it learns from.
    pub fn samples(self) -> bool {
        self.learns_from().samples()
    }

    /// Its parts where the manifest says nothing, for completions of at most `max_completion_tokens` tokens.
    pub fn preset(self, max_completion_tokens: u32) -> Preset {
        (self.declaration().preset)(max_completion_tokens)
    }
}
