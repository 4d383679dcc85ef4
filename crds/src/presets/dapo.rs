//! DAPO: decoupled clip and dynamic sampling.

use rlt_algorithms::declaration::Parameters;
use rlt_algorithms::loss::CLIP_HIGH;

use super::{Declaration, LearnsFrom, Preset};
use crate::spec::{DynamicSamplingSpec, OverlongRewardSpec};

pub(super) const PRESET: Declaration = Declaration {
    name: "DAPO",
    doc: "Higher upper clip, dynamic sampling, token-level loss, overlong shaping \
          (<https://arxiv.org/abs/2503.14476>).\n\n\
          Sections 3 and 4.1: clip 0.2/0.28, token mean, no KL, dynamic sampling, a buffer of 4096 in \
          20480 tokens.",
    learns_from: LearnsFrom::Rewards,
    preset: |max_completion_tokens| Preset {
        loss: Parameters::default().with(&CLIP_HIGH, 0.28),
        dynamic_sampling: Some(DynamicSamplingSpec::default()),
        overlong: Some(OverlongRewardSpec {
            buffer_tokens: (max_completion_tokens / 5).max(1),
            penalty_factor: 1.0,
        }),
        ..Preset::default()
    },
};
