//! Latent attention in the engine: queries absorb the expansion of keys, so that they attend to latents
//! directly, and attention's output is expanded to values. The cache holds only latents and rotated keys.
//!
//! Each head has products of its own. On a CPU in f32 a row has the same bits in any batch.

use rlt_decoder::{Adapter, DecoderLayer, LatentParts, LatentProducts, ProjectionWeights};
use rlt_models::LatentAttention;
use rlt_torch::{PackedLinear, WeightArena};
use tch::{Kind, Tensor};

use super::product::Product;

/// Packed weights of latent attention, apart from the product with the hidden state and the output.
#[derive(Debug)]
pub(super) struct PackedLatent {
    /// Projection from the latent of queries; `None` if queries are projected from the hidden state.
    queries: Option<PackedLinear>,
    /// Two projections for each head: from its queries without a rotary embedding to the width of the latent,
    /// and from latents to its values.
    heads: Vec<[PackedLinear; 2]>,
    rank: i64,
}

impl PackedLatent {
    /// Packs the projections of this rank's heads, `weights`, that read a latent. Also returns the weights
    /// that are multiplied with the hidden state.
    pub(super) fn pack(
        layer: &DecoderLayer,
        latent: &LatentAttention,
        weights: &[ProjectionWeights],
        kind: Kind,
        rows_hint: i64,
        arena: &mut WeightArena,
    ) -> Result<(Self, Vec<ProjectionWeights>), rlt_torch::Error> {
        let mut packed = |weight: &Tensor| {
            // After transposing and slicing, the contiguous weights are copies.
            let own = weight.to_kind(kind).contiguous();
            let own = if own.data_ptr() == weight.data_ptr() { own.copy() } else { own };
            PackedLinear::new(&own, None, rows_hint, Some(arena))
        };
        let (plain, values) = (latent.nope_dim as i64, latent.value_dim as i64);
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

    /// Upper bound of the packed bytes of a layer with `num_heads` heads, if the engine packs weights itself.
    pub(super) fn packed_bytes(latent: &LatentAttention, num_heads: usize) -> usize {
        let of = |outputs: usize, inputs: usize| PackedLinear::packed_bytes(outputs as i64, inputs as i64);
        num_heads * (of(latent.rank, latent.nope_dim) + of(latent.value_dim, latent.rank))
    }
}

/// Products of one layer's latent attention.
pub(super) struct RolloutLatent<'a> {
    pub(super) packed: Option<&'a PackedLatent>,
    /// The product with the hidden state, whose outputs are queries or their latent, and keys.
    pub(super) product: &'a Product,
    /// Widths of the outputs of `product`.
    pub(super) widths: [i64; 2],
}

impl RolloutLatent<'_> {
    /// Multiplies each head of `x_thd` [t, h, ..] with a product of its own.
    fn by_head(&self, x_thd: &Tensor, product: usize) -> Vec<Tensor> {
        let heads = self.packed.into_iter().flat_map(|packed| &packed.heads).zip(0..);
        heads.map(|(products, head)| products[product].forward(&x_thd.select(1, head).contiguous())).collect()
    }
}

impl LatentProducts for RolloutLatent<'_> {
    fn compressed(&self, normed_td: &Tensor) -> (Tensor, Tensor) {
        let [queries, keys] = self.widths;
        let all = self.product.forward(normed_td);
        (all.narrow(1, 0, queries).contiguous(), all.narrow(1, queries, keys))
    }

    fn queries(&self, latent: &Tensor) -> Tensor {
        match self.packed.and_then(|packed| packed.queries.as_ref()) {
            Some(queries) => queries.forward(latent),
            None => latent.shallow_clone(),
        }
    }

    fn join(&self, parts: LatentParts) -> (Tensor, Tensor, Tensor) {
        let LatentParts { plain_queries, rope_queries, latent, rope_keys } = parts;
        let absorbed = Tensor::stack(&self.by_head(&plain_queries, 0), 1);
        let queries = Tensor::cat(&[&absorbed, &rope_queries], -1);
        let keys = Tensor::cat(&[&latent.unsqueeze(1), &rope_keys], -1);
        let values = keys.shallow_clone();
        (queries, keys, values)
    }

    fn values(&self, attended_thd: &Tensor) -> Tensor {
        let rank = self.packed.map_or(0, |packed| packed.rank);
        Tensor::cat(&self.by_head(&attended_thd.narrow(-1, 0, rank), 1), -1)
    }
}
