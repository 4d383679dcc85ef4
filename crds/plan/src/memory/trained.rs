//! Counts of the parameters that a job trains: the full model, or an adapter.

use rlt_api::resolved::ResolvedSpec;
use rlt_models::{ModelConfig, ParameterCount};

use super::{adapter, vision};

/// Parameter counts of the model on one rank, before FSDP shards it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalCount {
    /// All parameters of the model, or of the rank's tensor-parallel shard, with the experts of all ranks.
    pub(super) parameters: ParameterCount,
    /// Weights of distributed experts among them; 0 without expert parallelism.
    pub(super) experts: u64,
    /// Weights of distributed experts in one layer that has experts.
    pub(super) experts_of_layer: u64,
}

impl LocalCount {
    /// Counts the parameters of the full `model`, for a rank without tensor parallelism.
    pub(crate) fn full(spec: &ResolvedSpec, model: &ModelConfig) -> Self {
        let (experts, experts_of_layer) = if distributes(spec) { model.expert_weights() } else { (0, 0) };
        Self { parameters: model.parameter_count(), experts, experts_of_layer }
    }

    /// Counts the parameters of the tensor-parallel shard of `model`, the full model, that a rank trains.
    pub(crate) fn trained(spec: &ResolvedSpec, model: &ModelConfig) -> Self {
        let tp = spec.workers.mesh.tp as usize;
        if tp == 1 {
            return Self::full(spec, model);
        }
        let of_rank = || model.expert_weights_of_rank(tp);
        let (experts, experts_of_layer) = if distributes(spec) { of_rank() } else { (0, 0) };
        Self { parameters: model.parameter_count_of_rank(tp), experts, experts_of_layer }
    }
}

/// Whether expert parallelism distributes the experts over ranks.
fn distributes(spec: &ResolvedSpec) -> bool {
    spec.workers.mesh.ep > 1
}

/// Counts of trained parameters, by where they are in the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trained {
    /// Number of trained parameters in all.
    pub(crate) num_parameters: u64,
    /// Elements of the largest trained tensor inside a layer.
    pub(crate) largest_of_layer: u64,
    /// Elements of the largest trained tensor outside of the layers.
    pub(crate) largest_outside: u64,
    /// Inner values of a token in all LoRA adapters, over all layers: r for each adapted projection.
    pub(crate) adapter_width: u64,
    /// Number of trained parameters of one layer.
    pub(crate) of_one_layer: u64,
    /// Number of trained parameters outside of the layers.
    pub(crate) outside: u64,
}

/// Counts the parameters that a job trains: all of the model, of which the rank has `count`, or those of the
/// adapter.
pub(crate) fn trained(spec: &ResolvedSpec, model: &ModelConfig, count: &LocalCount) -> Trained {
    match &spec.model.lora {
        Some(lora) => with_labels(adapter::trained(lora, model), model),
        None => Trained {
            num_parameters: count.parameters.total() + vision::parameters(spec, model),
            largest_of_layer: model.largest_matrix(),
            largest_outside: ((model.vocab_size * model.hidden_size) as u64)
                .max(vision::largest(spec, model)),
            adapter_width: 0,
            of_one_layer: count.parameters.per_layer,
            outside: outer_parameters(spec, model, count),
        },
    }
}

/// Number of parameters of embedding, final norm and head, and of a trained vision tower.
pub(super) fn outer_parameters(spec: &ResolvedSpec, model: &ModelConfig, count: &LocalCount) -> u64 {
    let count = &count.parameters;
    count.embedding + count.final_norm + count.head + vision::parameters(spec, model)
}

/// Returns the tensor-parallel shard of the model that a rank trains. Weight sync and rollout use the full
/// model.
pub(crate) fn cut(spec: &ResolvedSpec, model: &ModelConfig) -> ModelConfig {
    match spec.workers.mesh.tp {
        1 => model.clone(),
        tp => model.tp_sharded(tp as usize),
    }
}

/// Whether the language-model head is trained, with the full model or through an adapter's `modulesToSave`.
pub(super) fn trains_head(spec: &ResolvedSpec, model: &ModelConfig) -> bool {
    spec.model.lora.as_ref().is_none_or(|lora| adapter::trains_head(lora, model))
}

/// Adds the head of a classifier to the trained parameters of an adapter: it is always trained in full.
pub(super) fn with_labels(adapter: Trained, model: &ModelConfig) -> Trained {
    let head = if model.head.num_labels() == 0 { 0 } else { model.parameter_count().head };
    Trained {
        num_parameters: adapter.num_parameters + head,
        outside: adapter.outside + head,
        largest_outside: adapter.largest_outside.max(head),
        ..adapter
    }
}
