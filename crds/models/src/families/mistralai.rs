//! Families of Mistral AI.

pub(super) mod ministral;
pub(super) mod mistral;
pub(super) mod mixtral;
