//! REINFORCE++: the preset of `algorithm.kind: ReinforcePlusPlus`.

use super::{Declaration, LearnsFrom, Preset};
use crate::spec::{AdvantageEstimatorKind, KlPlacement};

pub(super) const PRESET: Declaration = Declaration {
    name: "ReinforcePlusPlus",
    doc: "REINFORCE with KL in the reward and batch-normalised returns \
          (<https://arxiv.org/abs/2501.03262>).\n\n\
          Section 3: token mean, KL in the reward; 0.01 as in OpenRLHF.",
    learns_from: LearnsFrom::Rewards,
    preset: |_| Preset {
        estimator: AdvantageEstimatorKind::ReinforcePlusPlus,
        kl_placement: KlPlacement::Reward,
        kl_coefficient: 0.01,
        ..Preset::default()
    },
};
