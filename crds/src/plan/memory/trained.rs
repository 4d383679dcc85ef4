//! What a job trains, by the number of its parameters and of those that ranks gather.

use super::{adapter, vision};
use crate::plan::model_config::ModelConfig;
use crate::resolved::ResolvedSpec;

/// The trained parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::plan) struct Trained {
    /// Trained parameters.
    pub(in crate::plan) num_parameters: u64,
    /// Elements of the largest trained tensor of a layer.
    pub(in crate::plan) largest_of_layer: u64,
    /// Elements of the largest outside of the layers.
    pub(in crate::plan) largest_outside: u64,
    /// LoRA's inner values of one token over all layers: r for each adapted projection.
    pub(in crate::plan) adapter_width: u64,
    /// Trained parameters of one layer.
    pub(in crate::plan) of_one_layer: u64,
    /// Trained parameters outside of the layers.
    pub(in crate::plan) outside: u64,
}

/// The parameters that a job trains: all, or those of the adapter.
pub(in crate::plan) fn trained(spec: &ResolvedSpec, model: &ModelConfig) -> Trained {
    match &spec.model.lora {
        Some(lora) => with_labels(adapter::trained(lora, model), model),
        None => Trained {
            num_parameters: model.parameter_count().total() + vision::parameters(spec, model),
            largest_of_layer: model.largest_matrix(),
            largest_outside: ((model.vocab_size * model.hidden_size) as u64)
                .max(vision::largest(spec, model)),
            adapter_width: 0,
            of_one_layer: model.parameter_count().per_layer,
            outside: outer_parameters(spec, model),
        },
    }
}

/// Numbers of embedding, final norm and head, and of a vision tower that is trained.
pub(super) fn outer_parameters(spec: &ResolvedSpec, model: &ModelConfig) -> u64 {
    let count = model.parameter_count();
    count.embedding + count.final_norm + count.head + vision::parameters(spec, model)
}

/// The model as wide as a rank of a training tensor-parallel group has it. Weight sync and rollout read all
/// of it.
pub(in crate::plan) fn cut(spec: &ResolvedSpec, model: &ModelConfig) -> ModelConfig {
    match spec.workers.mesh.tp {
        1 => model.clone(),
        tp => model.tp_sharded(tp as usize),
    }
}

/// Whether the head of a language model is trained, with everything else or beside an adapter.
pub(super) fn trains_head(spec: &ResolvedSpec, model: &ModelConfig) -> bool {
    spec.model.lora.as_ref().is_none_or(|lora| adapter::trains_head(lora, model))
}

/// An adapter beside the head of a classifier, which is trained whole.
pub(super) fn with_labels(adapter: Trained, model: &ModelConfig) -> Trained {
    let head = if model.head.num_labels() == 0 { 0 } else { model.parameter_count().head };
    Trained {
        num_parameters: adapter.num_parameters + head,
        outside: adapter.outside + head,
        largest_outside: adapter.largest_outside.max(head),
        ..adapter
    }
}
