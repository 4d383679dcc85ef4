//! Sizes of one tensor-parallel rank's shard of a model.

use super::super::super::{Experts, ModelConfig, ProjectionShape, is_expert_weight};
use super::super::{EMBEDDING_WEIGHT, FINAL_NORM, ParameterCount};
use super::layer::{BIAS, WEIGHT, splits_of_layer};
use super::{BlockShare, ModelSharding, ParameterSplit, inside_layer};

impl ModelConfig {
    /// Returns the model with the sizes of one of `num_shards` tensor-parallel ranks, by the rules of the
    /// table: its query heads, the key heads that these attend to, its shards of the feed-forward widths, and
    /// its rows of the head. The residual stream keeps its width. Activations, KV caches and buffers have
    /// these sizes; weights are counted from the table itself.
    #[must_use]
    pub fn tp_sharded(&self, num_shards: usize) -> Self {
        let share = |count: usize| BlockShare::Own.largest_count(count, num_shards);
        let sharded = |experts: &Experts| Experts {
            intermediate_size: share(experts.intermediate_size),
            shared_intermediate_size: experts.shared_intermediate_size.map(share),
            ..experts.clone()
        };
        Self {
            experts: self.experts.as_ref().map(sharded),
            num_heads: share(self.num_heads),
            num_kv_heads: BlockShare::KeyHeads.largest_count(self.num_kv_heads, num_shards),
            intermediate_size: share(self.intermediate_size),
            vocab_size: share(self.vocab_size),
            ..self.clone()
        }
    }

    /// Returns the largest number of elements of a layer's matrices on one of `tp` tensor-parallel ranks,
    /// with the weights of all experts, biases included.
    pub fn matrices_of_layer_of_rank(&self, layer_idx: usize, tp: usize) -> u64 {
        let all = self.matrices_of_layer(layer_idx);
        if tp == 1 {
            return all;
        }
        let splits = splits_of_layer(self, layer_idx);
        // Number of elements of a parameter that even the rank with the largest shard does not hold.
        let remote = |name: &str, num_elements: u64| match splits.get(name) {
            Some(ParameterSplit::Dim(split)) => {
                let lacking = split.len - split.largest_share(tp);
                num_elements / split.len as u64 * lacking as u64
            }
            _ => 0,
        };
        let of_projection = |shape: &ProjectionShape| {
            let [outputs, inputs] = [shape.out_features, shape.in_features].map(|len| len as u64);
            let bias = if shape.bias { outputs } else { 0 };
            remote(&format!("{}{WEIGHT}", shape.name), outputs * inputs)
                + remote(&format!("{}{BIAS}", shape.name), bias)
        };
        let of_projections: u64 = self.projections(layer_idx).iter().map(of_projection).sum();
        let of_experts = |experts: &Experts| -> u64 {
            let weights = experts.adaptable(self.hidden_size).into_iter();
            weights.map(|(name, shape)| remote(name, shape.iter().product())).sum()
        };
        all - of_projections - self.experts_of(layer_idx).map_or(0, of_experts)
    }

    /// Returns the largest parameter counts on one of `tp` tensor-parallel ranks.
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

    /// Returns the largest number of expert weights on one of `tp` tensor-parallel ranks: in the full model,
    /// and in one layer that has experts, without routers.
    pub fn expert_weights_of_rank(&self, tp: usize) -> (u64, u64) {
        let sharding = ModelSharding::new(self);
        let parameters = self.parameters().into_iter();
        let of_experts = parameters.filter(|parameter| is_expert_weight(&parameter.name));
        let all: u64 = of_experts.map(|parameter| sharding.largest_part(&parameter, tp, 1)).sum();
        (all, all.checked_div(self.num_expert_layers() as u64).unwrap_or(0))
    }
}
