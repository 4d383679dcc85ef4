//! Memory estimate of one rank: named terms with their formulas by phase, each on the device or on its host
//! (the same memory on a CPU).
//!
//! A phase holds the terms that are resident for the whole run and its own terms. Phases follow each other,
//! so the peak is the largest phase, not their sum. Terms are upper bounds for full token budgets and longest
//! sequences. Of the free blocks that libtorch's caching allocator keeps, those are counted that another
//! CUDA stream has freed and that no phase has returned yet (`rollout::cached`), not fragments of a phase. An
//! element takes 4 bytes (trained weights, gradients, optimizer state, loss head) or the width of
//! `training.precision` (activations, weights gathered for compute, frozen weights on a GPU) or of
//! `rollout.precision` (KV cache, rollout weights).
//!
//! With `workers.mesh.dpShard` a rank keeps its shard of every role's weights, gradients and optimizer state,
//! plus the FSDP units that a pass has gathered (module `shards`). It reads only its shard of the model, and
//! packs the rollout's weights unit by unit. A checkpoint is copied into its file, which is page cache and
//! not counted. With `workers.mesh.sp` a rank computes its shard of the tokens of a pass; log-prob passes and
//! the critic have their own degrees. With `workers.mesh.rolloutTp` it holds a tensor-parallel shard of the
//! packed weights (module `rollout`). With `workers.mesh.tp` it holds a shard of every layer's width, heads
//! and vocabulary in every training role; weight sync handles full layers. With `workers.mesh.ep` the expert
//! weights are sharded over all ranks of a copy, and a pass gathers those of the rank's local experts;
//! experts count as equally busy. Offloaded tensors take host memory of a GPU, and device memory only while
//! they are prefetched or in use; on the CPU they are in a file.
//!
//! Legend: P parameters, s ranks of one copy, L layers, h hidden size, f feed-forward width, q and k widths
//! of all query and all key heads, v vocabulary, r LoRA rank; t tokens of a pass, c completion tokens of a
//! pass; b bytes of an element.

mod activations;
pub(crate) mod adapter;
mod packed_weights;
mod passes;
mod phases;
mod roles;
mod rollout;
mod shards;
mod terms;
mod trained;
mod vision;
mod widths;

use rlt_api::resolved::ResolvedSpec;
use rlt_models::ModelConfig;
use serde::Serialize;

use super::batch::BatchPlan;
use passes::larger;
use phases::PhaseTerms;
pub(super) use rollout::{memory_of_rank, tp_shard as rollout_shard};
use terms::{FP32, on_host, resident_term, term};
pub use terms::{MemoryTerm, Phase, Place};
pub(super) use trained::{LocalCount, Trained, cut, trained};
use trained::{outer_parameters, trains_head};
use widths::{
    dequantized, elements, frozen_width, is_gathered_by_unit, largest_layer, merges, on_gpu, rollout_width,
};
pub(super) use widths::{has_critic, quantized_as, widths_of_sync};

/// Memory of one rank, by phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryPlan {
    /// Phases with their terms, in the order in which they run.
    pub phases: Vec<PhaseMemory>,
    /// Bytes of the largest phase, on device and host together.
    pub peak_bytes: u64,
    /// Most bytes of a GPU in any phase; 0 on a CPU.
    pub peak_device_bytes: u64,
    /// Most bytes of the host in any phase.
    pub peak_host_bytes: u64,
    /// Phase that takes the most device memory; on a CPU the most host memory.
    pub peak_phase: Phase,
}

/// Memory of one phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PhaseMemory {
    /// Phase of the step.
    pub phase: Phase,
    /// Memory terms of the phase; terms of 0 bytes are left out.
    pub terms: Vec<MemoryTerm>,
    /// Bytes of the phase's terms on the GPU; 0 on a CPU.
    pub device_bytes: u64,
    /// Bytes of the phase's terms on the host.
    pub host_bytes: u64,
    /// Bytes of the phase's terms, on device and host together.
    pub total_bytes: u64,
}

impl MemoryPlan {
    /// Estimates the memory of a rank; `memory` is the bytes of its device, where known.
    pub(super) fn new(
        spec: &ResolvedSpec,
        model: &ModelConfig,
        judges: &[ModelConfig],
        batch: &BatchPlan,
        memory: Option<u64>,
    ) -> Self {
        let full = quantized_as(spec, model).with_head(spec.algorithm.head());
        let local = cut(spec, &full);
        let terms = PhaseTerms::new(spec, &full, &local, judges, batch);
        let mut resident = terms.resident();
        let mut phases = vec![PhaseMemory::new(Phase::Loading, &resident, terms.loading())];
        resident.extend(terms.resident_in_rollout());
        let mut of_step = terms.sampling(memory);
        of_step.extend(terms.logprob().map(|scoring| (Phase::Logprob, scoring)));
        of_step.push((Phase::Update, terms.update()));
        of_step.push((Phase::Optimizer, terms.optimizer()));
        phases.extend(of_step.into_iter().map(|(phase, own)| PhaseMemory::new(phase, &resident, own)));
        if !on_gpu(spec) {
            phases.iter_mut().for_each(PhaseMemory::lies_on_host);
        }
        Self::of_phases(phases)
    }

    fn of_phases(phases: Vec<PhaseMemory>) -> Self {
        let most = |of: fn(&PhaseMemory) -> u64| phases.iter().map(of).max().unwrap_or(0);
        let peak = phases.iter().max_by_key(|phase| (phase.device_bytes, phase.total_bytes));
        Self {
            peak_bytes: most(|phase| phase.total_bytes),
            peak_device_bytes: most(|phase| phase.device_bytes),
            peak_host_bytes: most(|phase| phase.host_bytes),
            peak_phase: peak.map_or(Phase::Update, |peak| peak.phase),
            phases,
        }
    }
}

impl PhaseMemory {
    fn new(phase: Phase, resident: &[MemoryTerm], own: Vec<MemoryTerm>) -> Self {
        let terms: Vec<_> = resident.iter().copied().chain(own).filter(|term| term.bytes > 0).collect();
        let at = |place| terms.iter().filter(|term| term.place == place).map(|term| term.bytes).sum::<u64>();
        let (device_bytes, host_bytes) = (at(Place::Device), at(Place::Host));
        Self { phase, device_bytes, host_bytes, total_bytes: device_bytes + host_bytes, terms }
    }

    /// Moves all terms to the host, which holds everything for jobs on a CPU.
    fn lies_on_host(&mut self) {
        self.terms.iter_mut().for_each(|term| term.place = Place::Host);
        (self.device_bytes, self.host_bytes) = (0, self.total_bytes);
    }
}
