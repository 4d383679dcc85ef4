//! Parts of layers that know no layer: weights, products, norms, rotary embeddings and operations.

pub(super) mod base_weight;
pub(super) mod norms;
pub(super) mod ops;
pub(super) mod projection;
pub(super) mod random;
pub(super) mod rope;
