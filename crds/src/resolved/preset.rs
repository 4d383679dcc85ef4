//! What each value of `algorithm.kind` means, in one table, with its sources.

use rlt_algorithms::advantage::NORMALIZE_BY_STD;
use rlt_algorithms::declaration::Parameters;
use rlt_algorithms::loss::{CLIP_HIGH, CLIP_LOW};

use crate::spec::{
    AdvantageEstimatorKind, AlgorithmKind, DynamicSamplingSpec, KlPlacement, LossAggregation,
    OverlongRewardSpec, PolicyLossKind, PreferenceLossKind, ReweightingSpec,
};

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
    /// Factor of the loss of positive examples; 0 for none.
    pub positive_coefficient: f64,
    /// Steps in which only the critic learns.
    pub critic_warmup_steps: u32,
    /// Drawing samples anew by their rewards.
    pub reweighting: Option<ReweightingSpec>,
    /// Sampling anew for groups without differing rewards.
    pub dynamic_sampling: Option<DynamicSamplingSpec>,
    /// The penalty on completions close to the limit.
    pub overlong: Option<OverlongRewardSpec>,
}

/// The preset behind a kind, for completions of at most `max_completion_tokens` tokens.
///
/// | kind | source |
/// |---|---|
/// | PPO | arXiv 1707.06347 with GAE, as verl runs it: gamma and lambda 1, clip 0.2, token mean, no KL |
/// | GRPO | DeepSeekMath, arXiv 2402.03300, equations 3 and 4 and section 4.2: mean over samples of the mean over tokens, KL in the loss with 0.04; clip 0.2 as in PPO |
/// | DrGRPO | arXiv 2503.20783, section 3.2: no standard deviation, a constant length, no KL |
/// | DAPO | arXiv 2503.14476, section 3 and 4.1: clip 0.2/0.28, token mean, no KL, dynamic sampling, a buffer of 4096 in 20480 tokens |
/// | RLOO | arXiv 2402.14740, equations 6 and 7: the sequence is the action, so token log-probs are summed; KL in the reward; 0.05 as in TRL |
/// | ReinforcePlusPlus | arXiv 2501.03262, section 3: token mean, KL in the reward; 0.01 as in OpenRLHF |
/// | ReMax | arXiv 2310.10505, algorithm 1; KL in the reward with 0.001 and token mean as in verl's recipe |
/// | GSPO | arXiv 2507.18071, section 5.1: clip 3e-4/4e-4 on the sequence's ratio, mean over sequences of token means |
/// | CISPO | MiniMax-M1, arXiv 2506.13585, equation 4: no lower clip, token mean, no KL; a cap of 5 on the weight as in ScaleRL, arXiv 2510.13786 |
/// | DPO, OnlineDPO | arXiv 2305.18290, equation 7; beta 0.1 as in TRL |
/// | SimPO | arXiv 2405.14734, equation 6; beta 2 and a margin of 0.5, the lower ends of its table 8 |
/// | CPO | arXiv 2401.08417, equation 5 with the likelihood term; beta 0.1 as in TRL |
/// | ORPO | arXiv 2403.07691, equation 6; lambda 0.1 |
/// | KTO | arXiv 2402.01306, equation 8; beta 0.1 and weights of 1 as in TRL |
/// | VAPO | arXiv 2504.05118, sections 4 and 5.1: lambda 1 - 1 / (0.05 l) and 1 for the critic, clip 0.2/0.28, token mean, no KL, 0.1 of the likelihood of positive examples, 50 steps of value pre-training; its groups are `rollout.samplesPerPrompt`, 16 there |
/// | PFPPO | arXiv 2409.06957, as verl's `use_pf_ppo`: PPO on samples drawn anew by the square of their rewards |
/// | SFT, RewardModel | use none of it |
pub fn preset(kind: AlgorithmKind, max_completion_tokens: u32) -> Preset {
    let ppo = Preset {
        estimator: AdvantageEstimatorKind::Grpo,
        advantage: Parameters::default(),
        policy: PolicyLossKind::Vanilla,
        loss: Parameters::default(),
        aggregation: LossAggregation::TokenMean,
        preference: PreferenceLossKind::Sigmoid,
        sft_weight: 0.0,
        kl_placement: KlPlacement::None,
        kl_coefficient: 0.001,
        positive_coefficient: 0.0,
        critic_warmup_steps: 0,
        reweighting: None,
        dynamic_sampling: None,
        overlong: None,
    };
    match kind {
        AlgorithmKind::Sft
        | AlgorithmKind::Dpo
        | AlgorithmKind::OnlineDpo
        | AlgorithmKind::Kto
        | AlgorithmKind::RewardModel => ppo,
        AlgorithmKind::SimPo => Preset { preference: PreferenceLossKind::SimPo, ..ppo },
        AlgorithmKind::Cpo => Preset { preference: PreferenceLossKind::Cpo, sft_weight: 1.0, ..ppo },
        AlgorithmKind::Orpo => Preset { preference: PreferenceLossKind::Orpo, sft_weight: 1.0, ..ppo },
        AlgorithmKind::Ppo => Preset { estimator: AdvantageEstimatorKind::Gae, ..ppo },
        AlgorithmKind::Grpo => Preset {
            aggregation: LossAggregation::SequenceMeanTokenMean,
            kl_placement: KlPlacement::Loss,
            kl_coefficient: 0.04,
            ..ppo
        },
        AlgorithmKind::DrGrpo => Preset {
            advantage: Parameters::default().with(&NORMALIZE_BY_STD, false),
            aggregation: LossAggregation::SequenceMeanTokenSumNorm,
            ..ppo
        },
        AlgorithmKind::Dapo => Preset {
            loss: Parameters::default().with(&CLIP_HIGH, 0.28),
            dynamic_sampling: Some(DynamicSamplingSpec::default()),
            overlong: Some(OverlongRewardSpec {
                buffer_tokens: (max_completion_tokens / 5).max(1),
                penalty_factor: 1.0,
            }),
            ..ppo
        },
        AlgorithmKind::Rloo => Preset {
            estimator: AdvantageEstimatorKind::Rloo,
            aggregation: LossAggregation::SequenceMeanTokenSum,
            kl_placement: KlPlacement::Reward,
            kl_coefficient: 0.05,
            ..ppo
        },
        AlgorithmKind::ReinforcePlusPlus => Preset {
            estimator: AdvantageEstimatorKind::ReinforcePlusPlus,
            kl_placement: KlPlacement::Reward,
            kl_coefficient: 0.01,
            ..ppo
        },
        AlgorithmKind::ReMax => {
            Preset { estimator: AdvantageEstimatorKind::ReMax, kl_placement: KlPlacement::Reward, ..ppo }
        }
        AlgorithmKind::Gspo => Preset {
            policy: PolicyLossKind::Gspo,
            loss: Parameters::default().with(&CLIP_LOW, 3e-4).with(&CLIP_HIGH, 4e-4),
            aggregation: LossAggregation::SequenceMeanTokenMean,
            ..ppo
        },
        AlgorithmKind::Cispo => Preset {
            policy: PolicyLossKind::Cispo,
            loss: Parameters::default().with(&CLIP_LOW, 1.0).with(&CLIP_HIGH, 4.0),
            ..ppo
        },
        AlgorithmKind::Vapo => Preset {
            estimator: AdvantageEstimatorKind::LengthAdaptiveGae,
            loss: Parameters::default().with(&CLIP_HIGH, 0.28),
            positive_coefficient: 0.1,
            critic_warmup_steps: 50,
            ..ppo
        },
        AlgorithmKind::PfPpo => Preset {
            estimator: AdvantageEstimatorKind::Gae,
            reweighting: Some(ReweightingSpec::default()),
            ..ppo
        },
    }
}
