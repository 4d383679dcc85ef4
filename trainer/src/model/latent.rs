//! Latent attention inside a layer: queries, keys and values of one latent a token.
//!
//! ```text
//! training  latent -> expanded: every head has keys and values, values padded to the width of keys
//! rollout   queries -> absorbed: they attend to latents, the same for all heads; what is attended is
//! expanded
//! ```
//! Scores are the same numbers, added up in another order: q (W l) = (W^T q) l.
//! Shapes: t tokens, h heads, p dims of a head that are not turned, s dims that are, r width of the latent, v
//! width of a head of values.

use rlt_api::plan::model_config::LatentAttention;
use tch::Tensor;

use super::layer::{DecoderLayer, QueriesKeysValues};
use super::norms::LayerNorms;
use super::rope::RopeTables;

/// The products of latent attention as someone prepared them.
pub trait LatentProducts {
    /// Of the normed hidden state [t, d]: the latent of queries, or queries themselves where they have none,
    /// and the latent of keys and values beside the keys to be turned, [t, r + s].
    fn compressed(&self, normed_td: &Tensor) -> (Tensor, Tensor);
    /// Queries [t, h (p + s)] of their latent behind its norm.
    fn queries(&self, latent: &Tensor) -> Tensor;
    /// The inputs of attention.
    fn join(&self, parts: LatentParts) -> (Tensor, Tensor, Tensor);
    /// The values of all heads, [t, h v], from attention's output.
    fn values(&self, attended_thd: &Tensor) -> Tensor;
}

/// The parts of queries, keys and values, rotated where they have positions.
#[derive(Debug)]
pub struct LatentParts {
    /// [t, h, p].
    pub plain_queries: Tensor,
    /// [t, h, s].
    pub turned_queries: Tensor,
    /// Behind its norm, [t, r].
    pub latent: Tensor,
    /// Of all heads, [t, 1, s].
    pub turned_keys: Tensor,
}

impl DecoderLayer {
    /// The inputs of attention, from the normed hidden state [t, d].
    pub(super) fn project_latent(
        &self,
        normed_td: &Tensor,
        rope: &RopeTables,
        (latent, norms): (&LatentAttention, &LayerNorms),
        products: &impl LatentProducts,
    ) -> QueriesKeysValues {
        let (queries, keys) = products.compressed(normed_td);
        let queries = match &norms.query_latent {
            Some(norm) => products.queries(&norms.latent(norm, &queries)),
            None => queries,
        };
        let sizes = |first: usize| [first as i64, latent.rope_dim as i64];
        let queries_thd = queries.unflatten(-1, [-1, latent.head_dim() as i64]);
        let queries = queries_thd.split_with_sizes(sizes(latent.plain_dim), -1);
        let keys = keys.split_with_sizes(sizes(latent.rank), -1);
        let turned = |x_thd: Tensor| rope.turn(x_thd.contiguous(), self.shape.rope_idx);
        let key_latent = match &norms.key_latent {
            Some(norm) => norms.latent(norm, &keys[0].contiguous()),
            None => keys[0].shallow_clone(),
        };
        products.join(LatentParts {
            plain_queries: queries[0].shallow_clone(),
            turned_queries: turned(queries[1].shallow_clone()),
            latent: key_latent,
            turned_keys: turned(keys[1].unsqueeze(1)),
        })
    }
}

/// Queries, keys and values of every head of latents that `expanded` has multiplied, [t, h (p + v)]: all as
/// wide as the widest of them, with zeros behind.
pub(super) fn expanded(latent: &LatentAttention, parts: LatentParts, expanded: &Tensor) -> QueriesKeysValues {
    let LatentParts { plain_queries, turned_queries, turned_keys, .. } = parts;
    let (plain, values) = (latent.plain_dim as i64, latent.value_dim as i64);
    let expanded_thd = expanded.unflatten(-1, [-1, plain + values]);
    let of_heads = expanded_thd.split_with_sizes([plain, values], -1);
    let num_heads = expanded_thd.size()[1];
    let keys = Tensor::cat(&[&of_heads[0], &turned_keys.expand([-1, num_heads, -1], false)], -1);
    let queries = Tensor::cat(&[&plain_queries, &turned_queries], -1);
    let width = values.max(latent.head_dim() as i64);
    let filled = |x_thd: Tensor| match width - x_thd.size()[2] {
        0 => x_thd,
        missing => x_thd.constant_pad_nd([0, missing]),
    };
    (filled(queries), filled(keys), filled(of_heads[1].shallow_clone()))
}
