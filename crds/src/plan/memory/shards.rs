//! What a worker holds of a model that several share, or whose weights rest (`training.offload.parameters`): its part at rest,
//! and whole parts of the model while they are computed with. Zero where every worker has a copy of its own at hand.

use super::{FP32, MemoryTerm, Trained, term};
use crate::plan::model_config::ModelConfig;
use crate::resolved::ResolvedSpec;

/// Parameters of the model's parts, and among how many workers they are divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shards {
    dp_shard: u64,
    /// Whether a worker's part is away while nobody needs it.
    rests: bool,
    /// Parameters of model and adapter.
    all: u64,
    /// Of one layer, adapter included.
    layer: u64,
    /// Of embedding, final norm and head.
    outer: u64,
    trained_layer: u64,
    trained_outer: u64,
}

impl Shards {
    pub(super) fn new(spec: &ResolvedSpec, model: &ModelConfig, trained: &Trained) -> Self {
        let count = model.parameter_count();
        let outer = count.embedding + count.final_norm + count.head;
        let has_adapter = spec.model.lora.is_some();
        let (adapter, adapter_layer) =
            if has_adapter { (trained.num_parameters, trained.of_one_layer) } else { (0, 0) };
        Self {
            dp_shard: spec.workers.mesh.dp_shard.into(),
            rests: spec.training.offload.parameters,
            all: count.total() + adapter,
            layer: count.per_layer + adapter_layer,
            outer,
            trained_layer: trained.of_one_layer,
            trained_outer: if has_adapter { 0 } else { outer },
        }
    }

    /// How many of so many parameters one worker keeps.
    pub(super) fn part_of(&self, num_parameters: u64) -> u64 {
        num_parameters.div_ceil(self.dp_shard)
    }

    /// While completions are sampled the whole model is there: 4 P.
    pub(super) fn held(&self) -> MemoryTerm {
        self.term("gathered weights", self.all)
    }

    /// In a pass what is outside of the layers, the layer that computes and the one that comes next.
    pub(super) fn gathered(&self) -> MemoryTerm {
        self.term("gathered weights", self.outer + 2 * self.layer)
    }

    /// While another role copies weights, what is outside of the layers, or a layer.
    pub(super) fn one_part(&self) -> MemoryTerm {
        self.term("gathered weights", self.outer.max(self.layer))
    }

    /// In a backward pass the whole gradient of what is outside of the layers and of the layer that computes, and of
    /// the one before it twice: as it is sent, and what has come from the others. A worker alone adds up where they stay.
    pub(super) fn gradients(&self) -> MemoryTerm {
        let gathered = self.trained_outer + (3 * self.trained_layer).max(self.trained_outer);
        term("gathered gradients", if self.dp_shard == 1 { 0 } else { FP32 * gathered })
    }

    /// A worker's part of what is outside of the layers, or of a layer, while it is read, updated or saved; 4 / s. Nothing
    /// where it never goes.
    pub(super) fn fetched(&self) -> MemoryTerm {
        let part = self.part_of(self.outer.max(self.layer));
        term("fetched weights", if self.rests { FP32 * part } else { 0 })
    }

    fn term(&self, name: &'static str, num_parameters: u64) -> MemoryTerm {
        term(name, if self.dp_shard == 1 && !self.rests { 0 } else { FP32 * num_parameters })
    }
}
