//! Memory of a sharded or offloaded model (`training.offload.parameters`) on one rank: its shard, and the
//! FSDP units that are gathered for compute. All terms are zero where every rank keeps a full copy on its
//! device.

use rlt_api::resolved::ResolvedSpec;
use rlt_models::{ModelConfig, QuantizedSize};

use super::{
    FP32, LocalCount, MemoryTerm, Trained, frozen_width, is_gathered_by_unit, larger, on_gpu,
    outer_parameters, term,
};

const GATHERED: &str = "gathered weights";
const FETCHED: &str = "fetched weights";

/// Parameter counts of the model's FSDP units, and the number of ranks over which they are sharded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shards {
    dp_shard: u64,
    /// Expert weights under expert parallelism; empty without it.
    experts: ExpertShards,
    /// Whether the shards of any role are offloaded between uses.
    is_offloaded: bool,
    /// Whether FSDP units are gathered or prefetched one by one.
    by_unit: bool,
    /// Number of layers that stay gathered between forward and backward pass.
    unsharded_layers: u64,
    /// Parameters of the model, without an adapter and a vision tower.
    all: u64,
    /// Parameters of one layer, adapter included.
    layer: u64,
    /// Quantized parameters of the first layer, whose size stands for all layers.
    quantized: QuantizedSize,
    /// Parameters of embedding, final norm and head, including full copies that train next to an adapter.
    outer: u64,
    trained_layer: u64,
    trained_outer: u64,
    /// Elements of the largest trained tensor inside a layer.
    largest_in_layer: u64,
    /// Elements of the largest trained tensor outside of the layers.
    largest_outside: u64,
    on_gpu: bool,
    /// Bytes of an element in the compute dtype of layers.
    width: u64,
    /// Bytes of an element in the dtype in which layer weights are stored.
    kept_width: u64,
    /// Bytes of an element from which the rollout's weights are packed. It is the stored width with an
    /// adapter, which is merged into stored weights, and where the rollout's dtype differs from the compute
    /// dtype, so that weights are rounded only once.
    sampling_width: u64,
}

/// Expert weights under expert parallelism, sharded over all `dpShard * sp` ranks of a copy.
#[derive(Clone, Copy, Debug)]
struct ExpertShards {
    ep: u64,
    sp: u64,
    /// Expert parameters of the model; `layer` counts those of one layer.
    all: u64,
    layer: u64,
    is_trained: bool,
}

impl ExpertShards {
    fn new(spec: &ResolvedSpec, count: &LocalCount) -> Self {
        let mesh = &spec.workers.mesh;
        let (all, layer) = (count.experts, count.experts_of_layer);
        let is_trained = spec.model.lora.is_none();
        Self { ep: mesh.ep.into(), sp: mesh.sp.into(), all, layer, is_trained }
    }

    /// Number of expert parameters in a layer that are local to one rank.
    fn layer_here(&self) -> u64 {
        self.layer / self.ep
    }

    fn trained_layer(&self) -> u64 {
        if self.is_trained { self.layer } else { 0 }
    }
}

impl Shards {
    /// Collects the sizes of `model`, of which a rank has `count` parameters and trains `trained`; `width` is
    /// the bytes of an element in the compute dtype.
    pub(super) fn new(
        spec: &ResolvedSpec,
        model: &ModelConfig,
        count: &LocalCount,
        trained: &Trained,
        width: u64,
    ) -> Self {
        let outer = outer_parameters(spec, model, count);
        let has_adapter = spec.model.lora.is_some();
        let saved_outside = if has_adapter { trained.outside } else { 0 };
        let adapter_layer = if has_adapter { trained.of_one_layer } else { 0 };
        let kept_width = if has_adapter { frozen_width(spec) } else { FP32 };
        let samples_as_computed =
            spec.rollout.precision.is_none_or(|precision| precision == spec.training.precision);
        Self {
            dp_shard: spec.workers.mesh.dp_shard.into(),
            experts: ExpertShards::new(spec, count),
            is_offloaded: spec.training.is_any_offloaded(),
            by_unit: is_gathered_by_unit(spec),
            unsharded_layers: spec.training.layers_kept_unsharded(model.num_layers) as u64,
            all: count.parameters.total(),
            layer: count.parameters.per_layer + adapter_layer,
            quantized: model.quantized_in_layer(0),
            outer: outer + saved_outside,
            trained_layer: trained.of_one_layer,
            trained_outer: if has_adapter { saved_outside } else { outer },
            largest_in_layer: trained.largest_of_layer,
            largest_outside: trained.largest_outside,
            on_gpu: on_gpu(spec),
            width,
            kept_width,
            sampling_width: if has_adapter || !samples_as_computed { kept_width } else { width },
        }
    }

