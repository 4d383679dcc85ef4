//! Shapes of tensors, parameters and linear layers.

use std::ops::Range;

/// Projections of a layer that a checkpoint concatenates along their outputs into one tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FusedProjections {
    /// Query, key and value as `self_attn.qkv_proj`.
    pub qkv: bool,
    /// Gate and up as `mlp.gate_up_proj`.
    pub gate_up: bool,
}

/// Location of a product of a layer (q, k, v, o, gate, up or down) in its projections. In a layer with
/// experts gate, up and down are those of the shared expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProductRows {
    /// Index into [`ModelConfig::projections`](super::ModelConfig::projections).
    pub projection_idx: usize,
    /// Rows of the projection, which are the product's outputs.
    pub rows: Range<usize>,
}

/// A linear layer of a decoder layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProjectionShape {
    /// Module name inside the layer, for example `self_attn.q_proj`.
    pub name: &'static str,
    /// Width of the output.
    pub out_features: usize,
    /// Width of the input.
    pub in_features: usize,
    /// Whether the layer has a bias of `out_features` elements.
    pub bias: bool,
}

/// A parameter of the model in memory, and the checkpoint tensors that store it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterShape {
    /// Name in memory, as in transformers 5.
    pub name: String,
    /// Dimensions of the parameter.
    pub shape: Vec<usize>,
    /// Checkpoint tensors that form the parameter when their elements are concatenated; usually just one.
    pub stored: Vec<TensorShape>,
}

/// One tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShape {
    /// Hugging Face name, for example `model.layers.0.mlp.up_proj.weight`.
    pub name: String,
    /// Dimensions of the tensor.
    pub shape: Vec<usize>,
}
