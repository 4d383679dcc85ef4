//! The memory of a sharded or offloaded model (`training.offload.parameters`) on one rank: its shard, and
//! whole FSDP units while they are computed with. Zero if every rank keeps a whole copy on its device.

use super::{
    FP32, MemoryTerm, Trained, frozen_width, is_gathered_by_unit, larger, on_gpu, outer_parameters, term,
};
use crate::plan::model_config::{ModelConfig, QuantizedSize};
use crate::resolved::ResolvedSpec;

const GATHERED: &str = "gathered weights";
const FETCHED: &str = "fetched weights";

/// The parameters of the model's FSDP units, and the number of ranks over which they are sharded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shards {
    dp_shard: u64,
    /// The experts' weights, where ranks of a copy have different experts; none where they do not.
    experts: ExpertShards,
    /// Whether a rank's shard of any role is offloaded between uses.
    is_offloaded: bool,
    /// Whether roles are gathered unit by unit.
    by_unit: bool,
    /// Layers that stay gathered between forward and backward pass.
    unsharded_layers: u64,
    /// Of one layer, adapter included.
    layer: u64,
    /// The quantized parameters of the largest layer.
    quantized: QuantizedSize,
    /// Of embedding, final norm and head, trained copies beside an adapter included.
    outer: u64,
    trained_layer: u64,
    trained_outer: u64,
    /// Elements of the largest trained tensor in a layer, and outside of the layers.
    largest_trained: (u64, u64),
    on_gpu: bool,
    /// Bytes of a number as layers compute with it.
    width: u64,
    /// Bytes of a number as weights of layers are kept.
    kept_width: u64,
    /// Bytes of a number of the model that samples: an adapter is folded into weights as they are kept, and
    /// weights that sample in other numbers than layers compute with are rounded once.
    sampling_width: u64,
}

/// Weights of experts with expert parallelism: all `dpShard * sp` ranks of a copy share them.
#[derive(Clone, Copy, Debug)]
struct ExpertShards {
    ep: u64,
    sp: u64,
    /// Of the model, and of one of its layers.
    all: u64,
    layer: u64,
    is_trained: bool,
}

impl ExpertShards {
    fn new(spec: &ResolvedSpec, model: &ModelConfig) -> Self {
        let mesh = &spec.workers.mesh;
        let (all, layer) = if mesh.ep > 1 { model.expert_weights() } else { (0, 0) };
        let is_trained = spec.model.lora.is_none();
        Self { ep: mesh.ep.into(), sp: mesh.sp.into(), all, layer, is_trained }
    }

    /// Those of a layer that its computation needs on one rank.
    fn layer_here(&self) -> u64 {
        self.layer / self.ep
    }

    fn trained_layer(&self) -> u64 {
        if self.is_trained { self.layer } else { 0 }
    }
}

impl Shards {
    pub(super) fn new(spec: &ResolvedSpec, model: &ModelConfig, trained: &Trained, width: u64) -> Self {
        let count = model.parameter_count();
        let outer = outer_parameters(spec, model);
        let has_adapter = spec.model.lora.is_some();
        let saved_outside = if has_adapter { trained.outside } else { 0 };
        let adapter_layer = if has_adapter { trained.of_one_layer } else { 0 };
        let kept_width = if has_adapter { frozen_width(spec) } else { FP32 };
        let samples_as_computed =
            spec.rollout.precision.is_none_or(|precision| precision == spec.training.precision);
        Self {
            dp_shard: spec.workers.mesh.dp_shard.into(),
            experts: ExpertShards::new(spec, model),
            is_offloaded: spec.training.is_any_offloaded(),
            by_unit: is_gathered_by_unit(spec),
            unsharded_layers: spec.training.layers_kept_unsharded(model.num_layers) as u64,
            layer: count.per_layer + adapter_layer,
            quantized: model.quantized_in_layer(0),
            outer: outer + saved_outside,
            trained_layer: trained.of_one_layer,
            trained_outer: if has_adapter { saved_outside } else { outer },
            largest_trained: (trained.largest_of_layer, trained.largest_outside),
            on_gpu: on_gpu(spec),
            width,
            kept_width,
            sampling_width: if has_adapter || !samples_as_computed { kept_width } else { width },
        }
    }

