//! CPO: contrastive preference optimization.

use super::super::{Declaration, LearnsFrom, Preset};
use crate::spec::PreferenceLossKind;

pub(in crate::presets) const PRESET: Declaration = Declaration {
    name: "CPO",
    doc: "Contrastive preference optimization, without a reference \
          (<https://arxiv.org/abs/2401.08417>).\n\n\
          Equation 5 with the likelihood term; beta 0.1 as in TRL.",
    learns_from: LearnsFrom::Pairs,
    preset: |_| Preset { preference: PreferenceLossKind::Cpo, sft_weight: 1.0, ..Preset::default() },
};
