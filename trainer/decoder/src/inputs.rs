//! Inputs of a layer: packed tokens, image features, and the products and projections of its weights.

pub(super) mod image_embeddings;
pub(super) mod latent;
pub(super) mod packed;
pub(super) mod products;
pub(super) mod training_products;
