//! Process reward models: classifiers of the steps of a completion.

use super::{Declaration, LearnsFrom, Preset};

pub(super) const PRESET: Declaration = Declaration {
    name: "ProcessReward",
    doc: "A process reward model from completions whose steps are each right or wrong: a head of two \
          numbers at the end of each step (<https://arxiv.org/abs/2211.14275>).\n\n\
          It uses no part of a policy gradient.",
    learns_from: LearnsFrom::Steps,
    preset: |_| Preset::default(),
};
