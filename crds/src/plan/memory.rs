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
pub(in crate::plan) mod adapter;
mod passes;
mod roles;
mod rollout;
mod shards;
mod terms;
mod trained;
mod vision;
mod widths;

use serde::Serialize;

use super::batch::BatchPlan;
use super::model_config::ModelConfig;
use crate::resolved::ResolvedSpec;
use crate::spec::OffloadSpec;
use activations::Activations;
use passes::{Pass, cast_of_layer, larger, logprob, normed_weight, update};
pub(super) use roles::has_critic;
pub(super) use rollout::{memory_of_rank, tp_shard as rollout_shard};
use shards::Shards;
use terms::{kept, on_host, term};
pub(super) use trained::{Trained, cut, trained};
use trained::{outer_parameters, trains_head};
use widths::{
    dequantized, elements, frozen_width, generates, is_gathered_by_unit, largest_layer, merges, on_gpu,
};
pub(super) use widths::{quantized_as, widths_of_sync};

/// Bytes of an fp32 element.
const FP32: u64 = 4;

/// Host memory of the process besides tensors, measured on x86-64 with libtorch 2.11: tables of libtorch,
/// tokenizer and threads (the peak of a job with a few thousand parameters) and 16 MiB for the code of matrix
/// products. Pages of the program and its libraries (60 to 150 MiB, which the kernel reclaims under
/// pressure) are not counted.
const HOST_BASE_BYTES: u64 = 92 << 20;

/// GPU memory of a process besides tensors: the CUDA context with libtorch's kernels and cuBLAS' workspace,
/// as `nvidia-smi` shows for a process that has multiplied two small matrices (PyTorch issues report 400 to
/// 600 MiB on sm_80 to sm_100).
const CUDA_CONTEXT_BYTES: u64 = 640 << 20;

/// Host bytes of one token of the step's batch: token id, mask and six per-token f64 values, twice because
/// batches are copied when they are split.
const BATCH_BYTES_PER_TOKEN: u64 = 2 * (4 + 1 + 6 * 8);

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

/// Phases of a step that differ in memory use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Phase {
    /// Weights are read or initialized, and copied for the reference and the critic.
    Loading,
    /// Weight sync: the rollout packs or copies the actor's weights.
    WeightSync,
    /// Completions are sampled.
    Rollout,
    /// Reward models score completions.
    Reward,
    /// The actor, critic or reference policy scores completions, without gradients.
    Logprob,
    /// Forward and backward passes of an update.
    Update,
    /// The optimizer's step.
    Optimizer,
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

/// Memory that holds a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Place {
    /// Memory of the GPU.
    Device,
    /// Host memory: pinned where a GPU copies from or to it. On a CPU every term is here.
    Host,
}

/// A named amount of memory, such as the weights or the KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryTerm {
    /// Name of the term, stable across phases and versions.
    pub name: &'static str,
    /// Memory that holds it.
    pub place: Place,
    /// Size in bytes.
    pub bytes: u64,
}

/// Function that returns the memory terms of a role's pass, given the role's offload settings.
type PassTerms<'a> = dyn Fn(&Pass, OffloadSpec) -> Vec<MemoryTerm> + 'a;

