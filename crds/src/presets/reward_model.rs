//! Reward models trained on pairs of completions.

use super::{Declaration, LearnsFrom, Preset};

pub(super) const PRESET: Declaration = Declaration {
    name: "RewardModel",
    doc: "A reward model from pairs of a data set: the model without its head for tokens, with a head \
          of one number at the last token (Bradley-Terry, <https://arxiv.org/abs/2203.02155>).\n\n\
          It uses no part of a policy gradient.",
    learns_from: LearnsFrom::ScoredPairs,
    preset: |_| Preset::default(),
};