    /// The same of a role that so many ranks hold a copy of together.
    pub(super) fn of_degree(&self, dp_shard: u32) -> Self {
        Self { dp_shard: dp_shard.into(), ..*self }
    }

    /// How many of so many parameters one rank keeps, none of which is of distributed experts.
    pub(super) fn shard_of(&self, num_parameters: u64) -> u64 {
        num_parameters.div_ceil(self.dp_shard)
    }

    /// The same of parameters among which are all weights of the model.
    pub(super) fn shard_of_model(&self, num_parameters: u64) -> u64 {
        self.shard_beside(num_parameters, self.experts.all)
    }

    /// The same of parameters that an update changes.
    pub(super) fn shard_of_trained(&self, num_parameters: u64) -> u64 {
        self.shard_beside(num_parameters, if self.experts.is_trained { self.experts.all } else { 0 })
    }

    fn shard_beside(&self, num_parameters: u64, of_experts: u64) -> u64 {
        let of_experts = of_experts.min(num_parameters);
        self.shard_of(num_parameters - of_experts) + of_experts.div_ceil(self.dp_shard * self.experts.sp)
    }

    /// Bytes of a whole layer with all experts: numbers that are not quantized have `width` bytes.
    fn layer_bytes(&self, width: u64) -> u64 {
        width * (self.layer - self.quantized.numbers) + self.quantized.bytes
    }

    /// The same with the experts of one rank, as it computes.
    fn computed_layer_bytes(&self, width: u64) -> u64 {
        self.layer_bytes(width) - width * (self.experts.layer - self.experts.layer_here())
    }

    /// The bytes of a rank's shard of a layer.
    fn shard_of_layer(&self, width: u64) -> u64 {
        let dense = self.layer - self.quantized.numbers;
        width * self.shard_beside(dense, self.experts.layer) + self.shard_of(self.quantized.bytes)
    }

    /// During weight sync: one FSDP unit with all experts and the prefetched one, which with expert
    /// parallelism has those of one rank, as the first has beside the gathered ones.
    pub(super) fn taken_over(&self) -> [MemoryTerm; 2] {
        let layer = self.layer_bytes(self.sampling_width);
        let two_parts = layer + (self.sampling_width * self.outer).max(layer);
        [self.term(GATHERED, two_parts), self.on_its_way(self.sampling_width)]
    }

    /// The same while the last layer is gathered, before it is packed. The unit outside of the layers was
    /// first.
    pub(super) fn last_taken_over(&self) -> [MemoryTerm; 2] {
        let two_layers = 2 * self.layer_bytes(self.sampling_width);
        [self.term(GATHERED, two_layers), self.on_its_way(self.sampling_width)]
    }

    /// Whether a rank gathers or prefetches the model unit by unit.
    pub(super) fn is_gathered_by_unit(&self) -> bool {
        self.by_unit
    }

    /// In a pass: the unit outside of the layers, the computing layer and the prefetched one, `width` bytes a
    /// number.
    pub(super) fn gathered(&self, width: u64) -> [MemoryTerm; 2] {
        let gathered = width * self.outer + 2 * self.computed_layer_bytes(width);
        [self.term(GATHERED, gathered), self.on_its_way(width)]
    }

    /// In an update: the unit outside of the layers, and the unsharded layers that wait for their backward
    /// pass, or the computing layer and the prefetched one, `width` bytes a number.
    pub(super) fn gathered_in_update(&self, width: u64) -> [MemoryTerm; 2] {
        let layers = self.unsharded_layers.max(2);
        let gathered = width * self.outer + layers * self.computed_layer_bytes(width);
        [self.term(GATHERED, gathered), self.on_its_way(width)]
    }

    /// The same of the reward model of which it is the most.
    pub(super) fn gathered_of(&self, judges: &[ModelConfig], width: u64) -> MemoryTerm {
        let gathered = |judge: &ModelConfig| {
            let count = judge.parameter_count();
            count.total() - count.layers + count.layers.min(2 * count.per_layer)
        };
        self.term("gathered reward model", width * judges.iter().map(gathered).max().unwrap_or(0))
    }

