//! This rank's shard of each parameter in training: the layouts of [`ModelSharding`], for its index in a
//! tensor-parallel and in an expert-parallel group. A sharded decoder holds shards in place of its full
//! weights, and runs the same passes as a full one. The styles of `rlt_parallel` exchange tensors between the
//! ranks.

use std::collections::BTreeMap;
use std::ops::Range;

use rlt_layout::{Axis, AxisPlace, DimShards, ParameterLayout};
use rlt_models::{ModelConfig, ModelSharding, ProductRows};
use tch::Tensor;

use super::decoder::Decoder;
use super::expert_lora::ExpertTensor;
use super::layer::DecoderLayer;
use super::projection::{Adapter, LinearShard};

/// Layouts of a model's parameters over the ranks of a tensor-parallel and of an expert-parallel group.
#[derive(Debug)]
pub struct RankSharding {
    sharding: ModelSharding,
    /// Index of this rank in its tensor-parallel group, and the group's size.
    place: AxisPlace,
    /// Index of this rank in its expert-parallel group, and the group's size.
    ep: AxisPlace,
    /// Rows of q, k, v, o, gate, up and down of each layer in this rank's shards of their projections.
    products: Vec<Vec<ProductRows>>,
}

impl RankSharding {
    /// The layouts of a model and its adapter, for a rank with this place in its tensor-parallel group and
    /// the place `ep` in its expert-parallel group.
    pub fn new(decoder: &Decoder, place: AxisPlace, ep: AxisPlace) -> Self {
        let config = &decoder.config;
        let mut sharding = ModelSharding::new(config);
        let alone = decoder.layers().iter().filter(|layer| layer.adapts_gate_and_up_alone());
        alone.for_each(|layer| sharding.adapting_gate_and_up_alone(layer.shape.layer_idx));
        let products = (0..config.num_layers).map(|layer_idx| local_products(config, layer_idx, place));
        let products = products.collect();
        Self { sharding, place, ep, products }
    }

    /// This rank's place along an axis that splits weights.
    pub fn place_along(&self, axis: Axis) -> AxisPlace {
        match axis {
            Axis::Tp => self.place,
            Axis::Ep => self.ep,
            _ => AxisPlace::ALONE,
        }
    }

    /// The layout of a parameter, by its name in any role.
    pub fn layout(&self, name: &str) -> ParameterLayout {
        self.sharding.layout(name, self.place.size, self.ep.size)
    }

    /// This rank's shard of a projection's input and output, by the projection's full name.
    fn linear_shard(&self, projection: &str) -> LinearShard {
        let layout = self.layout(&format!("{projection}.weight"));
        let Some((_, DimShards { dim, of_ranks })) = layout.shards().next() else {
            return LinearShard::FULL;
        };
        let own = Some(of_ranks[self.place.index].clone());
        match dim {
            0 => LinearShard { inputs: None, outputs: own, adds_bias: true },
            _ => LinearShard { inputs: own, outputs: None, adds_bias: self.place.index == 0 },
        }
    }
}

/// Returns the rows of q, k, v, o, gate, up and down of a layer in the shards of their projections that the
/// rank at `place` has.
fn local_products(config: &ModelConfig, layer_idx: usize, place: AxisPlace) -> Vec<ProductRows> {
    let mut ends: BTreeMap<usize, usize> = BTreeMap::new();
    let products = config.products(layer_idx).into_iter().zip(config.product_shards(layer_idx, place.size));
    let local = |(ProductRows { projection_idx, rows }, shards): (ProductRows, DimShards)| {
        // A rank has all outputs of a product whose inputs are split.
        let num_rows = if shards.dim == 0 { shards.of_ranks[place.index].count() } else { rows.len() };
        let end = ends.entry(projection_idx).or_default();
        let start = *end;
        *end += num_rows;
        ProductRows { projection_idx, rows: start..*end }
    };
    products.map(local).collect()
}

impl DecoderLayer {
    /// Whether the layer's experts have an adapter of gate and up, and none of down.
    fn adapts_gate_and_up_alone(&self) -> bool {
        let adapted = self.experts().into_iter().flat_map(|experts| experts.adapted());
        adapted.map(|(tensor, ..)| tensor).eq([ExpertTensor::GateUp])
    }
}

/// Token ids of an input, as rows of this rank's shard of the embedding.
#[derive(Debug)]
pub struct OwnTokens {
    /// Rows of the shard, i64 `[t]`; 0 for a token that another rank has.
    pub rows_t: Tensor,
    /// Whether another rank has the token, `[t]`.
    pub is_other_t: Tensor,
}

impl Decoder {
    /// Records in embedding, head and layers which shards of their weights this rank holds by `sharding`.
    pub fn hold_shards(&self, sharding: &RankSharding) {
        if sharding.place.size == 1 {
            return;
        }
        // The parameters of a decoder may be sharded in several steps, with the same shards in each.
        let _ = self.token_shard.set(sharding.place.range(self.config.vocab_size));
        for (layer, products) in self.layers.iter().zip(&sharding.products) {
            let _ = layer.local_products.set(products.clone());
            for projection in &layer.projections {
                let _ = projection.shard.set(sharding.linear_shard(&projection.name));
            }
        }
    }

    /// Token ids whose embeddings and logits this rank has.
    pub fn tokens(&self) -> Range<usize> {
        self.token_shard.get().cloned().unwrap_or(0..self.config.vocab_size)
    }

    /// Maps `tokens_t` to rows of this rank's shard of the embedding; `None` if the rank holds the full
    /// embedding.
    pub fn own_tokens(&self, tokens_t: &Tensor) -> Option<OwnTokens> {
        let own = self.token_shard.get()?;
        let is_other_t = tokens_t.lt(own.start as i64).logical_or(&tokens_t.ge(own.end as i64));
        let rows_t = (tokens_t - own.start as i64).masked_fill(&is_other_t, 0);
        Some(OwnTokens { rows_t, is_other_t })
    }

    /// This rank's summand of the embeddings of tokens, `[t, d]`: zeros for tokens of other ranks.
    pub(super) fn embed_own(&self, own: &OwnTokens, adapter: Adapter) -> Tensor {
        let weight_vd = self.embedding_weight(adapter);
        let hidden_td = Tensor::embedding(weight_vd, &own.rows_t, -1, false, false);
        let hidden_td = hidden_td.to_kind(self.compute_kind());
        let hidden_td = hidden_td.masked_fill(&own.is_other_t.unsqueeze(1), 0.0);
        if self.config.embedding_scale == 1.0 { hidden_td } else { hidden_td * self.embedding_scale() }
    }
}

#[cfg(test)]
mod tests;
