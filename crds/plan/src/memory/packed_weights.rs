//! Sizes of the weights that a rank packs for the rollout, by the table of splits that the engine reads too.

use std::borrow::Cow;

use rlt_api::resolved::ResolvedSpec;
use rlt_models::ModelConfig;

use super::on_gpu;

/// Granularity of a head's width in GPU kernels, in elements.
const GPU_HEAD_STEP: usize = 8;

/// Weights that a rank packs: its shards of every projection and of the head.
pub(super) struct PackedWeights<'a> {
    model: Cow<'a, ModelConfig>,
    /// Tensor-parallel degree of the rollout.
    tp: usize,
}

impl<'a> PackedWeights<'a> {
    /// The weights that one rank of the job packs of `model`.
    pub(super) fn new(spec: &ResolvedSpec, model: &'a ModelConfig) -> Self {
        Self { model: with_padded_heads(spec, model), tp: spec.workers.mesh.rollout_tp as usize }
    }

    /// All weights of `model`, without padding of heads.
    pub(super) fn full(model: &'a ModelConfig) -> Self {
        Self { model: Cow::Borrowed(model), tp: 1 }
    }

    /// Elements of all layers and of the head, L (projections) + v / n h, without quantized weights.
    pub(super) fn num_elements(&self) -> u64 {
        let layers: u64 = self.layers().sum();
        layers.saturating_sub(self.model.quantized().numbers) + self.num_elements_of_head()
    }

    /// Elements of the largest layer, without quantized weights.
    pub(super) fn num_elements_of_layer(&self) -> u64 {
        let largest = self.layers().max().unwrap_or(0);
        largest.saturating_sub(self.model.quantized_in_layer(0).numbers)
    }

    /// Elements of the head.
    pub(super) fn num_elements_of_head(&self) -> u64 {
        (self.model.vocab_size.div_ceil(self.tp) * self.model.hidden_size) as u64
    }

    /// Bytes of quantized weights, of which every rank has all: with them `rolloutTp` is 1.
    pub(super) fn quantized_bytes(&self) -> u64 {
        self.model.quantized().bytes
    }

    /// Elements of each layer, quantized weights included.
    fn layers(&self) -> impl Iterator<Item = u64> {
        (0..self.model.num_layers)
            .map(move |layer_idx| self.model.matrices_of_layer_of_rank(layer_idx, self.tp))
    }
}

/// Returns the model with the head width of the rollout. GPU kernels read a head in steps, so a head of
/// another width is padded with zeros.
pub(super) fn with_padded_heads<'a>(spec: &ResolvedSpec, model: &'a ModelConfig) -> Cow<'a, ModelConfig> {
    let head_dim = model.head_dim.next_multiple_of(GPU_HEAD_STEP);
    if !on_gpu(spec) || head_dim == model.head_dim {
        return Cow::Borrowed(model);
    }
    Cow::Owned(ModelConfig { head_dim, ..model.clone() })
}
