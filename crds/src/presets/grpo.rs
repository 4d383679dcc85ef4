//! GRPO: group-relative policy optimization.

use super::{Declaration, LearnsFrom, Preset};
use crate::spec::{KlPlacement, LossAggregation};

pub(super) const PRESET: Declaration = Declaration {
    name: "GRPO",
    doc: "Group-relative policy optimization (<https://arxiv.org/abs/2402.03300>).\n\n\
          DeepSeekMath, equations 3 and 4 and section 4.2: mean over samples of the mean over tokens, \
          KL in the loss with 0.04; clip 0.2 as in PPO.",
    learns_from: LearnsFrom::Rewards,
    preset: |_| Preset {
        aggregation: LossAggregation::SequenceMeanTokenMean,
        kl_placement: KlPlacement::Loss,
        kl_coefficient: 0.04,
        ..Preset::default()
    },
};
