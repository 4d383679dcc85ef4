//! PPO: proximal policy optimization with a critic.

use super::{Declaration, LearnsFrom, Preset};
use crate::spec::AdvantageEstimatorKind;

pub(super) const PRESET: Declaration = Declaration {
    name: "PPO",
    doc: "Proximal policy optimization with a critic (<https://arxiv.org/abs/1707.06347>).\n\n\
          With GAE, as verl runs it: gamma and lambda 1, clip 0.2, token mean, no KL.",
    learns_from: LearnsFrom::Rewards,
    preset: |_| Preset { estimator: AdvantageEstimatorKind::Gae, ..Preset::default() },
};
