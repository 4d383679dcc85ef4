//! Building blocks of layers: parameters, weights, products, norms, rotary embeddings, operations.

pub(super) mod base_weight;
mod dora;
pub(super) mod norms;
pub(super) mod ops;
pub(super) mod parameters;
pub(super) mod projection;
pub(super) mod random;
pub(super) mod rope;
