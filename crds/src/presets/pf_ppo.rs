//! PF-PPO: PPO with policy filtration.

use super::{Declaration, LearnsFrom, Preset};
use crate::spec::{AdvantageEstimatorKind, ReweightingSpec};

pub(super) const PRESET: Declaration = Declaration {
    name: "PFPPO",
    doc: "PPO on samples that are drawn anew by the reliability of their rewards (policy filtration, \
          <https://arxiv.org/abs/2409.06957>).\n\n\
          As verl's `use_pf_ppo`: by the square of their rewards.",
    learns_from: LearnsFrom::Rewards,
    preset: |_| Preset {
        estimator: AdvantageEstimatorKind::Gae,
        reweighting: Some(ReweightingSpec::default()),
        ..Preset::default()
    },
};
