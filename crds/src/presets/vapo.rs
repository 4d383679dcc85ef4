//! VAPO: value-based augmented PPO.

use rlt_algorithms::declaration::Parameters;
use rlt_algorithms::loss::CLIP_HIGH;

use super::{Declaration, LearnsFrom, Preset};
use crate::spec::AdvantageEstimatorKind;

pub(super) const PRESET: Declaration = Declaration {
    name: "VAPO",
    doc: "PPO for long chains of thought: pre-trained values, a lambda for each length, higher upper \
          clip, and the likelihood of positive examples (<https://arxiv.org/abs/2504.05118>).\n\n\
          Sections 4 and 5.1: lambda 1 - 1 / (0.05 l) and 1 for the critic, clip 0.2/0.28, token mean, \
          no KL, 0.1 of the likelihood of positive examples, 50 steps of value pre-training; its \
          groups are `rollout.samplesPerPrompt`, 16 there.",
    learns_from: LearnsFrom::Rewards,
    preset: |_| Preset {
        estimator: AdvantageEstimatorKind::LengthAdaptiveGae,
        loss: Parameters::default().with(&CLIP_HIGH, 0.28),
        positive_coefficient: 0.1,
        critic_warmup_steps: 50,
        ..Preset::default()
    },
};
