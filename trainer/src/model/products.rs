//! The products of a decoder layer, as traits: of the layer's own weights in training, or of an engine's
//! packed ones. The body of the layer is in [`super::layer`].

use tch::Tensor;

use super::experts::ExpertProducts;
use super::latent::LatentProducts;
use super::projection::Adapter;

/// The linear layers of a decoder layer as someone prepared them: the trainer's own with autograd and
/// adapters, or an engine's packed ones. Inputs and outputs are [tokens, features] in the compute dtype.
pub trait Projections {
    /// Why a product of which several ranks have a slice each could not be made; nothing fails where all of
    /// it is here.
    type Error;
    /// Whether the layer's norms are those trained beside an adapter; an engine's layers have one kind alone.
    fn adapter(&self) -> Adapter {
        Adapter::Off
    }
    /// Queries [tokens, heads * head_dim], then keys and values [tokens, kv_heads * head_dim].
    fn qkv(&self, normed_td: &Tensor) -> (Tensor, Tensor, Tensor);
    /// The products of latent attention, which has no others but the output.
    fn latent(&self) -> impl LatentProducts;
    /// The attention's output, from [tokens, heads * width of values] to [tokens, hidden].
    ///
    /// # Errors
    /// [`Self::Error`].
    fn output(&self, attended: &Tensor) -> Result<Tensor, Self::Error>;
    /// The part of the layer after attention.
    fn feed_forward(
        &self,
    ) -> FeedForward<impl DenseProducts<Error = Self::Error>, impl ExpertProducts<Error = Self::Error>>;
}

/// The layer's feed-forward part: one block for all tokens, or experts.
#[derive(Debug)]
pub enum FeedForward<D, E> {
    /// One block.
    Dense(D),
    /// A router with its experts.
    Experts {
        /// They.
        experts: E,
        /// A block for all tokens beside them.
        beside: Option<D>,
    },
}

/// The products of a feed-forward block.
pub trait DenseProducts {
    /// Why a product of which several ranks have a slice each could not be made.
    type Error;
    /// Gate and up [tokens, intermediate].
    fn gate_up(&self, normed_td: &Tensor) -> (Tensor, Tensor);
    /// From [tokens, intermediate] to [tokens, hidden].
    ///
    /// # Errors
    /// [`Self::Error`].
    fn down(&self, activated: &Tensor) -> Result<Tensor, Self::Error>;
}
