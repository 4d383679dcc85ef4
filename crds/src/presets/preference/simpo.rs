//! SimPO: simple preference optimization.

use super::super::{Declaration, LearnsFrom, Preset};
use crate::spec::PreferenceLossKind;

pub(in crate::presets) const PRESET: Declaration = Declaration {
    name: "SimPO",
    doc: "Mean log-probs of a pair with a margin, without a reference \
          (<https://arxiv.org/abs/2405.14734>).\n\n\
          Equation 6; beta 2 and a margin of 0.5, the lower ends of its table 8.",
    learns_from: LearnsFrom::Pairs,
    preset: |_| Preset { preference: PreferenceLossKind::SimPo, ..Preset::default() },
};
