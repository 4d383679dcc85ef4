//! Sizes of what one rank of a tensor-parallel group has of a model.

use super::super::super::{Experts, ModelConfig, is_expert_weight};
use super::super::{EMBEDDING_WEIGHT, FINAL_NORM, ParameterCount};
use super::{ModelSharding, inside_layer};

impl ModelConfig {
    /// Returns the tensor-parallel shard of the model for one of `num_shards` ranks: its query heads, the key
    /// heads that these attend to (at least one), its shard of the feed-forward width, and its rows of the
    /// head, rounded up. The residual stream keeps its width.
    #[must_use]
    pub fn tp_sharded(&self, num_shards: usize) -> Self {
        let sharded = |experts: &Experts| Experts {
            intermediate_size: experts.intermediate_size / num_shards,
            shared_intermediate_size: experts.shared_intermediate_size.map(|width| width / num_shards),
            ..experts.clone()
        };
        Self {
            experts: self.experts.as_ref().map(sharded),
            num_heads: self.num_heads / num_shards,
            num_kv_heads: (self.num_kv_heads / num_shards).max(1),
            intermediate_size: self.intermediate_size / num_shards,
            vocab_size: self.vocab_size.div_ceil(num_shards),
            ..self.clone()
        }
    }

    /// Counts the parameters that one of `tp` tensor-parallel ranks has at most.
    pub fn parameter_count_of_rank(&self, tp: usize) -> ParameterCount {
        let sharding = ModelSharding::new(self);
        let (mut embedding, mut final_norm, mut head) = (0, 0, 0);
        let mut layers = vec![0; self.num_layers];
        for parameter in self.parameters() {
            let count = match (inside_layer(&parameter.name), parameter.name.as_str()) {
                (Some((layer_idx, _)), _) => &mut layers[layer_idx],
                (None, EMBEDDING_WEIGHT) => &mut embedding,
                (None, FINAL_NORM) => &mut final_norm,
                (None, _) => &mut head,
            };
            *count += sharding.largest_part(&parameter, tp, 1);
        }
        ParameterCount {
            embedding,
            per_layer: layers.iter().copied().max().unwrap_or(0),
            layers: layers.iter().sum(),
            num_layers: self.num_layers as u64,
            final_norm,
            head,
        }
    }

    /// Counts the expert weights that one of `tp` tensor-parallel ranks has at most: in the whole model, and
    /// in one layer that has experts, without routers.
    pub fn expert_weights_of_rank(&self, tp: usize) -> (u64, u64) {
        let sharding = ModelSharding::new(self);
        let parameters = self.parameters().into_iter();
        let of_experts = parameters.filter(|parameter| is_expert_weight(&parameter.name));
        let all: u64 = of_experts.map(|parameter| sharding.largest_part(&parameter, tp, 1)).sum();
        (all, all.checked_div(self.num_expert_layers() as u64).unwrap_or(0))
    }
}
