//! Vision towers: their configuration, the names of their tensors, and a new tower.

pub(super) mod new_tower;
pub(super) mod tower;
pub(super) mod vision;
