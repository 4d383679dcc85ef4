//! What a worker holds of a model that several share, or whose weights rest (`training.offload.parameters`):
//! its part at rest, and whole parts of the model while they are computed with. Zero where every worker has a
//! copy of its own at hand.

use super::{FP32, MemoryTerm, Trained, frozen_width, term};
use crate::plan::model_config::ModelConfig;
use crate::resolved::ResolvedSpec;

const GATHERED: &str = "gathered weights";
const FETCHED: &str = "fetched weights";

/// Parameters of the model's parts, and among how many workers they are divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shards {
    dp_shard: u64,
    /// Whether a worker's part is away while nobody needs it.
    rests: bool,
    /// Of one layer, adapter included.
    layer: u64,
    /// Of embedding, final norm and head.
    outer: u64,
    trained_layer: u64,
    trained_outer: u64,
    /// Bytes of a number as layers compute with it.
    width: u64,
    /// Bytes of a number as weights of layers are kept.
    kept_width: u64,
    /// Bytes of a number of the model that samples: an adapter is folded into weights as they are kept, and
    /// weights that sample in other numbers than layers compute with are rounded once.
    sampling_width: u64,
}

impl Shards {
    pub(super) fn new(spec: &ResolvedSpec, model: &ModelConfig, trained: &Trained, width: u64) -> Self {
        let count = model.parameter_count();
        let outer = count.embedding + count.final_norm + count.head;
        let has_adapter = spec.model.lora.is_some();
        let adapter_layer = if has_adapter { trained.of_one_layer } else { 0 };
        let kept_width = if has_adapter { frozen_width(spec) } else { FP32 };
        let samples_as_computed =
            spec.rollout.precision.is_none_or(|precision| precision == spec.training.precision);
        Self {
            dp_shard: spec.workers.mesh.dp_shard.into(),
            rests: spec.training.offload.parameters,
            layer: count.per_layer + adapter_layer,
            outer,
            trained_layer: trained.of_one_layer,
            trained_outer: if has_adapter { 0 } else { outer },
            width,
            kept_width,
            sampling_width: if has_adapter || !samples_as_computed { kept_width } else { width },
        }
    }

    /// How many of so many parameters one worker keeps.
    pub(super) fn part_of(&self, num_parameters: u64) -> u64 {
        num_parameters.div_ceil(self.dp_shard)
    }

    /// While the rollout takes the model over, a part and the one that comes next.
    pub(super) fn taken_over(&self) -> [MemoryTerm; 2] {
        let two_parts = self.layer + self.outer.max(self.layer);
        [self.term(GATHERED, self.sampling_width * two_parts), self.on_its_way(self.sampling_width)]
    }

    /// Whether a worker has parts of the model at hand only while it needs them.
    pub(super) fn comes_in_parts(&self) -> bool {
        self.dp_shard > 1 || self.rests
    }

    /// In a pass what is outside of the layers, the layer that computes and the one that comes next, b bytes
    /// a number.
    pub(super) fn gathered(&self) -> [MemoryTerm; 2] {
        let gathered = self.width * (self.outer + 2 * self.layer);
        [self.term(GATHERED, gathered), self.on_its_way(self.width)]
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
        self.term(GATHERED, FP32 * self.outer.max(self.layer))
    }

    /// In a backward pass the whole gradient of what is outside of the layers and of the layer that computes,
    /// and of the one before it twice: as it is sent, and what has come from the others. A worker alone adds
    /// up where they stay.
    pub(super) fn gradients(&self) -> MemoryTerm {
        let num_gradients = self.trained_outer + (3 * self.trained_layer).max(self.trained_outer);
        term("gathered gradients", if self.dp_shard == 1 { 0 } else { FP32 * num_gradients })
    }

    /// A worker's part of what is outside of the layers, or of a layer, while it is read or updated; 4 / s.
    /// Nothing where it never goes.
    pub(super) fn fetched(&self) -> MemoryTerm {
        let part = self.part_of(self.outer.max(self.layer));
        term(FETCHED, if self.rests { self.kept_width * part } else { 0 })
    }

    /// In a pass the worker's part of the layer that comes next, 4 / s, until it is gathered or cast: a
    /// worker alone fetches one that is `width` bytes wide to where it is computed with. What is outside of
    /// the layers has come before there is anything else.
    fn on_its_way(&self, width: u64) -> MemoryTerm {
        let comes_in_place = self.dp_shard == 1 && width == self.kept_width;
        let part = self.kept_width * self.part_of(self.layer);
        term(FETCHED, if self.rests && !comes_in_place { part } else { 0 })
    }

    fn term(&self, name: &'static str, num_bytes: u64) -> MemoryTerm {
        term(name, if self.comes_in_parts() { num_bytes } else { 0 })
    }
}
