//! A rank's tensor-parallel shard of a decoder's products in rollout: the rows and columns of the weights
//! that it multiplies. They come from the table `rlt_models::ModelSharding`, which training reads too. If
//! ranks compute summands of an output, only the first rank adds the bias. The collectives are in
//! `rlt_engine`.

use std::ops::Range;

use rlt_layout::{AxisPlace, DimRanges, DimShards, LocalTensor};
use rlt_models::ModelConfig;
use tch::Tensor;

use super::{ProjectionWeights, of_ranges};

/// The rule by which a decoder is sharded for one rank.
pub struct TpSharding<'a> {
    place: AxisPlace,
    config: &'a ModelConfig,
}

impl<'a> TpSharding<'a> {
    /// Creates the rule for the rank at `place` of the tensor-parallel group.
    pub fn new(place: AxisPlace, config: &'a ModelConfig) -> Self {
        Self { place, config }
    }

    /// The configuration of the model with the widths of a shard.
    pub fn config(&self) -> ModelConfig {
        self.config.tp_sharded(self.place.size)
    }

    /// Whether the shard is the full model.
    pub fn is_whole(&self) -> bool {
        self.place.size == 1
    }

    /// Views of a rank's shard of the weights of layer `layer_idx`: q, k, v, o, and gate, up and down if it
    /// has a feed-forward block.
    pub fn layer(&self, layer_idx: usize, weights: Vec<ProjectionWeights>) -> Vec<ProjectionWeights> {
        let local = |(weights, shards): (ProjectionWeights, DimShards)| {
            let [outputs, inputs] = [0, 1].map(|dim: usize| weights.weight.size()[dim]);
            let local = self.local([outputs, inputs], 0..outputs as usize, &shards);
            self.keep(weights, &local)
        };
        weights.into_iter().zip(self.products(layer_idx)).map(local).collect()
    }

    /// Shards of q, k, v and o on all ranks, and of gate, up and down if layer `layer_idx` has a feed-forward
    /// block.
    pub fn products(&self, layer_idx: usize) -> Vec<DimShards> {
        self.config.product_shards(layer_idx, self.place.size)
    }

    /// Returns this rank's indices of a projection's weight of size `size`, [out, in], for one of the
    /// projection's products. The product has the outputs `rows` of the projection, and `shards` splits it
    /// over the ranks.
    pub fn local(&self, size: [i64; 2], rows: Range<usize>, shards: &DimShards) -> LocalTensor {
        let own = &shards.of_ranks[self.place.index];
        let outputs: Vec<Range<usize>> = match shards.dim {
            0 => own.ranges.iter().map(|range| rows.start + range.start..rows.start + range.end).collect(),
            _ => vec![rows],
        };
        let local = LocalTensor::full(&size).with(0, DimRanges { len: size[0] as usize, ranges: outputs });
        if shards.dim == 0 { local } else { local.with(shards.dim, own.clone()) }
    }

    /// The shard of an expert's stacked gate and up, [2 width, hidden]: this rank's rows of both.
    pub fn expert_gate_up(&self, weight: &Tensor) -> Tensor {
        self.of_expert(weight, |[gate_up, _]| gate_up)
    }

    /// The shard of an expert's down, [hidden, width]: this rank's columns.
    pub fn expert_down(&self, weight: &Tensor) -> Tensor {
        self.of_expert(weight, |[_, down]| down)
    }

    /// Returns this rank's shard of an expert's weight. `of` selects how it is sharded: like gate and up, or
    /// like down.
    fn of_expert(&self, weight: &Tensor, of: fn([DimShards; 2]) -> DimShards) -> Tensor {
        let experts = self.config.experts.as_ref().filter(|_| !self.is_whole());
        let shards = experts.map(|experts| of(experts.shards(self.place.size)));
        shards.map_or_else(
            || weight.shallow_clone(),
            |shards| of_ranges(weight, &shards.of_ranks[self.place.index].ranges, shards.dim as i64),
        )
    }

    /// Returns views of the local values of a projection's weights. If ranks compute summands of an output,
    /// only the first rank keeps the bias.
    pub fn keep(&self, weights: ProjectionWeights, local: &LocalTensor) -> ProjectionWeights {
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
    pub fn head(&self, weight_vd: &Tensor) -> Tensor {
        let rows = self.place.range(self.config.vocab_size);
        let missing = (self.place.longest(self.config.vocab_size) - rows.len()) as i64;
        let own_vd = weight_vd.detach().narrow(0, rows.start as i64, rows.len() as i64);
        if missing == 0 { own_vd } else { own_vd.constant_pad_nd([0, 0, 0, missing]) }
    }
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
        let local = rank.local(size, rows, &rank.products(0)[product]);
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
