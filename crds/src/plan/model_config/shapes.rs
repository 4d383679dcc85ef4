//! Which tensors a model consists of: names as in Hugging Face checkpoints, shapes, and exact counts. Loader,
//! fresh initialisation, LoRA and the memory estimate all read this one list.

use std::ops::Range;

use super::{Experts, LatentAttention, ModelConfig, QkNorm, is_expert_weight};

/// Which projections of a layer are one tensor in a checkpoint, one below the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FusedProjections {
    /// Query, key and value as `self_attn.qkv_proj`.
    pub qkv: bool,
    /// Gate and up as `mlp.gate_up_proj`.
    pub gate_up: bool,
}

/// Where a product of a layer has its rows: q, k, v, o, gate, up or down. In a layer of experts gate, up and
/// down are those of the block beside them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProductRows {
    /// Which of [`ModelConfig::projections`].
    pub projection_idx: usize,
    /// Its rows there, which are its outputs.
    pub rows: Range<usize>,
}

/// A linear layer of a decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProjectionShape {
    /// Module name inside the layer, for example `self_attn.q_proj`.
    pub name: &'static str,
    /// Width of its output.
    pub out_features: usize,
    /// Width of its input.
    pub in_features: usize,
    /// Whether it adds a bias of `out_features` numbers.
    pub bias: bool,
}

impl ProjectionShape {
    /// Parameters of the projection, bias included.
    pub fn num_parameters(&self) -> u64 {
        let bias = if self.bias { self.out_features as u64 } else { 0 };
        self.out_features as u64 * self.in_features as u64 + bias
    }
}

/// A parameter of the model in memory, and what a checkpoint stores it as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterShape {
    /// Its name in memory, as in transformers 5.
    pub name: String,
    /// Its dims.
    pub shape: Vec<usize>,
    /// The tensors of a checkpoint whose numbers, laid end to end, are its own; most often it alone.
    pub stored: Vec<TensorShape>,
}

impl ParameterShape {
    /// One that is stored as it is.
    pub(super) fn alone(name: String, shape: &[usize]) -> Self {
        let stored = TensorShape { name: name.clone(), shape: shape.to_vec() };
        Self { name, shape: shape.to_vec(), stored: vec![stored] }
    }
}

/// One tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShape {
    /// Its Hugging Face name, for example `model.layers.0.mlp.up_proj.weight`.
    pub name: String,
    /// Its dims.
    pub shape: Vec<usize>,
}

/// Exact numbers of parameters by the place where they live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParameterCount {
    /// The embedding.
    pub embedding: u64,
    /// The largest decoder layer; all are alike unless some have experts.
    pub per_layer: u64,
    /// All decoder layers.
    pub layers: u64,
    /// Number of decoder layers.
    pub num_layers: u64,
    /// The final norm.
    pub final_norm: u64,
    /// The head; zero when it is the embedding.
    pub head: u64,
}

impl ParameterCount {
    /// All parameters of the model, a tied head counted once.
    pub fn total(&self) -> u64 {
        self.embedding + self.layers + self.final_norm + self.head
    }
}

impl ModelConfig {
    /// The linear layers of a decoder layer, in checkpoint order. A router and its experts are none of them.
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

