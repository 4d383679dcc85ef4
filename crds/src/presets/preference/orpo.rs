//! ORPO: odds-ratio preference optimization.

use super::super::{Declaration, LearnsFrom, Preset};
use crate::spec::PreferenceLossKind;

pub(in crate::presets) const PRESET: Declaration = Declaration {
    name: "ORPO",
    doc: "Likelihood of the chosen completion and odds of the pair, without a reference \
          (<https://arxiv.org/abs/2403.07691>).\n\n\
          Equation 6; lambda 0.1.",
    learns_from: LearnsFrom::Pairs,
    preset: |_| Preset { preference: PreferenceLossKind::Orpo, sft_weight: 1.0, ..Preset::default() },
};
