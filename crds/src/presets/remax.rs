//! ReMax: the preset of `algorithm.kind: ReMax`.

use super::{Declaration, LearnsFrom, Preset};
use crate::spec::{AdvantageEstimatorKind, KlPlacement};

pub(super) const PRESET: Declaration = Declaration {
    name: "ReMax",
    doc: "REINFORCE with the greedy completion's reward as the baseline \
          (<https://arxiv.org/abs/2310.10505>).\n\n\
          Algorithm 1; KL in the reward with 0.001 and token mean as in verl's recipe.",
    learns_from: LearnsFrom::Rewards,
    preset: |_| Preset {
        estimator: AdvantageEstimatorKind::ReMax,
        kl_placement: KlPlacement::Reward,
        ..Preset::default()
    },
};
