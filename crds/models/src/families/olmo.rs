//! Families of the Allen Institute for AI.

pub(super) mod olmo2;
pub(super) mod olmo3;
