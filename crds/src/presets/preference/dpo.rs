//! DPO: direct preference optimization.

use super::super::{Declaration, LearnsFrom, Preset};

pub(in crate::presets) const PRESET: Declaration = Declaration {
    name: "DPO",
    doc: "Direct preference optimization on pairs of a data set (<https://arxiv.org/abs/2305.18290>).\n\n\
          Equation 7; beta 0.1 as in TRL.",
    learns_from: LearnsFrom::Pairs,
    preset: |_| Preset::default(),
};
