//! A rank's tensor-parallel shard of a decoder's products in rollout: the rows and columns of the weights
//! that it multiplies. The collectives are elsewhere.
//!
//! ```text
//! q, k, v       rows of local heads       -> queries of local heads, keys and values that these attend to
//! latents       full on each rank; their expansion is sharded as q, k and v
//! o             columns of local heads    -> a summand of the output; the first rank's has the bias
//! gate, up      rows of local width       -> local width of the feed-forward block
//! down          columns of local width    -> a summand of the output; the first rank's has the bias
//! experts       as gate, up and down, for every expert; the router is full on each rank
//! head          rows of local tokens      -> logits of local tokens
//! ```

use std::ops::Range;

use rlt_api::plan::model_config::ModelConfig;
use rlt_core::local_tensor::{DimRanges, DimShards, LocalTensor};
use rlt_core::mesh::AxisPlace;
use tch::Tensor;

use super::{ProjectionWeights, of_ranges};

/// The rule by which a decoder is sharded for one rank.
pub(crate) struct TpSharding<'a> {
    place: AxisPlace,
    config: &'a ModelConfig,
}

impl<'a> TpSharding<'a> {
    pub(crate) fn new(place: AxisPlace, config: &'a ModelConfig) -> Self {
        Self { place, config }
    }

    /// The configuration of the model with the widths of a shard.
    pub(crate) fn config(&self) -> ModelConfig {
        self.config.tp_sharded(self.place.size)
    }

    /// Whether the shard is the full model.
    pub(crate) fn is_whole(&self) -> bool {
        self.place.size == 1
    }

    /// Views of a rank's shard of a layer's weights: q, k, v, o, and gate, up and down if it has a
    /// feed-forward block.
    pub(crate) fn layer(&self, weights: Vec<ProjectionWeights>) -> Vec<ProjectionWeights> {
        // A shared expert has a width of its own.
        let width = weights.get(4).map_or(0, |gate| gate.weight.size()[0] as usize);
        let local = |(weights, shards): (ProjectionWeights, DimShards)| {
            let [outputs, inputs] = [0, 1].map(|dim: usize| weights.weight.size()[dim]);
            let local = self.local([outputs, inputs], 0..outputs as usize, &shards);
            self.keep(weights, &local)
        };
        weights.into_iter().zip(self.products(width)).map(local).collect()
    }

    /// Shards of q, k, v and o, and of gate, up and down of a feed-forward block of `width`, on all ranks.
    pub(crate) fn products(&self, width: usize) -> Vec<DimShards> {
        let (place, config) = (self.place, self.config);
        let rows = |num: usize, len: usize| split(place, 0, [num, len], AxisPlace::range);
        let columns = |num: usize, len: usize| split(place, 1, [num, len], AxisPlace::range);
        let attention = match &config.latent {
            Some(latent) => [
                rows(config.num_heads, latent.head_dim()),
                split(place, 0, [1, latent.kv_cache_width()], |_, num| 0..num),
                rows(config.num_heads, latent.nope_dim + latent.value_dim),
                columns(config.num_heads, latent.value_dim),
            ],
            None => {
                let keys = split(place, 0, [config.num_kv_heads, config.head_dim], AxisPlace::key_heads);
                let (num_heads, head_dim) = (config.num_heads, config.head_dim);
                [rows(num_heads, head_dim), keys.clone(), keys, columns(num_heads, head_dim)]
            }
        };
        attention.into_iter().chain([rows(width, 1), rows(width, 1), columns(width, 1)]).collect()
    }

    /// This rank's indices of a projection's weight of `size`, [out, in]. A product that `shards` splits has
    /// the outputs `rows` of the projection.
    pub(crate) fn local(&self, size: [i64; 2], rows: Range<usize>, shards: &DimShards) -> LocalTensor {
        let own = &shards.of_ranks[self.place.index];
        let outputs: Vec<Range<usize>> = match shards.dim {
            0 => own.ranges.iter().map(|range| rows.start + range.start..rows.start + range.end).collect(),
            _ => vec![rows],
        };
        let local = LocalTensor::full(&size).with(0, DimRanges { len: size[0] as usize, ranges: outputs });
        if shards.dim == 0 { local } else { local.with(shards.dim, own.clone()) }
    }

