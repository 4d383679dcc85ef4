//! The preset Dr. GRPO: GRPO done right.

use rlt_algorithms::advantage::NORMALIZE_BY_STD;
use rlt_algorithms::declaration::Parameters;

use super::{Declaration, LearnsFrom, Preset};
use crate::spec::LossAggregation;

pub(super) const PRESET: Declaration = Declaration {
    name: "DrGRPO",
    doc: "GRPO without its length and difficulty bias (<https://arxiv.org/abs/2503.20783>).\n\n\
          Section 3.2: no standard deviation, a constant length, no KL.",
    learns_from: LearnsFrom::Rewards,
    preset: |_| Preset {
        advantage: Parameters::default().with(&NORMALIZE_BY_STD, false),
        aggregation: LossAggregation::SequenceMeanTokenSumNorm,
        ..Preset::default()
    },
};
