//! What each value of `algorithm.kind` means, in one table, with its sources.

use crate::spec::{
    AdvantageEstimator, AlgorithmKind, DynamicSamplingSpec, KlPlacement, LossAggregation, OverlongRewardSpec,
    PolicyLossKind,
};

/// The parts of an algorithm where the manifest says nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Preset {
    /// How rewards become advantages.
    pub estimator: AdvantageEstimator,
    /// Whether advantages are divided by the group's standard deviation.
    pub normalize_by_std: bool,
    /// The policy loss.
    pub policy: PolicyLossKind,
    /// How far the ratio may fall below 1.
    pub clip_low: f64,
    /// How far the ratio may rise above 1.
    pub clip_high: f64,
    /// How the losses of tokens become the loss of a batch.
    pub aggregation: LossAggregation,
    /// Where the KL divergence acts.
    pub kl_placement: KlPlacement,
    /// Factor of the KL divergence; also the one of a placement that the manifest adds.
    pub kl_coefficient: f64,
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
/// | SFT | uses none of it |
pub fn preset(kind: AlgorithmKind, max_completion_tokens: u32) -> Preset {
    let ppo = Preset {
        estimator: AdvantageEstimator::Grpo,
        normalize_by_std: true,
        policy: PolicyLossKind::Vanilla,
        clip_low: 0.2,
        clip_high: 0.2,
        aggregation: LossAggregation::TokenMean,
        kl_placement: KlPlacement::None,
        kl_coefficient: 0.001,
        dynamic_sampling: None,
        overlong: None,
    };
    match kind {
        AlgorithmKind::Sft => ppo,
        AlgorithmKind::Ppo => Preset { estimator: AdvantageEstimator::Gae, ..ppo },
        AlgorithmKind::Grpo => Preset {
            aggregation: LossAggregation::SequenceMeanTokenMean,
            kl_placement: KlPlacement::Loss,
            kl_coefficient: 0.04,
            ..ppo
        },
        AlgorithmKind::DrGrpo => {
            Preset { normalize_by_std: false, aggregation: LossAggregation::SequenceMeanTokenSumNorm, ..ppo }
        }
        AlgorithmKind::Dapo => Preset {
            clip_high: 0.28,
            dynamic_sampling: Some(DynamicSamplingSpec::default()),
            overlong: Some(OverlongRewardSpec {
                buffer_tokens: (max_completion_tokens / 5).max(1),
                penalty_factor: 1.0,
            }),
            ..ppo
        },
        AlgorithmKind::Rloo => Preset {
            estimator: AdvantageEstimator::Rloo,
            aggregation: LossAggregation::SequenceMeanTokenSum,
            kl_placement: KlPlacement::Reward,
            kl_coefficient: 0.05,
            ..ppo
        },
        AlgorithmKind::ReinforcePlusPlus => Preset {
            estimator: AdvantageEstimator::ReinforcePlusPlus,
            kl_placement: KlPlacement::Reward,
            kl_coefficient: 0.01,
            ..ppo
        },
        AlgorithmKind::ReMax => {
            Preset { estimator: AdvantageEstimator::ReMax, kl_placement: KlPlacement::Reward, ..ppo }
        }
        AlgorithmKind::Gspo => Preset {
            policy: PolicyLossKind::Gspo,
            clip_low: 3e-4,
            clip_high: 4e-4,
            aggregation: LossAggregation::SequenceMeanTokenMean,
            ..ppo
        },
        AlgorithmKind::Cispo => {
            Preset { policy: PolicyLossKind::Cispo, clip_low: 1.0, clip_high: 4.0, ..ppo }
        }
    }
}
