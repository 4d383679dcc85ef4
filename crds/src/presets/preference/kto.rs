//! KTO: Kahneman-Tversky optimization.

use super::super::{Declaration, LearnsFrom, Preset};

pub(in crate::presets) const PRESET: Declaration = Declaration {
    name: "KTO",
    doc: "Completions that are each desirable or undesirable (<https://arxiv.org/abs/2402.01306>).\n\n\
          Equation 8; beta 0.1 and weights of 1 as in TRL.",
    learns_from: LearnsFrom::Labels,
    preset: |_| Preset::default(),
};
