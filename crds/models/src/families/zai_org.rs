//! Families of Z.ai, formerly THUDM.

pub(super) mod glm;
pub(super) mod glm4;
