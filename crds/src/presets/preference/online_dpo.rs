//! Online DPO: DPO on the policy's own samples.

use super::super::{Declaration, LearnsFrom, Preset};

pub(in crate::presets) const PRESET: Declaration = Declaration {
    name: "OnlineDPO",
    doc: "DPO on the best and the worst of a rollout group (<https://arxiv.org/abs/2402.04792>).\n\n\
          The loss is that of DPO.",
    learns_from: LearnsFrom::RankedSamples,
    preset: |_| Preset::default(),
};