impl MemoryPlan {
    /// Estimates the memory of a rank; `memory` is the bytes of its device, where known.
    pub(super) fn new(
        spec: &ResolvedSpec,
        model: &ModelConfig,
        judges: &[ModelConfig],
        batch: &BatchPlan,
        memory: Option<u64>,
    ) -> Self {
        let whole = &quantized_as(spec, model).with_head(spec.algorithm.head());
        let model = &cut(spec, whole);
        let (training, mesh) = (&spec.training, &spec.workers.mesh);
        let width = training.precision.width();
        let trained = trained(spec, model);
        let sharing = |sp: u32, width: u64| Activations {
            model,
            width,
            adapter_width: trained.adapter_width,
            normed_weight: normed_weight(spec, model),
            sp,
            cast_of_layer: cast_of_layer(spec, model, &trained, width),
            casts_head: !is_gathered_by_unit(spec) && trains_head(spec, model),
            largest_trained: trained.largest_of_layer,
        };
        // A critic passes over the same tokens with its own micro-batch budget and compute dtype.
        let critic = roles::has_critic(spec).then(|| training.critic_precision().width());
        let (offload, offload_of_critic) = (training.offload, training.critic_offload());
        let fullest = |own: Vec<MemoryTerm>, of_critic: u32, terms: &PassTerms<'_>| match critic {
            None => own,
            Some(width) => {
                let pass = Pass { budget: (of_critic, mesh.sp_of_critic()), width };
                larger(own, terms(&pass, offload_of_critic))
            }
        };
        let widest =
            |of_reference: Option<u64>| width.max(critic.unwrap_or(0)).max(of_reference.unwrap_or(0));
        let shards = Shards::new(spec, model, &trained, width);
        let of_sync = Shards::new(spec, whole, &self::trained(spec, whole), width);
        // The larger of the actor's and the critic's terms of FSDP units.
        let of_critic = shards.of_degree(mesh.dp_shard_of_critic());
        let at_hand = |terms: &dyn Fn(&Shards) -> Vec<MemoryTerm>| match critic {
            None => terms(&shards),
            Some(_) => larger(terms(&shards), terms(&of_critic)),
        };
        let mut resident = resident(spec, model, &trained, &shards, batch);
        let judging_width = training.reward_model_precision().width();
        resident.push(roles::reward_models(spec, judges, judging_width, &shards));
        resident.extend(vision::kept(spec, model));
        let loading = roles::loading(spec, model, &trained, &shards);
        let mut phases = vec![PhaseMemory::new(Phase::Loading, &resident, loading)];
        resident.extend(rollout::base(spec, whole, &of_sync));
        let mut add = |phase, own: Vec<MemoryTerm>| phases.push(PhaseMemory::new(phase, &resident, own));
        // Every rank samples full sequences, even where it holds only a shard of each layer.
        let alone = Activations { model: whole, width: rollout::width(spec), ..sharing(1, width) };
        let judging = || roles::judging(spec, judges, batch, judging_width, &shards);
        let judging = (!judges.is_empty()).then(judging);
        let sampling = sampling((spec, memory), (whole, batch), (&alone, &of_sync), judging);
        sampling.into_iter().for_each(|(phase, own)| add(phase, own));
        if !spec.algorithm.is_supervised() {
            let reference = roles::reference_read(spec, model, &shards);
            let scored =
                |pass: &Pass, _| logprob(spec, batch, pass.budget, &sharing(pass.budget.1, pass.width));
            // Reference and actor score one after the other.
            let own = Pass { budget: (training.max_logprob_tokens, mesh.sp_of_logprobs()), width };
            let of_reference = Pass {
                budget: (training.reference_forward_tokens(), mesh.sp_of_reference()),
                width: roles::reference_width(spec),
            };
            let scored_by_both = larger(scored(&own, offload), scored(&of_reference, offload));
            let scored = fullest(scored_by_both, training.critic_forward_tokens(), &scored);
            let gathered = |shards: &Shards| shards.gathered(widest(Some(of_reference.width))).to_vec();
            let of_reference = gathered(&shards.of_degree(mesh.dp_shard_of_reference()));
            let gathered = larger(at_hand(&gathered), of_reference);
            add(Phase::Logprob, [gathered, vec![reference], scored, vision::scoring(spec, model)].concat());
        }
        let offloads_moments = offload.optimizer || (critic.is_some() && offload_of_critic.optimizer);
        let updated = |pass: &Pass, offload: OffloadSpec, shards: &Shards| {
            let activations = sharing(pass.budget.1, pass.width);
            let settings = (pass.budget, offload.activations);
            update(spec, batch, settings, (&activations, shards), trained.num_parameters)
        };
        let own = Pass { budget: (training.max_tokens_per_micro_batch, mesh.sp), width };
        let own = updated(&own, offload, &shards);
        let by_critic = |pass: &Pass, offload| updated(pass, offload, &of_critic);
        let update = fullest(own, training.critic_micro_batch_tokens(), &by_critic);
        let gathered = at_hand(&|shards| shards.gathered_in_update(widest(None)).to_vec());
        add(Phase::Update, [gathered, update, vision::training(spec, model)].concat());
        // 4 for each trained parameter, or for this rank's shard of them; between updates there are none.
        let gradients =
            at_hand(&|own| vec![term("gradients", FP32 * own.shard_of_trained(trained.num_parameters))]);
        let moved = at_hand(&|shards| shards.updated(offloads_moments));
        add(Phase::Optimizer, [gradients, moved].concat());
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