    /// Returns the shards of a role of which `dp_shard` ranks together hold one copy.
    pub(super) fn of_degree(&self, dp_shard: u32) -> Self {
        Self { dp_shard: dp_shard.into(), ..*self }
    }

    /// Parameters of the model, without an adapter and a vision tower, before FSDP shards them.
    pub(super) fn all_parameters(&self) -> u64 {
        self.all
    }

    /// Number of parameters that one rank keeps of `num_parameters`, which contain no distributed experts.
    pub(super) fn shard_of(&self, num_parameters: u64) -> u64 {
        num_parameters.div_ceil(self.dp_shard)
    }

    /// Like [`Self::shard_of`], for parameters that include all weights of the model.
    pub(super) fn shard_of_model(&self, num_parameters: u64) -> u64 {
        self.shard_beside(num_parameters, self.experts.all)
    }

    /// Like [`Self::shard_of`], for parameters that an update changes.
    pub(super) fn shard_of_trained(&self, num_parameters: u64) -> u64 {
        self.shard_beside(num_parameters, if self.experts.is_trained { self.experts.all } else { 0 })
    }

    fn shard_beside(&self, num_parameters: u64, of_experts: u64) -> u64 {
        let of_experts = of_experts.min(num_parameters);
        self.shard_of(num_parameters - of_experts) + of_experts.div_ceil(self.dp_shard * self.experts.sp)
    }

    /// Bytes of a full layer with all experts; elements that are not quantized take `width` bytes.
    fn layer_bytes(&self, width: u64) -> u64 {
        width * (self.layer - self.quantized.numbers) + self.quantized.bytes
    }

    /// Bytes of a full layer with only the local experts, as a rank computes it.
    fn computed_layer_bytes(&self, width: u64) -> u64 {
        self.layer_bytes(width) - width * (self.experts.layer - self.experts.layer_here())
    }

    /// Bytes of a rank's shard of a layer.
    fn shard_of_layer(&self, width: u64) -> u64 {
        let dense = self.layer - self.quantized.numbers;
        width * self.shard_beside(dense, self.experts.layer) + self.shard_of(self.quantized.bytes)
    }

    /// Gathered units during weight sync: one FSDP unit with all experts, and the prefetched one. With expert
    /// parallelism the prefetched unit has only the local experts, and the first unit exists in this form
    /// too, next to its full form. Both together take no more than a second full unit.
    pub(super) fn taken_over(&self) -> [MemoryTerm; 2] {
        let layer = self.layer_bytes(self.sampling_width);
        let two_parts = layer + (self.sampling_width * self.outer).max(layer);
        [self.term(GATHERED, two_parts), self.on_its_way(self.sampling_width)]
    }

    /// Gathered units during weight sync while the last layer is gathered and not yet packed. The unit
    /// outside of the layers came first, so both units are layers.
    pub(super) fn last_taken_over(&self) -> [MemoryTerm; 2] {
        let two_layers = 2 * self.layer_bytes(self.sampling_width);
        [self.term(GATHERED, two_layers), self.on_its_way(self.sampling_width)]
    }

    /// Whether a rank gathers or prefetches the model unit by unit.
    pub(super) fn is_gathered_by_unit(&self) -> bool {
        self.by_unit
    }

    /// Gathered units in a forward pass: the unit outside of the layers, the computing layer and the
    /// prefetched layer, with `width` bytes an element.
    pub(super) fn gathered(&self, width: u64) -> [MemoryTerm; 2] {
        let gathered = width * self.outer + 2 * self.computed_layer_bytes(width);
        [self.term(GATHERED, gathered), self.on_its_way(width)]
    }

