//! What a worker holds of a model that several share: its part at rest, and whole parts of the model while they are
//! computed with. Zero where every worker has a copy of its own.

use super::{FP32, MemoryTerm, Trained, term};
use crate::plan::model_config::ModelConfig;
use crate::resolved::ResolvedSpec;

/// Parameters of the model's parts, and among how many workers they are divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shards {
    dp_shard: u64,
    /// Of one layer, adapter included.
    layer: u64,
    /// Of embedding, final norm and head.
    outer: u64,
    trained_layer: u64,
    trained_outer: u64,
    /// Bytes of a number as layers compute with it.
    width: u64,
    /// Bytes of a number of the model that samples: an adapter is folded into weights as they are kept.
    sampling_width: u64,
}

impl Shards {
    pub(super) fn new(spec: &ResolvedSpec, model: &ModelConfig, trained: &Trained, width: u64) -> Self {
        let count = model.parameter_count();
        let outer = count.embedding + count.final_norm + count.head;
        let has_adapter = spec.model.lora.is_some();
        let adapter_layer = if has_adapter { trained.of_one_layer } else { 0 };
        Self {
            dp_shard: spec.workers.mesh.dp_shard.into(),
            layer: count.per_layer + adapter_layer,
            outer,
            trained_layer: trained.of_one_layer,
            trained_outer: if has_adapter { 0 } else { outer },
            width,
            sampling_width: if has_adapter { FP32 } else { width },
        }
    }

    /// How many of so many parameters one worker keeps.
    pub(super) fn part_of(&self, num_parameters: u64) -> u64 {
        num_parameters.div_ceil(self.dp_shard)
    }

    /// While the rollout takes the model over, a part and the one that comes next.
    pub(super) fn taken_over(&self) -> MemoryTerm {
        self.term("gathered weights", self.sampling_width * (self.layer + self.outer.max(self.layer)))
    }

    /// Whether several workers hold a copy of the model together.
    pub(super) fn is_shared(&self) -> bool {
        self.dp_shard > 1
    }

    /// In a pass what is outside of the layers, the layer that computes and the one that comes next, b bytes a number.
    pub(super) fn gathered(&self) -> MemoryTerm {
        self.term("gathered weights", self.width * (self.outer + 2 * self.layer))
    }

    /// The same of the reward model of which it is the most.
    pub(super) fn gathered_of(&self, judges: &[ModelConfig]) -> MemoryTerm {
        let gathered = |judge: &ModelConfig| {
            let count = judge.parameter_count();
            count.total() - count.per_layer * (judge.num_layers as u64).saturating_sub(2)
        };
        self.term("gathered reward model", self.width * judges.iter().map(gathered).max().unwrap_or(0))
    }

    /// While another role copies weights, what is outside of the layers, or a layer.
    pub(super) fn one_part(&self) -> MemoryTerm {
        self.term("gathered weights", FP32 * self.outer.max(self.layer))
    }

    /// In a backward pass the whole gradient of what is outside of the layers and of the layer that computes, and of
    /// the one before it twice: as it is sent, and what has come from the others.
    pub(super) fn gradients(&self) -> MemoryTerm {
        let num_gradients = self.trained_outer + (3 * self.trained_layer).max(self.trained_outer);
        self.term("gathered gradients", FP32 * num_gradients)
    }

    fn term(&self, name: &'static str, num_bytes: u64) -> MemoryTerm {
        term(name, if self.dp_shard == 1 { 0 } else { num_bytes })
    }
}
