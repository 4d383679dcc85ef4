//! Tensors of a model: names as in Hugging Face checkpoints, shapes, and exact counts. Loader,
//! initialization, LoRA and the memory estimate all read this one list.

mod sharding;

use super::{
    FusedProjections, LatentAttention, ModelConfig, ParameterShape, ProductRows, ProjectionShape, QkNorm,
    TensorShape, is_expert_weight,
};
pub use sharding::ModelSharding;

/// Name of the embedding.
pub const EMBEDDING_WEIGHT: &str = "model.embed_tokens.weight";
/// Name of the final norm.
const FINAL_NORM: &str = "model.norm.weight";

impl ProjectionShape {
    /// Parameters of the projection, bias included.
    pub fn num_parameters(&self) -> u64 {
        let bias = if self.bias { self.out_features as u64 } else { 0 };
        self.out_features as u64 * self.in_features as u64 + bias
    }
}

impl ParameterShape {
    /// Returns a parameter that is stored as one tensor of the same name and shape.
    pub(super) fn alone(name: String, shape: &[usize]) -> Self {
        let stored = TensorShape { name: name.clone(), shape: shape.to_vec() };
        Self { name, shape: shape.to_vec(), stored: vec![stored] }
    }
}

/// Exact parameter counts by part of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParameterCount {
    /// Parameters of the embedding.
    pub embedding: u64,
    /// Parameters of the largest decoder layer; all are alike unless some have experts.
    pub per_layer: u64,
    /// Parameters of all decoder layers.
    pub layers: u64,
    /// Number of decoder layers.
    pub num_layers: u64,
    /// Parameters of the final norm.
    pub final_norm: u64,
    /// Parameters of the head; zero when it is tied to the embedding.
    pub head: u64,
}

impl ParameterCount {
    /// Returns the number of all parameters, with a tied head counted once.
    pub fn total(&self) -> u64 {
        self.embedding + self.layers + self.final_norm + self.head
    }
}

impl ModelConfig {
    /// Returns the linear layers of a decoder layer, in checkpoint order, without a router and its experts.
    pub fn projections(&self, layer_idx: usize) -> Vec<ProjectionShape> {
        let (hidden, intermediate) = (self.hidden_size, self.intermediate_size);
        let (queries, keys) = self.head_widths();
        let shape =
            |name, out_features, in_features, bias| ProjectionShape { name, out_features, in_features, bias };
        let attention = if let Some(latent) = &self.latent {
            latent.projections(self)
        } else if self.fused_projections.qkv {
            vec![
                shape("self_attn.qkv_proj", queries + 2 * keys, hidden, self.qkv_bias),
                shape("self_attn.o_proj", hidden, queries, self.output_bias),
            ]
        } else {
            vec![
                shape("self_attn.q_proj", queries, hidden, self.qkv_bias),
                shape("self_attn.k_proj", keys, hidden, self.qkv_bias),
                shape("self_attn.v_proj", keys, hidden, self.qkv_bias),
                shape("self_attn.o_proj", hidden, queries, self.output_bias),
            ]
        };
        if let Some(experts) = self.experts_of(layer_idx) {
            return [attention, experts.shared_projections(hidden)].concat();
        }
        let gate_up = if self.fused_projections.gate_up {
            vec![shape("mlp.gate_up_proj", 2 * intermediate, hidden, self.mlp_bias)]
        } else {
            vec![
                shape("mlp.gate_proj", intermediate, hidden, self.mlp_bias),
                shape("mlp.up_proj", intermediate, hidden, self.mlp_bias),
            ]
        };
        let down = shape("mlp.down_proj", hidden, intermediate, self.mlp_bias);
        [attention, gate_up, vec![down]].concat()
    }

    /// Locates the products q, k, v, o, gate, up and down of a layer in its projections. The last three are
    /// absent in a layer with experts but without a shared one. In latent attention the first three are the
    /// queries (from their latent or from the hidden state), the latent of keys and values with the rotated
    /// keys, and its expansion.
    pub fn products(&self, layer_idx: usize) -> Vec<ProductRows> {
        let FusedProjections { qkv, gate_up } = self.fused_projections;
        // Whether a product follows the previous one in the same projection.
        let continues = [false, qkv, qkv, false, false, gate_up, false];
        // The projection to the latent of queries is not one of the products, so it is skipped.
        let first = usize::from(self.latent.as_ref().is_some_and(|latent| latent.query_rank.is_some()));
        let (mut projection_idx, mut start) = (first, 0);
        let mut products = Vec::new();
        for (idx, width) in self.product_widths(layer_idx).into_iter().enumerate() {
            if idx > 0 && !continues[idx] {
                (projection_idx, start) = (projection_idx + 1, 0);
            }
            products.push(ProductRows { projection_idx, rows: start..start + width });
            start += width;
        }
        products
    }

    /// Output widths of q, k, v, o, gate, up and down.
    fn product_widths(&self, layer_idx: usize) -> Vec<usize> {
        let (queries, keys) = self.head_widths();
        let attention = match &self.latent {
            None => vec![queries, keys, keys, self.hidden_size],
            Some(latent) => {
                let expanded = self.num_heads * (latent.nope_dim + latent.value_dim);
                vec![queries, latent.kv_cache_width(), expanded, self.hidden_size]
            }
        };
        let width = self.feed_forward_width(layer_idx);
        let feed_forward = width.map(|width| vec![width, width, self.hidden_size]);
        [attention, feed_forward.unwrap_or_default()].concat()
    }

