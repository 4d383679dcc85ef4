//! Latent attention (MLA) inside a layer: queries, keys and values are computed from one latent a token.
//!
//! ```text
//! training  latent -> expanded: every head has keys and values, values padded to the width of keys
//! rollout   queries -> absorbed: they attend to latents, the same for all heads; attention's
//!           output is expanded
//! ```
//! Both give the same scores, summed in a different order: q (W l) = (W^T q) l.
//! Shapes: t tokens, h heads, p dims of a head that are not rotated, s dims that are, r width of the latent,
//! v width of a value head.

use rlt_models::LatentAttention;
use tch::Tensor;

use super::super::layer::{DecoderLayer, QueriesKeysValues};
use super::super::norms::LayerNorms;
use super::super::rope::RopeTables;

/// Products of latent attention: from a layer's own weights, or packed by an engine.
pub trait LatentProducts {
    /// Compresses the normed hidden state [t, d]. The first result is the latent of queries, or queries
    /// themselves if they have no latent; the second the latent of keys and values with the keys to be
    /// rotated, [t, r + s].
    fn compressed(&self, normed_td: &Tensor) -> (Tensor, Tensor);
    /// Queries [t, h (p + s)] from their latent after its norm.
    fn queries(&self, latent: &Tensor) -> Tensor;
    /// Combines `parts` into queries, keys and values for attention.
    fn join(&self, parts: LatentParts) -> (Tensor, Tensor, Tensor);
    /// The values of all heads, [t, h v], from attention's output.
    fn values(&self, attended_thd: &Tensor) -> Tensor;
}

/// Components of queries, keys and values; those with positions are rotated.
#[derive(Debug)]
pub struct LatentParts {
    /// Components of queries without positions, [t, h, p].
    pub plain_queries: Tensor,
    /// Components of queries with positions, [t, h, s].
    pub rope_queries: Tensor,
    /// Latent of keys and values after its norm, [t, r].
    pub latent: Tensor,
    /// Keys with positions, shared by all heads, [t, 1, s].
    pub rope_keys: Tensor,
}

impl DecoderLayer {
    /// The inputs of attention, from the normed hidden state [t, d].
    pub(crate) fn project_latent(
        &self,
        normed_td: &Tensor,
        rope: &RopeTables,
        latent: &LatentAttention,
        norms: &LayerNorms,
        products: &impl LatentProducts,
    ) -> QueriesKeysValues {
        let (queries, keys) = products.compressed(normed_td);
        let queries = match &norms.query_latent {
            Some(norm) => products.queries(&norms.latent(norm, &queries)),
            None => queries,
        };
        let sizes = |first: usize| [first as i64, latent.rope_dim as i64];
        let queries_thd = queries.unflatten(-1, [-1, latent.head_dim() as i64]);
        let queries = queries_thd.split_with_sizes(sizes(latent.nope_dim), -1);
        let keys = keys.split_with_sizes(sizes(latent.rank), -1);
        let rotated = |x_thd: Tensor| rope.rotate(x_thd.contiguous(), self.shape.rope_idx);
        let key_latent = match &norms.key_latent {
            Some(norm) => norms.latent(norm, &keys[0].contiguous()),
            None => keys[0].shallow_clone(),
        };
        products.join(LatentParts {
            plain_queries: queries[0].shallow_clone(),
            rope_queries: rotated(queries[1].shallow_clone()),
            latent: key_latent,
            rope_keys: rotated(keys[1].unsqueeze(1)),
        })
    }
}

/// Queries, keys and values of every head, from `parts` and the `expanded` latent, [t, h (p + v)]. All are
/// padded with zeros to the width of the widest.
pub(crate) fn expanded(latent: &LatentAttention, parts: LatentParts, expanded: &Tensor) -> QueriesKeysValues {
    let LatentParts { plain_queries, rope_queries, rope_keys, .. } = parts;
    let (plain, values) = (latent.nope_dim as i64, latent.value_dim as i64);
    let expanded_thd = expanded.unflatten(-1, [-1, plain + values]);
    let of_heads = expanded_thd.split_with_sizes([plain, values], -1);
    let num_heads = expanded_thd.size()[1];
    let keys = Tensor::cat(&[&of_heads[0], &rope_keys.expand([-1, num_heads, -1], false)], -1);
    let queries = Tensor::cat(&[&plain_queries, &rope_queries], -1);
    let width = values.max(latent.head_dim() as i64);
    let filled = |x_thd: Tensor| match width - x_thd.size()[2] {
        0 => x_thd,
        missing => x_thd.constant_pad_nd([0, missing]),
    };
    (filled(queries), filled(keys), filled(of_heads[1].shallow_clone()))
}
