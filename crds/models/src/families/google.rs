//! Families of Google.

pub(super) mod gemma;
pub(super) mod gemma2;
pub(super) mod gemma3;
