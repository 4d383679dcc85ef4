//! CISPO: clipped importance-sampling weights.

use rlt_algorithms::declaration::Parameters;
use rlt_algorithms::loss::{CLIP_HIGH, CLIP_LOW};

use super::{Declaration, LearnsFrom, Preset};
use crate::spec::PolicyLossKind;

pub(super) const PRESET: Declaration = Declaration {
    name: "CISPO",
    doc: "Clipped importance weights, no clipped tokens (<https://arxiv.org/abs/2506.13585>).\n\n\
          MiniMax-M1, equation 4: no lower clip, token mean, no KL; a cap of 5 on the weight as in \
          ScaleRL, arXiv 2510.13786.",
    learns_from: LearnsFrom::Rewards,
    preset: |_| Preset {
        policy: PolicyLossKind::Cispo,
        loss: Parameters::default().with(&CLIP_LOW, 1.0).with(&CLIP_HIGH, 4.0),
        ..Preset::default()
    },
};
