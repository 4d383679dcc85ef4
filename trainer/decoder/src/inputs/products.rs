//! Traits of a decoder layer's matrix products: computed from the layer's own weights in training, or from an
//! engine's packed ones. The body of the layer is in [`crate::layer`].

use tch::Tensor;

use super::super::experts::ExpertProducts;
use super::super::projection::Adapter;
use super::latent::LatentProducts;

/// Linear layers of a decoder layer: the trainer's, with autograd and adapters, or an engine's packed ones.
/// Inputs and outputs are [tokens, features] in the compute dtype.
pub trait Projections {
    /// Failure of an exchange between tensor-parallel ranks; nothing fails where a rank has the full weights.
    type Error;
    /// Whether the layer uses the norms that are trained with an adapter. An engine's layers have only one
    /// set.
    fn adapter(&self) -> Adapter {
        Adapter::Off
    }
    /// Queries [tokens, heads * head_dim], then keys and values [tokens, kv_heads * head_dim].
    fn qkv(&self, normed_td: &Tensor) -> (Tensor, Tensor, Tensor);
    /// The products of latent attention, which replace [`Self::qkv`].
    fn latent(&self) -> impl LatentProducts;
    /// Projects attention's output [tokens, heads * width of values] to [tokens, hidden].
    ///
    /// # Errors
    /// [`Self::Error`].
    fn output(&self, attended: &Tensor) -> Result<Tensor, Self::Error>;
    /// The feed-forward part of the layer.
    fn feed_forward(
        &self,
    ) -> FeedForward<impl DenseProducts<Error = Self::Error>, impl ExpertProducts<Error = Self::Error>>;
}

/// The layer's feed-forward part: one block for all tokens, or experts.
#[derive(Debug)]
pub enum FeedForward<D, E> {
    /// One block for all tokens.
    Dense(D),
    /// A router with its experts.
    Experts {
        /// Router and experts.
        experts: E,
        /// A block for all tokens whose output is added to that of the experts (shared expert).
        shared_expert: Option<D>,
    },
}

/// The products of a feed-forward block.
pub trait DenseProducts {
    /// Failure of an exchange between tensor-parallel ranks, as in [`Projections::Error`].
    type Error;
    /// Computes gate and up, each [tokens, intermediate].
    fn gate_up(&self, normed_td: &Tensor) -> (Tensor, Tensor);
    /// Projects [tokens, intermediate] to [tokens, hidden].
    ///
    /// # Errors
    /// [`Self::Error`].
    fn down(&self, activated: &Tensor) -> Result<Tensor, Self::Error>;
}