    /// Gathered units in an update: the unit outside of the layers, and the unsharded layers that wait for
    /// their backward pass, or at least the computing and the prefetched layer; `width` bytes an element.
    pub(super) fn gathered_in_update(&self, width: u64) -> [MemoryTerm; 2] {
        let layers = self.unsharded_layers.max(2);
        let gathered = width * self.outer + layers * self.computed_layer_bytes(width);
        [self.term(GATHERED, gathered), self.on_its_way(width)]
    }

    /// Gathered units in a pass of the reward model that needs most: all weights outside of its layers, and
    /// two layers.
    pub(super) fn gathered_of(&self, judges: &[ModelConfig], width: u64) -> MemoryTerm {
        let gathered = |judge: &ModelConfig| {
            let count = judge.parameter_count();
            count.total() - count.layers + count.layers.min(2 * count.per_layer)
        };
        self.term("gathered reward model", width * judges.iter().map(gathered).max().unwrap_or(0))
    }

    /// Gathered units while another role copies weights: one FSDP unit, with all experts next to the local
    /// ones. On a GPU without sharding the fetched unit is copied into the compute dtype.
    pub(super) fn one_part(&self) -> MemoryTerm {
        let width = if self.on_gpu && self.dp_shard == 1 { self.width } else { FP32 };
        let layer = self.layer_bytes(width) + width * self.experts.layer_here();
        self.term(GATHERED, (width * self.outer).max(layer))
    }

    /// Gradient buffers in a backward pass: the full gradient of the unit outside of the layers and of the
    /// computing layer, and twice that of the previous layer, as sent and received. Without sharding
    /// gradients are added in place. On GPUs a rank receives only its shard, and by then the previous layer
    /// has freed its `freed` bytes of activations.
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

    /// This rank's shard of the gradients of embeddings, final norm and head, which a backward pass computes
    /// first.
    pub(super) fn gradients_outside_of_layers(&self) -> MemoryTerm {
        term("gradients", FP32 * self.shard_of(self.trained_outer))
    }

    /// Trained parameters of a layer whose gradients are reduced over ranks. With expert parallelism the
    /// local experts count only if other ranks have the same ones.
    fn trained_gathered_layer(&self) -> u64 {
        let ExpertShards { ep, sp, .. } = self.experts;
        let of_experts = self.experts.trained_layer();
        let dense = if self.dp_shard == 1 { 0 } else { self.trained_layer - of_experts };
        let is_shared = self.dp_shard * sp > ep;
        dense + if is_shared { of_experts / ep } else { 0 }
    }

    /// Buffers for offloaded weights and moments in an optimizer step: a rank's shard of one unit, both
    /// moments of a tensor in it and those of the next tensor. In the unit outside of the layers the next
    /// tensors are norms, which are small.
    pub(super) fn updated(&self, moments_offloaded: bool) -> Vec<MemoryTerm> {
        let moments =
            |num: u64, largest: u64| if moments_offloaded { num * FP32 * self.shard_of(largest) } else { 0 };
        let of = |unit: u64, moments: u64| {
            let weights = if self.is_offloaded { self.kept_width * self.shard_of(unit) } else { 0 };
            vec![term(FETCHED, weights), term("fetched moments", moments)]
        };
        // Quantized weights are never updated.
        larger(
            of(self.layer - self.quantized.numbers, moments(4, self.largest_in_layer)),
            of(self.outer, moments(2, self.largest_outside)),
        )
    }

    /// Buffer for an offloaded shard of one unit while it is read or updated; 0 where nothing is offloaded.
    pub(super) fn fetched(&self) -> MemoryTerm {
        let outer = self.kept_width * self.shard_of(self.outer);
        let part = outer.max(self.shard_of_layer(self.kept_width));
        term(FETCHED, if self.is_offloaded { part } else { 0 })
    }

    /// Buffer for the prefetched shard of a layer in a pass, until it is gathered or cast. Without sharding,
    /// a layer that is stored in the compute dtype is prefetched directly into the buffer that compute reads.
    /// The unit outside of the layers is gathered before all layers, so it needs no prefetch. On GPUs a shard
    /// that is not offloaded is cast before it is gathered.
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
