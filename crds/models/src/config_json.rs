//! A `config.json` as it is read and written: its fields with their bounds, what is refused, and the parser
//! of all families.

mod bounds;
pub(super) mod fields;
pub(super) mod parse;
pub(super) mod text_model;
mod unknown;
pub(super) mod write;
