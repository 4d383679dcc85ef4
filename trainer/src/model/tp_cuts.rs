//! Tensor-parallel placement of each parameter in training (Megatron-LM, Shoeybi et al. 2019): the shards of
//! [`TpSharding`], by the names of a checkpoint. The exchange is in `parallel::layer`.
//!
//! ```text
//! q, k, v, gate, up    rows of local heads and width, with their biases   (column-parallel)
//! o, down              columns of local heads and width; biases are full  (row-parallel)
//! embedding, head      rows of local tokens
//! norms, value head    full
//! experts              as gate, up and down, for every expert; router and gate of the shared expert are full
//! adapter              of row shards: full A, rows of B;  of column shards: columns of A, full B
//! ```
//! A full parameter that acts on the residual stream, which all ranks have, has the same gradient on all
//! ranks. One that acts on a rank's own heads, or its part of a product, has a summand of its gradient on
//! each rank: its placement is partial.

mod experts;

use std::collections::BTreeMap;
use std::ops::Range;

use rlt_api::plan::model_config::{ModelConfig, OutputHead, ProductRows, ProjectionShape};
use rlt_core::local_tensor::{DimRanges, DimShards, Placement};
use rlt_core::mesh::AxisPlace;
use tch::Tensor;

use self::experts::place_experts;
use super::decoder::Decoder;
use super::layer::DecoderLayer;
use super::names::{EMBEDDING, HEAD, layer_idx};
use super::projection::{Adapter, LinearShard};
use super::tp_shards::TpSharding;

/// Placements of a model's parameters over the ranks of a tensor-parallel group.
#[derive(Debug)]
pub(crate) struct ModelSharding {
    place: AxisPlace,
    vocab_size: usize,
    head_is_cut: bool,
    layers: Vec<LayerSharding>,
}

/// Placements of a layer's parameters.
#[derive(Debug)]
pub(crate) struct LayerSharding {
    /// Rows of q, k, v, o, gate, up and down in a rank's shards of their projections.
    pub(crate) products: Vec<ProductRows>,
    /// Placement of each parameter that is not replicated, by its name inside the layer.
    placements: BTreeMap<String, Placement>,
}

/// Suffixes of a projection's parameters, and of its adapter's, after the projection's name.
const WEIGHT: &str = ".weight";
const BIAS: &str = ".bias";
const ADAPTER_A: &str = ".lora_A.weight";
const ADAPTER_B: &str = ".lora_B.weight";

impl ModelSharding {
    /// The placements of a model without latent attention and quantized weights, see
    /// [`rlt_api::plan::check_model`], and of its adapter.
    pub(crate) fn new(decoder: &Decoder, place: AxisPlace) -> Self {
        let config = &decoder.config;
        let layers = decoder.layers().iter().map(|layer| LayerSharding::new(config, layer, place));
        let head_is_cut = config.head == OutputHead::Vocabulary;
        Self { place, vocab_size: config.vocab_size, head_is_cut, layers: layers.collect() }
    }

    /// The placements of layer `layer_idx`.
    pub(crate) fn layer(&self, layer_idx: usize) -> Option<&LayerSharding> {
        self.layers.get(layer_idx)
    }

    /// Token ids whose embeddings and logits this rank has.
    pub(crate) fn tokens(&self) -> Range<usize> {
        self.place.range(self.vocab_size)
    }

    /// Rows of `tokens_t` in this rank's shard of the embedding, i64 `[t]`, and whether another rank has the
    /// token, whose row is then given as 0.
    pub(crate) fn own_tokens(&self, tokens_t: &Tensor) -> (Tensor, Tensor) {
        let own = self.tokens();
        let is_other_t = tokens_t.lt(own.start as i64).logical_or(&tokens_t.ge(own.end as i64));
        ((tokens_t - own.start as i64).masked_fill(&is_other_t, 0), is_other_t)
    }

    /// The shards of a parameter, by its name in any role; `None` if every rank has all of it.
    pub(crate) fn of(&self, name: &str) -> Option<DimShards> {
        match self.placement(name) {
            Placement::Shard(shards) => Some(shards),
            Placement::Replicate | Placement::Partial => None,
        }
    }

    /// Whether the gradient of a full parameter is the sum of the ranks' gradients.
    pub(crate) fn is_summed(&self, name: &str) -> bool {
        self.placement(name) == Placement::Partial
    }

    /// This rank's indices of a dimension that is split by `shards`.
    pub(crate) fn own<'a>(&self, shards: &'a DimShards) -> &'a DimRanges {
        &shards.of_ranks[self.place.index]
    }

    /// This rank's shard of a projection's input and output, by the projection's full name.
    pub(super) fn around(&self, projection: &str) -> LinearShard {
        let Some(shards) = self.of(&format!("{projection}{WEIGHT}")) else {
            return LinearShard::default();
        };
        let own = Some(self.own(&shards).clone());
        match shards.dim {
            0 => LinearShard { inputs: None, outputs: own, adds_bias: true },
            _ => LinearShard { inputs: own, outputs: None, adds_bias: self.place.index == 0 },
        }
    }

    /// The placement of a parameter, by its name in any role.
    fn placement(&self, name: &str) -> Placement {
        let is_of_tokens = name.ends_with(EMBEDDING) || (self.head_is_cut && name.ends_with(HEAD));
        if is_of_tokens {
            return Placement::Shard(split(0, self.place, |place| rows_of(self.vocab_size, place)));
        }
        let layer = layer_idx(name).and_then(|layer_idx| self.layer(layer_idx));
        let placement = layer.zip(inside_layer(name)).and_then(|(layer, name)| layer.placements.get(name));
        placement.cloned().unwrap_or(Placement::Replicate)
    }
}

