//! Element widths of a job, and predicates on its weights: gathered by unit, merged, quantized, sampled from.

use rlt_api::resolved::ResolvedSpec;
use rlt_api::spec::Device;
use rlt_models::{ModelConfig, TensorShape};

use super::{FP32, MemoryTerm, term};

/// Bytes of an element of frozen weights, which are stored in the compute dtype.
pub(super) fn frozen_width(spec: &ResolvedSpec) -> u64 {
    spec.training.precision.width()
}

/// Bytes of an element in the rollout's dtype.
pub(super) fn rollout_width(spec: &ResolvedSpec) -> u64 {
    spec.rollout.precision.unwrap_or(spec.training.precision).width()
}

pub(crate) fn has_critic(spec: &ResolvedSpec) -> bool {
    spec.algorithm.policy_gradient.as_ref().is_some_and(|algorithm| algorithm.critic.is_some())
}

/// Whether the rollout merges the adapter into its weights; true without an adapter.
pub(super) fn merges(spec: &ResolvedSpec) -> bool {
    spec.model.lora.as_ref().is_none_or(|lora| lora.merge != Some(false))
}

/// Bytes of an element of the rollout's weights, and of the stored weights from which they are packed: frozen
/// weights of an adapter are stored in the compute dtype.
pub(crate) fn widths_of_sync(spec: &ResolvedSpec) -> (u64, u64) {
    let kept = if spec.model.lora.is_some() { frozen_width(spec) } else { FP32 };
    (rollout_width(spec), kept)
}

/// Whether a rank gathers or prefetches the model unit by unit, in the compute dtype.
pub(super) fn is_gathered_by_unit(spec: &ResolvedSpec) -> bool {
    spec.workers.mesh.is_any_sharded() || spec.training.is_any_offloaded()
}

/// Elements of the matrices of the largest layer.
pub(super) fn largest_layer(model: &ModelConfig) -> u64 {
    (0..model.num_layers).map(|layer_idx| model.matrices_of_layer(layer_idx)).max().unwrap_or(0)
}

/// Returns the model with the job's quantization. A quantization that the model does not allow is left out;
/// [`crate::check_model`] reports it.
pub(crate) fn quantized_as(spec: &ResolvedSpec, model: &ModelConfig) -> ModelConfig {
    let quantized = model.clone().with_quantization(spec.model.quantization.as_ref());
    quantized.unwrap_or_else(|_| model.clone())
}

/// The largest quantized weight, dequantized while a product of the forward or backward pass reads it.
pub(super) fn dequantized(model: &ModelConfig, width: u64) -> MemoryTerm {
    let largest = if model.quantization.is_some() { model.largest_matrix() } else { 0 };
    term("dequantized weight", width * largest)
}

pub(super) fn on_gpu(spec: &ResolvedSpec) -> bool {
    spec.workers.device == Device::Cuda
}

pub(super) fn elements(tensor: &TensorShape) -> u64 {
    tensor.shape.iter().map(|size| *size as u64).product()
}