    /// Moves all terms to the host, for jobs on a CPU.
    fn lies_on_host(&mut self) {
        self.terms.iter_mut().for_each(|term| term.place = Place::Host);
        (self.device_bytes, self.host_bytes) = (0, self.total_bytes);
    }
}

/// Returns the phases from weight sync until rewards are known, with their own terms; `judging` are those of
/// reward models.
fn sampling(
    (spec, memory): (&ResolvedSpec, Option<u64>),
    (model, batch): (&ModelConfig, &BatchPlan),
    (activations, shards): (&Activations<'_>, &Shards),
    judging: Option<Vec<MemoryTerm>>,
) -> Vec<(Phase, Vec<MemoryTerm>)> {
    let (mut phases, mut num_cached) = (Vec::new(), 0);
    let kept = || rollout::kept((spec, memory), model, batch, shards);
    if generates(spec) {
        let sync = rollout::taking_over(spec, model, activations.width, shards);
        let decoding = rollout::terms((spec, memory), model, batch, activations, shards);
        let decoding = [decoding, vision::sampling(spec, model)].concat();
        let freed_by_sync = rollout::freed_bytes(&sync, &decoding);
        num_cached = freed_by_sync + rollout::freed_bytes(&decoding, &kept());
        phases.push((Phase::WeightSync, sync));
        phases.push((Phase::Rollout, [decoding, vec![rollout::cached(spec, freed_by_sync)]].concat()));
    }
    if let Some(judging) = judging {
        phases.push((Phase::Reward, [kept(), judging, vec![rollout::cached(spec, num_cached)]].concat()));
    }
    phases
}

/// Returns the terms that are resident for the whole run.
fn resident(
    spec: &ResolvedSpec,
    model: &ModelConfig,
    trained: &Trained,
    shards: &Shards,
    batch: &BatchPlan,
) -> Vec<MemoryTerm> {
    let num_parameters = model.parameter_count().total() + vision::parameters(spec, model);
    let adapter = if spec.model.lora.is_some() { trained.num_parameters } else { 0 };
    let offload = spec.training.offload;
    // Weights take 4 P / s, or with an adapter b P / s and the adapter's 4. Quantized weights take their
    // stored bytes.
    let quantized = model.quantized();
    let dense = num_parameters - quantized.numbers;
    let weights = match spec.model.lora {
        Some(_) if frozen_width(spec) != FP32 => {
            frozen_width(spec) * shards.shard_of_model(dense) + FP32 * shards.shard_of(adapter)
        }
        _ => FP32 * shards.shard_of_model(dense + adapter),
    };
    // Two moments of 4 bytes each.
    let moments = 2 * FP32 * shards.shard_of_trained(trained.num_parameters);
    let mut terms = vec![
        on_host("host base", HOST_BASE_BYTES),
        term("CUDA context", if on_gpu(spec) { CUDA_CONTEXT_BYTES } else { 0 }),
        kept(spec, "weights", offload.parameters, weights),
        kept(spec, "quantized weights", offload.parameters, shards.shard_of(quantized.bytes)),
        roles::reference_kept(spec, model, shards),
        kept(spec, "optimizer state", offload.optimizer, moments),
    ];
    terms.extend(roles::critic(spec, model, trained, shards));
    terms.push(on_host("batch on the host", BATCH_BYTES_PER_TOKEN * batch.max_tokens_per_step));
    terms
}