    /// While another role copies weights: one FSDP unit, beside the own experts all of them. On a GPU without
    /// sharding the fetched unit is copied into the compute dtype.
    pub(super) fn one_part(&self) -> MemoryTerm {
        let width = if self.on_gpu && self.dp_shard == 1 { self.width } else { FP32 };
        let layer = self.layer_bytes(width) + width * self.experts.layer_here();
        self.term(GATHERED, (width * self.outer).max(layer))
    }

    /// In a backward pass: the whole gradient of the unit outside of the layers and of the computing layer,
    /// and twice that of the previous layer, as sent and received. Without sharding gradients are added in
    /// place. On GPUs only this rank's shard is received, and by then the previous layer has freed its
    /// `freed` bytes of activations.
    pub(super) fn gradients(&self, freed: u64) -> MemoryTerm {
        let (outer, layer) = (self.trained_outer, self.trained_gathered_layer());
        let bytes = if self.dp_shard == 1 {
            FP32 * 3 * layer
        } else if self.on_gpu {
            let sent = FP32 * (2 * layer + self.shard_of(layer)).max(self.shard_of(outer));
            FP32 * outer + sent.saturating_sub(freed).max(FP32 * layer)
        } else {
            FP32 * (outer + (3 * layer).max(outer))
        };
        term("gathered gradients", bytes)
    }

    /// A rank's shard of the gradients of embeddings, final norm and head, the first that a backward pass makes.
    pub(super) fn gradients_outside_of_layers(&self) -> MemoryTerm {
        term("gradients", FP32 * self.shard_of(self.trained_outer))
    }

    /// The trained parameters of a layer whose gradients a rank gathers and then shares: with expert
    /// parallelism those of its own experts, where other ranks have the same.
    fn trained_gathered_layer(&self) -> u64 {
        let ExpertShards { ep, sp, .. } = self.experts;
        let of_experts = self.experts.trained_layer();
        let dense = if self.dp_shard == 1 { 0 } else { self.trained_layer - of_experts };
        let is_shared = self.dp_shard * sp > ep;
        dense + if is_shared { of_experts / ep } else { 0 }
    }

    /// What the optimizer fetches of offloaded weights and moments: a rank's shard of one unit, and both
    /// moments of a tensor in it and of the next one. In the unit outside of the layers the neighbours are
    /// norms.
    pub(super) fn updated(&self, moments_offloaded: bool) -> Vec<MemoryTerm> {
        let (in_layer, outside) = self.largest_trained;
        let moments =
            |num: u64, largest: u64| if moments_offloaded { num * FP32 * self.shard_of(largest) } else { 0 };
        let of = |unit: u64, moments: u64| {
            let weights = if self.is_offloaded { self.kept_width * self.shard_of(unit) } else { 0 };
            vec![term(FETCHED, weights), term("fetched moments", moments)]
        };
        // Quantized weights are never updated.
        larger(
            of(self.layer - self.quantized.numbers, moments(4, in_layer)),
            of(self.outer, moments(2, outside)),
        )
    }

    /// A rank's shard of one unit, while it is read or updated; 4 / s. Nothing where it is not offloaded.
    pub(super) fn fetched(&self) -> MemoryTerm {
        let outer = self.kept_width * self.shard_of(self.outer);
        let part = outer.max(self.shard_of_layer(self.kept_width));
        term(FETCHED, if self.is_offloaded { part } else { 0 })
    }

    /// In a pass: the rank's shard of the prefetched layer, 4 / s, until it is gathered or cast. Without
    /// sharding a layer of `width` bytes is prefetched to the place of its use. The unit outside of the
    /// layers is gathered before all others. On GPUs a shard that is not offloaded is cast before it is
    /// gathered.
    fn on_its_way(&self, width: u64) -> MemoryTerm {
        let is_cast = self.on_gpu && self.dp_shard > 1 && width != self.kept_width;
        let comes_in_place = self.dp_shard == 1 && width == self.kept_width;
        let bytes = match self.is_offloaded {
            true if !comes_in_place => self.shard_of_layer(self.kept_width),
            false if is_cast => self.shard_of_layer(width),
            _ => 0,
        };
        term(FETCHED, bytes)
    }

    fn term(&self, name: &'static str, num_bytes: u64) -> MemoryTerm {
        term(name, if self.is_gathered_by_unit() { num_bytes } else { 0 })
    }
}
