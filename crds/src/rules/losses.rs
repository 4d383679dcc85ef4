//! Rules of losses: of policies and of preferences, and of the parameters of their formulas.

pub(super) mod loss;
pub(super) mod parameters;
pub(super) mod preference;
