//! GSPO: group sequence policy optimization.

use rlt_algorithms::declaration::Parameters;
use rlt_algorithms::loss::{CLIP_HIGH, CLIP_LOW};

use super::{Declaration, LearnsFrom, Preset};
use crate::spec::{LossAggregation, PolicyLossKind};

pub(super) const PRESET: Declaration = Declaration {
    name: "GSPO",
    doc: "Ratios of whole sequences (<https://arxiv.org/abs/2507.18071>).\n\n\
          Section 5.1: clip 3e-4/4e-4 on the sequence's ratio, mean over sequences of token means.",
    learns_from: LearnsFrom::Rewards,
    preset: |_| Preset {
        policy: PolicyLossKind::Gspo,
        loss: Parameters::default().with(&CLIP_LOW, 3e-4).with(&CLIP_HIGH, 4e-4),
        aggregation: LossAggregation::SequenceMeanTokenMean,
        ..Preset::default()
    },
};
