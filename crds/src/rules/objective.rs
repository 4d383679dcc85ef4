//! Rules of what is optimized: the algorithm, its losses, references and the parameters of formulas.

pub(super) mod algorithm;
pub(super) mod loss;
pub(super) mod parameters;
pub(super) mod preference;
pub(super) mod reference;
pub(super) mod roles;
