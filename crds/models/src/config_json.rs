//! Parser and writer of `config.json`: its fields with their bounds, the values that are refused, and what
//! all families have in common.

mod bounds;
pub(super) mod fields;
pub(super) mod parse;
pub(super) mod text_model;
mod unknown;
pub(super) mod write;