    /// The shard of an expert's stacked gate and up, [2 width, hidden]: this rank's rows of both.
    pub(crate) fn expert_gate_up(&self, weight: &Tensor) -> Tensor {
        let own = self.place.range(weight.size()[0] as usize / 2);
        let halves = weight.unflatten(0, [2, -1]);
        halves.narrow(1, own.start as i64, own.len() as i64).flatten(0, 1)
    }

    /// The shard of an expert's down, [hidden, width]: this rank's columns.
    pub(crate) fn expert_down(&self, weight: &Tensor) -> Tensor {
        let own = self.place.range(weight.size()[1] as usize);
        weight.narrow(1, own.start as i64, own.len() as i64)
    }

    /// Views of the local values of a projection's weights. Of summands only the first rank's has the bias.
    pub(crate) fn keep(&self, weights: ProjectionWeights, local: &LocalTensor) -> ProjectionWeights {
        let [outputs, inputs] = [0, 1].map(|dim: usize| &local.dims()[dim]);
        let adds_bias = inputs.is_full() || self.place.index == 0;
        let rows = |tensor: &Tensor| of_ranges(tensor, &outputs.ranges, 0);
        ProjectionWeights {
            weight: of_ranges(&rows(&weights.weight), &inputs.ranges, 1),
            bias: weights.bias.filter(|_| adds_bias).map(|bias| rows(&bias)),
        }
    }

    /// The shard of the head's weight [vocabulary, hidden]. Shorter shards are padded with zeros to the
    /// length of the longest.
    pub(crate) fn head(&self, weight_vd: &Tensor) -> Tensor {
        let rows = self.place.range(self.config.vocab_size);
        let missing = (self.place.longest(self.config.vocab_size) - rows.len()) as i64;
        let own_vd = weight_vd.detach().narrow(0, rows.start as i64, rows.len() as i64);
        if missing == 0 { own_vd } else { own_vd.constant_pad_nd([0, 0, 0, missing]) }
    }
}

/// Splits dimension `dim` of `num` blocks of `len` indices each over the ranks of the group of `place`;
/// `blocks` gives the blocks of a rank.
fn split(
    place: AxisPlace,
    dim: usize,
    [num, len]: [usize; 2],
    blocks: fn(AxisPlace, usize) -> Range<usize>,
) -> DimShards {
    let of_rank = |place: AxisPlace| {
        let own = blocks(place, num);
        DimRanges { len: num * len, ranges: std::iter::once(own.start * len..own.end * len).collect() }
    };
    DimShards { dim, of_ranks: place.all().map(of_rank).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> ModelConfig {
        ModelConfig::from_json(&serde_json::json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 16, "hidden_size": 12,
            "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu",
        }))
        .unwrap()
    }

    /// Rows and columns that the last of `num_ranks` has of a weight of `size`, for product `product`, which
    /// has the outputs `rows` of it.
    fn last(num_ranks: usize, product: usize, size: [i64; 2], rows: Range<usize>) -> Vec<Range<usize>> {
        let config = config();
        let rank = TpSharding::new(AxisPlace { index: num_ranks - 1, size: num_ranks }, &config);
        let local = rank.local(size, rows, &rank.products(8)[product]);
        local.dims().iter().flat_map(|dim| dim.ranges.clone()).collect()
    }

    #[test]
    fn a_shard_of_a_product_is_found_in_the_rows_of_its_projection() {
        // Up, behind gate in one weight.
        assert_eq!(last(2, 5, [16, 12], 8..16), [12..16, 0..12]);
        assert_eq!(last(2, 6, [12, 8], 0..12), [0..12, 4..8]);
        assert_eq!(last(2, 3, [12, 24], 0..12), [0..12, 12..24]);
        // Two ranks have the same key head.
        assert_eq!(last(4, 1, [12, 12], 0..12), [6..12, 0..12]);
        assert_eq!(last(1, 3, [12, 24], 0..12), [0..12, 0..24]);
    }
}