impl Decoder {
    /// This rank's summand of the embeddings of `tokens_t`, `[t, d]`: zeros for tokens of other ranks. With
    /// tensor parallelism a rank has the rows `cuts` of the embedding.
    pub(crate) fn embed_part(&self, tokens_t: &Tensor, adapter: Adapter, cuts: &ModelSharding) -> Tensor {
        let (own_t, is_other_t) = cuts.own_tokens(tokens_t);
        let weight_vd = self.embedding_weight(adapter);
        let hidden_td = Tensor::embedding(weight_vd, &own_t, -1, false, false).to_kind(self.compute_kind());
        let hidden_td = hidden_td.masked_fill(&is_other_t.unsqueeze(1), 0.0);
        if self.config.embedding_scale == 1.0 { hidden_td } else { hidden_td * self.embedding_scale() }
    }
}

/// A parameter's name inside its layer.
fn inside_layer(name: &str) -> Option<&str> {
    Some(name.split_once(".layers.")?.1.split_once('.')?.1)
}

/// Splits dimension `dim` over the ranks of the group of `place`; `of` gives the indices of a rank.
fn split(dim: usize, place: AxisPlace, of: impl Fn(AxisPlace) -> DimRanges) -> DimShards {
    DimShards { dim, of_ranks: place.all().map(of).collect() }
}

/// A rank's part of `len` rows.
fn rows_of(len: usize, place: AxisPlace) -> DimRanges {
    DimRanges { len, ranges: vec![place.range(len)] }
}

impl LayerSharding {
    fn new(config: &ModelConfig, layer: &DecoderLayer, place: AxisPlace) -> Self {
        let layer_idx = layer.shape.layer_idx;
        let products = config.products(layer_idx);
        // A shared expert has a width of its own.
        let width = products.get(NUM_OF_ATTENTION).map_or(0, |gate| gate.rows.len());
        let shards = TpSharding::new(place, config).products(width);
        let mut placements = BTreeMap::new();
        for (idx, shape) in config.projections(layer_idx).into_iter().enumerate() {
            let own = products.iter().zip(&shards).filter(|(product, _)| product.projection_idx == idx);
            place_projection(&mut placements, &shape, of_projection(&shape, own));
        }
        // Norms of queries and keys act on each head alone.
        if config.qk_norm_shapes().is_some() {
            let norms = ["self_attn.q_norm", "self_attn.k_norm"].map(|norm| format!("{norm}{WEIGHT}"));
            placements.extend(norms.map(|norm| (norm, Placement::Partial)));
        }
        place_experts(&mut placements, config, layer, place);
        Self { products: config.tp_sharded(place.size).products(layer_idx), placements }
    }
}

/// Number of attention's products: q, k, v and o.
const NUM_OF_ATTENTION: usize = 4;

/// Adds the placements of a projection's parameters and of its adapter's. `shards` are those of the weight;
/// `None` for the gate of a shared expert, which scales a rank's summand of the expert's output.
fn place_projection(
    placements: &mut BTreeMap<String, Placement>,
    shape: &ProjectionShape,
    shards: Option<DimShards>,
) {
    let of_parts = match shards {
        None => [(); 4].map(|()| Placement::Partial),
        Some(shards) => {
            let dim = shards.dim;
            let sharded = Placement::Shard(shards);
            match dim {
                0 => [sharded.clone(), sharded.clone(), Placement::Partial, sharded],
                _ => [sharded.clone(), Placement::Partial, sharded, Placement::Partial],
            }
        }
    };
    let parts = [WEIGHT, BIAS, ADAPTER_A, ADAPTER_B].map(|part| format!("{}{part}", shape.name));
    placements.extend(parts.into_iter().zip(of_parts));
}

/// The shards of the weight [out, in] of a projection, from those of its `products`; `None` if it has no
/// product.
fn of_projection<'a>(
    shape: &ProjectionShape,
    products: impl Iterator<Item = (&'a ProductRows, &'a DimShards)>,
) -> Option<DimShards> {
    let mut joined: Option<DimShards> = None;
    for (product, shards) in products {
        let (len, start) = match shards.dim {
            0 => (shape.out_features, product.rows.start),
            _ => (shape.in_features, 0),
        };
        let own = shards.of_ranks.iter().map(|own| {
            let ranges = own.ranges.iter().map(|range| start + range.start..start + range.end);
            DimRanges { len, ranges: ranges.collect() }
        });
        match &mut joined {
            None => joined = Some(DimShards { dim: shards.dim, of_ranks: own.collect() }),
            Some(joined) => {
                joined.of_ranks.iter_mut().zip(own).for_each(|(all, own)| all.ranges.extend(own.ranges));
            }
        }
    }
    joined
}

#[cfg(test)]
mod tests;
