//! SFT: supervised training on demonstrations.

use super::{Declaration, LearnsFrom, Preset};

pub(super) const PRESET: Declaration = Declaration {
    name: "SFT",
    doc: "Supervised training on demonstrations alone.\n\n\
          It uses no part of a policy gradient.",
    learns_from: LearnsFrom::Demonstrations,
    preset: |_| Preset::default(),
};
