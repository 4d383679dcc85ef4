//! Latent attention in the engine: queries absorb the expansion of keys, so that they attend to latents
//! directly, and attention's output is expanded to values. The cache has only latents and rotated keys.
//!
//! Each head has products of its own. On a CPU in f32 a row has the same bits in any batch.

use rlt_api::plan::model_config::LatentAttention;
use rlt_torch::{Block, PackedLinear};
use tch::{Kind, Tensor};

use super::product::Product;
use crate::model::{Adapter, DecoderLayer, LatentParts, LatentProducts, ProjectionWeights};

/// What latent attention has besides the product of the hidden state and the output.
#[derive(Debug)]
pub(super) struct PackedLatent {
    /// From the latent of queries; `None` where queries come of the hidden state.
    queries: Option<PackedLinear>,
    /// Of each head: what is not turned of its queries to the latent's width, and latents to its values.
    heads: Vec<[PackedLinear; 2]>,
    rank: i64,
}

impl PackedLatent {
    /// Packs what of `weights`, the products of a layer's own heads, belongs to latents; and gives what is
    /// multiplied with the hidden state.
    pub(super) fn pack(
        layer: &DecoderLayer,
        latent: &LatentAttention,
        weights: &[ProjectionWeights],
        (kind, rows_hint): (Kind, i64),
        block: &mut Block,
    ) -> Result<(Self, Vec<ProjectionWeights>), rlt_torch::Error> {
        let mut packed = |weight: &Tensor| {
            // Transposed and cut out, weights are copies.
            let own = weight.to_kind(kind).contiguous();
            let own = if own.data_ptr() == weight.data_ptr() { own.copy() } else { own };
            PackedLinear::new(&own, None, rows_hint, Some(block))
        };
        let (plain, values) = (latent.plain_dim as i64, latent.value_dim as i64);
        let expanded = weights[2].weight.unflatten(0, [-1, plain + values]);
        let head = |head: i64| {
            let own = expanded.select(0, head);
            Ok([packed(&own.narrow(0, 0, plain).tr())?, packed(&own.narrow(0, plain, values))?])
        };
        let heads: Vec<_> = (0..expanded.size()[0]).map(head).collect::<Result<_, rlt_torch::Error>>()?;
        let copy = |one: &ProjectionWeights| ProjectionWeights {
            weight: one.weight.shallow_clone(),
            bias: one.bias.as_ref().map(Tensor::shallow_clone),
        };
        let (queries, of_hidden) = match layer.query_latent() {
            None => (None, copy(&weights[0])),
            Some(compressed) => (Some(packed(&weights[0].weight)?), compressed.merged(Adapter::On)),
        };
        let rank = latent.rank as i64;
        Ok((Self { queries, heads, rank }, vec![of_hidden, copy(&weights[1])]))
    }

    pub(super) fn num_bytes(&self) -> usize {
        self.heads.iter().flatten().chain(&self.queries).map(PackedLinear::num_bytes).sum()
    }

    /// Most bytes of what is packed of a layer with so many heads, where the engine packs by itself.
    pub(super) fn packed_bytes(latent: &LatentAttention, num_heads: usize) -> usize {
        let of = |outputs: usize, inputs: usize| PackedLinear::packed_bytes(outputs as i64, inputs as i64);
        num_heads * (of(latent.rank, latent.plain_dim) + of(latent.value_dim, latent.rank))
    }
}

/// The products of one layer.
pub(super) struct RolloutLatent<'a> {
    pub(super) packed: Option<&'a PackedLatent>,
    /// Of the hidden state.
    pub(super) compressed: (&'a Product, [i64; 2]),
}

impl RolloutLatent<'_> {
    /// Each head of `x_thd` [t, h, ..] times a product of its own.
    fn by_head(&self, x_thd: &Tensor, product: usize) -> Vec<Tensor> {
        let heads = self.packed.into_iter().flat_map(|packed| &packed.heads).zip(0..);
        heads.map(|(products, head)| products[product].forward(&x_thd.select(1, head).contiguous())).collect()
    }
}

impl LatentProducts for RolloutLatent<'_> {
    fn compressed(&self, normed_td: &Tensor) -> (Tensor, Tensor) {
        let (product, [queries, keys]) = self.compressed;
        let all = product.forward(normed_td);
        (all.narrow(1, 0, queries).contiguous(), all.narrow(1, queries, keys))
    }

    fn queries(&self, latent: &Tensor) -> Tensor {
        match self.packed.and_then(|packed| packed.queries.as_ref()) {
            Some(queries) => queries.forward(latent),
            None => latent.shallow_clone(),
        }
    }

    fn join(&self, parts: LatentParts) -> (Tensor, Tensor, Tensor) {
        let LatentParts { plain_queries, turned_queries, latent, turned_keys } = parts;
        let absorbed = Tensor::stack(&self.by_head(&plain_queries, 0), 1);
        let queries = Tensor::cat(&[&absorbed, &turned_queries], -1);
        let keys = Tensor::cat(&[&latent.unsqueeze(1), &turned_keys], -1);
        let values = keys.shallow_clone();
        (queries, keys, values)
    }

    fn values(&self, attended_thd: &Tensor) -> Tensor {
        let rank = self.packed.map_or(0, |packed| packed.rank);
        Tensor::cat(&self.by_head(&attended_thd.narrow(-1, 0, rank), 1), -1)
    }
}
