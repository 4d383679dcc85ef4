//! Sizes of latent attention.

/// Widths of latent attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatentAttention {
    /// Rank of the latent from which queries are projected; `None` where they come from the hidden state.
    pub query_rank: Option<usize>,
    /// Rank of the latent from which keys and values are projected.
    pub rank: usize,
    /// Dimensions of a query or key head without rotary embedding.
    pub nope_dim: usize,
    /// Dimensions of a query or key head with rotary embedding; for keys all heads share them.
    pub rope_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
}