    /// The products of a layer, q, k, v, o, gate, up and down, by the projections that hold them. The last
    /// three are absent where nothing stands beside experts. In latent attention the first three are queries
    /// of their latent or of the hidden state, the latent of keys and values with the turned keys, and what
    /// expands it.
    pub fn products(&self, layer_idx: usize) -> Vec<ProductRows> {
        let FusedProjections { qkv, gate_up } = self.fused_projections;
        // Whether a product lies below the one before it in the same projection.
        let continues = [false, qkv, qkv, false, false, gate_up, false];
        // The latent of queries is none of the products.
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

    /// Outputs of q, k, v, o, gate, up and down.
    fn product_widths(&self, layer_idx: usize) -> Vec<usize> {
        let (queries, keys) = self.head_widths();
        let width = match self.experts_of(layer_idx) {
            None => Some(self.intermediate_size),
            Some(experts) => experts.shared_intermediate_size,
        };
        let attention = match &self.latent {
            None => vec![queries, keys, keys, self.hidden_size],
            Some(latent) => {
                let expanded = self.num_heads * (latent.plain_dim + latent.value_dim);
                vec![queries, latent.cached(), expanded, self.hidden_size]
            }
        };
        let feed_forward = width.map(|width| vec![width, width, self.hidden_size]);
        [attention, feed_forward.unwrap_or_default()].concat()
    }

    /// Widths of all query heads and of all key heads.
    fn head_widths(&self) -> (usize, usize) {
        (self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim)
    }

    /// The norms of a decoder layer: module name and dims of the weight.
    pub fn layer_norms(&self) -> Vec<(&'static str, Vec<usize>)> {
        let mut norms: Vec<_> = self.block_norms.names().map(|name| (name, vec![self.hidden_size])).collect();
        if let Some([queries, keys]) = self.qk_norm_shapes() {
            norms.extend([("self_attn.q_norm", queries), ("self_attn.k_norm", keys)]);
        }
        if let Some((queries, keys)) = self.latent.as_ref().map(LatentAttention::norms) {
            norms.extend(queries.into_iter().chain([keys]).map(|(name, width)| (name, vec![width])));
        }
        norms
    }

    /// Dims of the weights of the norms of queries and keys.
    pub fn qk_norm_shapes(&self) -> Option<[Vec<usize>; 2]> {
        let heads = [self.num_heads, self.num_kv_heads];
        match self.qk_norm {
            QkNorm::None => None,
            QkNorm::Head => Some([(); 2].map(|()| vec![self.head_dim])),
            QkNorm::EachHead => Some(heads.map(|heads| vec![heads, self.head_dim])),
            QkNorm::AllHeads => Some(heads.map(|heads| vec![heads * self.head_dim])),
        }
    }

    /// Every parameter of the model, in a fixed order; a tied head is not among them.
    pub fn parameters(&self) -> Vec<ParameterShape> {
        let embedding = [self.vocab_size, self.hidden_size];
        let mut parameters = vec![ParameterShape::alone("model.embed_tokens.weight".to_owned(), &embedding)];
        for layer_idx in 0..self.num_layers {
            parameters.extend(self.parameters_of_layer(layer_idx));
        }
        parameters.push(ParameterShape::alone("model.norm.weight".to_owned(), &[self.hidden_size]));
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

    /// Every tensor of the model's checkpoint, in a fixed order.
    pub fn tensors(&self) -> Vec<TensorShape> {
        self.parameters().into_iter().flat_map(|parameter| parameter.stored).collect()
    }

    /// The model as wide as each of `num_shards` ranks multiplies with it that hold its weights together: its
    /// query heads, the key heads that these look at, at least one, its part of the feed-forward block and of
    /// the head's rows, rounded up. The residual stream is as wide as ever.
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

    /// Layers that have experts.
    pub fn num_expert_layers(&self) -> usize {
        let layers = self.experts.iter().flat_map(|experts| &experts.layers);
        layers.filter(|has_experts| **has_experts).count()
    }

    /// Weights of all experts of the model, and of one layer that has some; routers are none of them.
    pub fn expert_weights(&self) -> (u64, u64) {
        let Some(layers) = self.experts.as_ref().map(|experts| &experts.layers) else { return (0, 0) };
        let size = |parameter: ParameterShape| parameter.shape.iter().product::<usize>() as u64;
        let is_of_expert = |parameter: &ParameterShape| is_expert_weight(&parameter.name);
        let all: u64 = self.parameters().into_iter().filter(is_of_expert).map(size).sum();
        let num_layers = layers.iter().filter(|has_experts| **has_experts).count() as u64;
        (all, all.checked_div(num_layers).unwrap_or(0))
    }

    /// Exact numbers of parameters.
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
