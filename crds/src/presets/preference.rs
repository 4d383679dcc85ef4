//! Presets that learn from preferences.

pub(super) mod cpo;
pub(super) mod dpo;
pub(super) mod kto;
pub(super) mod online_dpo;
pub(super) mod orpo;
pub(super) mod simpo;
