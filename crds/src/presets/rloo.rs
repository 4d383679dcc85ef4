//! RLOO: REINFORCE leave-one-out.

use super::{Declaration, LearnsFrom, Preset};
use crate::spec::{AdvantageEstimatorKind, KlPlacement, LossAggregation};

pub(super) const PRESET: Declaration = Declaration {
    name: "RLOO",
    doc: "REINFORCE with the mean of the other samples as the baseline \
          (<https://arxiv.org/abs/2402.14740>).\n\n\
          Equations 6 and 7: the sequence is the action, so token log-probs are summed; KL in the \
          reward; 0.05 as in TRL.",
    learns_from: LearnsFrom::Rewards,
    preset: |_| Preset {
        estimator: AdvantageEstimatorKind::Rloo,
        aggregation: LossAggregation::SequenceMeanTokenSum,
        kl_placement: KlPlacement::Reward,
        kl_coefficient: 0.05,
        ..Preset::default()
    },
};
