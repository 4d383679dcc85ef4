//! A frozen copy of a decoder: the reference policy of a job that trains all weights.

use tch::Tensor;

use super::decoder::Decoder;
use super::layer::DecoderLayer;
use super::projection::Projection;

impl Decoder {
    /// The same weights in memory of their own, without adapter and without gradients. What happens to this decoder
    /// afterwards does not reach the copy.
    pub fn frozen_copy(&self) -> Self {
        Self {
            config: self.config.clone(),
            options: self.options,
            embedding: frozen(&self.embedding),
            layers: self.layers.iter().map(frozen_layer).collect(),
            norm: frozen(&self.norm),
            head: self.head.as_ref().map(frozen),
            inverse_frequencies: self.inverse_frequencies.shallow_clone(),
            lora: None,
        }
    }
}

fn frozen_layer(layer: &DecoderLayer) -> DecoderLayer {
    DecoderLayer {
        shape: layer.shape,
        input_norm: frozen(&layer.input_norm),
        post_attention_norm: frozen(&layer.post_attention_norm),
        qk_norm: layer.qk_norm.as_ref().map(|(q_norm, k_norm)| (frozen(q_norm), frozen(k_norm))),
        projections: layer.projections.iter().map(frozen_projection).collect(),
    }
}

fn frozen_projection(projection: &Projection) -> Projection {
    Projection {
        name: projection.name.clone(),
        weight: frozen(&projection.weight),
        bias: projection.bias.as_ref().map(frozen),
        lora: None,
    }
}

fn frozen(tensor: &Tensor) -> Tensor {
    tensor.detach().copy()
}