    /// Width of a layer's feed-forward block, or of its shared expert; `None` with experts alone.
    fn feed_forward_width(&self, layer_idx: usize) -> Option<usize> {
        match self.experts_of(layer_idx) {
            None => Some(self.intermediate_size),
            Some(experts) => experts.shared_intermediate_size,
        }
    }

    /// Total widths of all query heads and of all key heads.
    fn head_widths(&self) -> (usize, usize) {
        (self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim)
    }

    /// Returns the norms of a decoder layer: module name, and dimensions of the weight.
    pub(crate) fn layer_norms(&self) -> Vec<(&'static str, Vec<usize>)> {
        let mut norms: Vec<_> = self.block_norms.names().map(|name| (name, vec![self.hidden_size])).collect();
        if let Some([queries, keys]) = self.qk_norm_shapes() {
            norms.extend([("self_attn.q_norm", queries), ("self_attn.k_norm", keys)]);
        }
        if let Some((queries, keys)) = self.latent.as_ref().map(LatentAttention::norms) {
            norms.extend(queries.into_iter().chain([keys]).map(|(name, width)| (name, vec![width])));
        }
        norms
    }

    /// Returns the dimensions of the weights of query and key norm; `None` without them.
    pub fn qk_norm_shapes(&self) -> Option<[Vec<usize>; 2]> {
        let heads = [self.num_heads, self.num_kv_heads];
        match self.qk_norm {
            QkNorm::None => None,
            QkNorm::Head => Some([(); 2].map(|()| vec![self.head_dim])),
            QkNorm::EachHead => Some(heads.map(|heads| vec![heads, self.head_dim])),
            QkNorm::AllHeads => Some(heads.map(|heads| vec![heads * self.head_dim])),
        }
    }

    /// Returns all parameters of the model in a fixed order, without a tied head.
    pub fn parameters(&self) -> Vec<ParameterShape> {
        let embedding = [self.vocab_size, self.hidden_size];
        let mut parameters = vec![ParameterShape::alone(EMBEDDING_WEIGHT.to_owned(), &embedding)];
        for layer_idx in 0..self.num_layers {
            parameters.extend(self.parameters_of_layer(layer_idx));
        }
        parameters.push(ParameterShape::alone(FINAL_NORM.to_owned(), &[self.hidden_size]));
        let head = self.head_tensors().into_iter();
        parameters.extend(head.map(|tensor| ParameterShape::alone(tensor.name, &tensor.shape)));
        parameters
    }

    fn parameters_of_layer(&self, layer_idx: usize) -> Vec<ParameterShape> {
        let layer = format!("model.layers.{layer_idx}");
        let mut parameters = Vec::new();
        for projection in self.projections(layer_idx) {
            let module = format!("{layer}.{}", projection.name);
            let weight = [projection.out_features, projection.in_features];
            parameters.push(ParameterShape::alone(format!("{module}.weight"), &weight));
            if projection.bias {
                parameters.push(ParameterShape::alone(format!("{module}.bias"), &weight[..1]));
            }
        }
        if let Some(experts) = self.experts_of(layer_idx) {
            parameters.extend(experts.parameters(&layer, self.hidden_size));
        }
        if self.attention_sinks {
            parameters.push(ParameterShape::alone(format!("{layer}.self_attn.sinks"), &[self.num_heads]));
        }
        let norms = self.layer_norms().into_iter();
        let norm =
            |(norm, shape): (_, Vec<usize>)| ParameterShape::alone(format!("{layer}.{norm}.weight"), &shape);
        parameters.extend(norms.map(norm));
        parameters
    }

    /// Returns all tensors of the model's checkpoint in a fixed order.
    pub fn tensors(&self) -> Vec<TensorShape> {
        self.parameters().into_iter().flat_map(|parameter| parameter.stored).collect()
    }

    /// Number of layers that have experts.
    pub fn num_expert_layers(&self) -> usize {
        let layers = self.experts.iter().flat_map(|experts| &experts.layers);
        layers.filter(|has_experts| **has_experts).count()
    }

    /// Number of expert weights in the whole model, and in one layer that has experts, without routers.
    pub fn expert_weights(&self) -> (u64, u64) {
        let Some(layers) = self.experts.as_ref().map(|experts| &experts.layers) else { return (0, 0) };
        let size = |parameter: ParameterShape| parameter.shape.iter().product::<usize>() as u64;
        let is_of_expert = |parameter: &ParameterShape| is_expert_weight(&parameter.name);
        let all: u64 = self.parameters().into_iter().filter(is_of_expert).map(size).sum();
        let num_layers = layers.iter().filter(|has_experts| **has_experts).count() as u64;
        (all, all.checked_div(num_layers).unwrap_or(0))
    }

    /// Counts the parameters of the model exactly.
    pub fn parameter_count(&self) -> ParameterCount {
        let embedding = self.vocab_size as u64 * self.hidden_size as u64;
        let width = |(_, shape): &(_, Vec<usize>)| shape.iter().product::<usize>() as u64;
        let norms: u64 = self.layer_norms().iter().map(width).sum();
        let sinks = if self.attention_sinks { self.num_heads as u64 } else { 0 };
        let of_layer = |layer_idx| self.matrices_of_layer(layer_idx) + sinks + norms;
        ParameterCount {
            embedding,
            per_layer: (0..self.num_layers).map(of_layer).max().unwrap_or(0),
            layers: (0..self.num_layers).map(of_layer).sum(),
            num_layers: self.num_layers as u64,
            final_norm: self.hidden_size as u64,
            head: self
                .head_tensors()
                .iter()
                .map(|tensor| tensor.shape.iter().product::<usize>() as u64)
                .sum(),
        }
    }
}
