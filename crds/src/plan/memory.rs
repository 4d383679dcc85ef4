//! The memory of one rank, by phase, in named terms with their formulas, and where each is: on the device or
//! on its host, which are the same on a CPU.
//!
//! A phase has the terms that are resident for the whole run and its own; phases follow each other, so
//! the peak is the largest phase, not their sum. Terms are upper bounds for full budgets and longest
//! sequences. Only tensors are counted, not the free blocks that libtorch's caching allocator keeps. Numbers
//! are 4 bytes wide (trained weights, gradients, optimizer, loss head) or as wide as `training.precision`
//! (activations, weights that are gathered to compute with, on a GPU frozen weights too) or
//! `rollout.precision` (KV cache, rollout weights).
//!
//! With `workers.mesh.dpShard` a rank keeps its shard of every role's weights, gradients and optimizer state,
//! and the FSDP units that a pass has gathered: `shards`. It reads only its shard of the model, and packs the
//! rollout's weights unit by unit. A checkpoint is copied into its file: that is page cache, which is not
//! counted. With `workers.mesh.sp` it has its share of the tokens of a pass; passes for log-probs and of the
//! critic have their own degrees. With `workers.mesh.rolloutTp` a tensor-parallel shard of the packed
//! weights: `rollout`. With `workers.mesh.tp` it has its part of every layer's width, heads and vocabulary in
//! every training role, except for weight sync. With `workers.mesh.ep` the weights of experts are shared by
//! all ranks of a copy, and a pass gathers those of a rank's own; experts count as equally busy. Offloaded
//! tensors take memory of a GPU's host, and of the GPU only while they are prefetched or in use; on the CPU
//! they are in a file.
//!
//! Legend: P parameters, s ranks of one copy, L layers, h hidden size, f feed-forward width, q and k widths
//! of all query and all key heads, v vocabulary, r LoRA rank; t tokens of a pass, c completion tokens of a
//! pass; b bytes of a number.

mod activations;
pub(in crate::plan) mod adapter;
mod roles;
mod rollout;
mod shards;
mod vision;

use serde::Serialize;

use super::batch::{BatchPlan, FullPass, scored_share};
use super::model_config::ModelConfig;
use crate::resolved::ResolvedSpec;
use crate::spec::{Device, OffloadSpec};
use activations::Activations;
pub(super) use roles::has_critic;
pub(super) use rollout::{memory_of_rank, tp_shard as rollout_shard};
use shards::Shards;

/// Bytes of an fp32 number.
const FP32: u64 = 4;

/// The process's memory besides tensors, measured on x86-64 with libtorch 2.11: tables of
/// libtorch, tokenizer and threads, the peak of a job on a few thousand parameters, and 16 MiB for products'
/// code. The pages of program and libraries, 60 to 150 MiB that the kernel takes back where it needs them,
/// are not counted.
const HOST_BASE_BYTES: u64 = 92 << 20;

/// A process's GPU memory besides tensors: the context with libtorch's kernels and cuBLAS' workspace,
/// as `nvidia-smi` shows for a process that has multiplied two small matrices (PyTorch issues report 400 to
/// 600 MiB on sm_80 to sm_100).
const CUDA_CONTEXT_BYTES: u64 = 640 << 20;

/// Bytes of one token of the step's batch on the host: ids, masks and per-token numbers in f64, twice over
/// while batches are split.
const BATCH_BYTES_PER_TOKEN: u64 = 2 * (4 + 1 + 6 * 8);

/// The memory of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemoryPlan {
    /// Each phase with its terms.
    pub phases: Vec<PhaseMemory>,
    /// Bytes of the largest phase, on device and host together.
    pub peak_bytes: u64,
    /// Most bytes of a GPU in any phase; 0 on a CPU.
    pub peak_device_bytes: u64,
    /// Most bytes of the host in any phase.
    pub peak_host_bytes: u64,
    /// The phase that takes the most of the GPU, on a CPU of the host.
    pub peak_phase: Phase,
}

/// The phases of a step that differ in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Phase {
    /// Weights are read or drawn, copied for the reference and the critic.
    Loading,
    /// The rollout takes the actor's weights over.
    WeightSync,
    /// Completions are sampled.
    Rollout,
    /// Completions are judged by reward models.
    Reward,
    /// Completions are scored by the actor or the reference policy, without gradients.
    Logprob,
    /// Forward and backward passes of an update.
    Update,
    /// The optimizer's step.
    Optimizer,
}

/// One phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PhaseMemory {
    /// Which phase.
    pub phase: Phase,
    /// Its terms; those of 0 bytes are left out.
    pub terms: Vec<MemoryTerm>,
    /// The sum of its terms on the GPU; 0 on a CPU.
    pub device_bytes: u64,
    /// The sum of its terms on the host.
    pub host_bytes: u64,
    /// The sum of its terms.
    pub total_bytes: u64,
}

/// Where a term is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Place {
    /// In memory of the GPU.
    Device,
    /// In memory of the host, pinned where a GPU copies it; everything that a CPU computes with.
    Host,
}

/// One thing that takes memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryTerm {
    /// Its name, the same in every phase and version.
    pub name: &'static str,
    /// Where it is.
    pub place: Place,
    /// How much it takes.
    pub bytes: u64,
}

/// The trained parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Trained {
    /// Trained parameters.
    pub(super) num_parameters: u64,
    /// Elements of the largest trained tensor of a layer.
    pub(super) largest_of_layer: u64,
    /// Elements of the largest outside of the layers.
    pub(super) largest_outside: u64,
    /// LoRA's inner values of one token over all layers: r for each adapted projection.
    pub(super) adapter_width: u64,
    /// Trained parameters of one layer.
    pub(super) of_one_layer: u64,
    /// Trained parameters outside of the layers.
    pub(super) outside: u64,
}

/// The parameters that a job trains: all, or those of the adapter.
pub(super) fn trained(spec: &ResolvedSpec, model: &ModelConfig) -> Trained {
    match &spec.model.lora {
        Some(lora) => with_labels(adapter::trained(lora, model), model),
        None => Trained {
            num_parameters: model.parameter_count().total(),
            largest_of_layer: model.largest_matrix(),
            largest_outside: (model.vocab_size * model.hidden_size) as u64,
            adapter_width: 0,
            of_one_layer: model.parameter_count().per_layer,
            outside: outer_parameters(model),
        },
    }
}

/// Numbers of embedding, final norm and head.
fn outer_parameters(model: &ModelConfig) -> u64 {
    let count = model.parameter_count();
    count.embedding + count.final_norm + count.head
}

/// The model as wide as a rank of a training tensor-parallel group has it. Weight sync and rollout read all
/// of it.
pub(super) fn cut(spec: &ResolvedSpec, model: &ModelConfig) -> ModelConfig {
    match spec.workers.mesh.tp {
        1 => model.clone(),
        tp => model.tp_sharded(tp as usize),
    }
}

/// Whether norms are trained; any name beside an adapter counts as one of some: an upper bound.
fn trains_norms(spec: &ResolvedSpec) -> bool {
    spec.model.lora.as_ref().is_none_or(|lora| !lora.modules_to_save.is_empty())
}

/// Whether the head of a language model is trained, with everything else or beside an adapter.
fn trains_head(spec: &ResolvedSpec, model: &ModelConfig) -> bool {
    spec.model.lora.as_ref().is_none_or(|lora| adapter::trains_head(lora, model))
}

/// An adapter beside the head of a classifier, which is trained whole.
fn with_labels(adapter: Trained, model: &ModelConfig) -> Trained {
    let head = if model.head.num_labels() == 0 { 0 } else { model.parameter_count().head };
    Trained {
        num_parameters: adapter.num_parameters + head,
        outside: adapter.outside + head,
        largest_outside: adapter.largest_outside.max(head),
        ..adapter
    }
}

/// Passes of one role.
struct Pass {
    /// Tokens for each of so many ranks.
    budget: (u32, u32),
    /// Bytes of a number in which its layers are computed.
    width: u64,
}

/// The terms of a role's passes, with its offload.
type PassTerms<'a> = dyn Fn(&Pass, OffloadSpec) -> Vec<MemoryTerm> + 'a;

fn elements(tensor: &super::model_config::TensorShape) -> u64 {
    tensor.shape.iter().map(|size| *size as u64).product()
}

impl MemoryPlan {
    /// Of ranks that each have `memory` bytes of their device, where that is known.
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
            composed: on_gpu(spec),
            largest_trained: trained.largest_of_layer,
            trains_norms: trains_norms(spec),
        };
        // A critic passes over the same tokens in micro-batches and numbers of its own.
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
        // Units of a role in an update, of the larger of actor and critic; all of each in weight sync.
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
        if generates(spec) {
            // Every rank samples whole sequences, also where it has a shard of each layer.
            let alone = Activations { model: whole, width: rollout::width(spec), ..sharing(1, width) };
            add(Phase::WeightSync, rollout::taking_over(spec, whole, alone.width, &of_sync));
            let terms = rollout::terms((spec, memory), whole, batch, &alone, &of_sync);
            add(Phase::Rollout, [terms, vision::pass(spec, whole)].concat());
        }
        if !judges.is_empty() {
            let kept = rollout::kept((spec, memory), whole, batch, &of_sync);
            add(Phase::Reward, [kept, roles::judging(spec, judges, batch, judging_width, &shards)].concat());
        }
        if !spec.algorithm.is_supervised() {
            let reference = roles::reference_read(spec, model, &shards);
            let scored =
                |pass: &Pass, _| logprob(spec, batch, pass.budget, &sharing(pass.budget.1, pass.width));
            // Reference and actor follow each other.
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
            add(Phase::Logprob, [gathered, vec![reference], scored].concat());
        }
        let offloads_moments = offload.optimizer || (critic.is_some() && offload_of_critic.optimizer);
        // 4 for each trained parameter, or for this rank's shard of them; between updates there are none.
        let gradients =
            at_hand(&|own| vec![term("gradients", FP32 * own.shard_of_trained(trained.num_parameters))]);
        let updated = |pass: &Pass, offload: OffloadSpec, shards: &Shards| {
            let activations = sharing(pass.budget.1, pass.width);
            update(spec, batch, (pass.budget, offload.activations), (&activations, shards))
        };
        let own = Pass { budget: (training.max_tokens_per_micro_batch, mesh.sp), width };
        let own = updated(&own, offload, &shards);
        let by_critic = |pass: &Pass, offload| updated(pass, offload, &of_critic);
        let update = fullest(own, training.critic_micro_batch_tokens(), &by_critic);
        let gathered = at_hand(&|shards| shards.gathered_in_update(widest(None)).to_vec());
        add(Phase::Update, [gathered, gradients.clone(), update].concat());
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

    /// On a CPU the device is the host.
    fn lies_on_host(&mut self) {
        self.terms.iter_mut().for_each(|term| term.place = Place::Host);
        (self.device_bytes, self.host_bytes) = (0, self.total_bytes);
    }
}

/// A term on the computing device.
fn term(name: &'static str, bytes: u64) -> MemoryTerm {
    MemoryTerm { name, place: Place::Device, bytes }
}

/// A term on the host, also with GPUs.
fn on_host(name: &'static str, bytes: u64) -> MemoryTerm {
    MemoryTerm { name, place: Place::Host, bytes }
}

/// A term that is resident for the whole run: on the device, or if it is offloaded on the host of a GPU, or
/// in a file with a CPU.
fn kept(spec: &ResolvedSpec, name: &'static str, is_offloaded: bool, bytes: u64) -> MemoryTerm {
    match (is_offloaded, on_gpu(spec)) {
        (true, true) => on_host(name, bytes),
        (true, false) => term(name, 0),
        (false, _) => term(name, bytes),
    }
}

/// Bytes of a number of frozen weights, which are kept as they are computed with.
fn frozen_width(spec: &ResolvedSpec) -> u64 {
    spec.training.precision.width()
}

/// Whether completions are sampled, in steps or to be judged.
fn generates(spec: &ResolvedSpec) -> bool {
    spec.algorithm.samples() || !spec.rewards.functions.is_empty()
}

/// Whether the rollout folds the adapter into its weights, where there is one.
fn merges(spec: &ResolvedSpec) -> bool {
    spec.model.lora.as_ref().is_none_or(|lora| lora.merge != Some(false))
}

/// Bytes of a number of what samples, and of the one that is kept and gathered to pack it: below an adapter
/// as it is computed with.
pub(super) fn widths_of_sync(spec: &ResolvedSpec) -> (u64, u64) {
    let kept = if spec.model.lora.is_some() { frozen_width(spec) } else { FP32 };
    (rollout::width(spec), kept)
}

/// Whether a rank gathers or prefetches the model unit by unit, in the compute dtype.
fn is_gathered_by_unit(spec: &ResolvedSpec) -> bool {
    spec.workers.mesh.is_any_sharded() || spec.training.is_any_offloaded()
}

/// Numbers of one layer that are cast to the compute dtype: of all projections, or only of the adapter if the
/// frozen ones need no cast. Shards are gathered in the compute dtype.
fn cast_of_layer(spec: &ResolvedSpec, model: &ModelConfig, trained: &Trained, width: u64) -> u64 {
    if width == FP32 || is_gathered_by_unit(spec) {
        return 0;
    }
    if spec.model.lora.is_some() {
        return trained.of_one_layer;
    }
    largest_layer(model)
}

/// Numbers of the largest projection, where DoRA takes norms of it.
fn normed_weight(spec: &ResolvedSpec, model: &ModelConfig) -> u64 {
    if spec.model.lora.as_ref().is_some_and(|lora| lora.dora) { model.largest_matrix() } else { 0 }
}

/// Numbers of the matrices of the layer that has the most.
fn largest_layer(model: &ModelConfig) -> u64 {
    (0..model.num_layers).map(|layer_idx| model.matrices_of_layer(layer_idx)).max().unwrap_or(0)
}

/// The model quantized as the job says; as it is where they disagree, which [`super::check_model`] reports.
pub(in crate::plan) fn quantized_as(spec: &ResolvedSpec, model: &ModelConfig) -> ModelConfig {
    let quantized = model.clone().with_quantization(spec.model.quantization.as_ref());
    quantized.unwrap_or_else(|_| model.clone())
}

/// The largest quantized weight while a product of the forward or backward pass reads it.
fn dequantized(model: &ModelConfig, width: u64) -> MemoryTerm {
    let largest = if model.quantization.is_some() { model.largest_matrix() } else { 0 };
    term("dequantized weight", width * largest)
}

/// The terms that are resident for the whole run.
fn resident(
    spec: &ResolvedSpec,
    model: &ModelConfig,
    trained: &Trained,
    shards: &Shards,
    batch: &BatchPlan,
) -> Vec<MemoryTerm> {
    let num_parameters = model.parameter_count().total();
    let adapter = if spec.model.lora.is_some() { trained.num_parameters } else { 0 };
    let offload = spec.training.offload;
    // 4 P / s, or below an adapter b P / s and the adapter's 4. For quantized weights their stored bytes.
    let quantized = model.quantized();
    let dense = num_parameters - quantized.numbers;
    let weights = match spec.model.lora {
        Some(_) if frozen_width(spec) != FP32 => {
            frozen_width(spec) * shards.shard_of_model(dense) + FP32 * shards.shard_of(adapter)
        }
        _ => FP32 * shards.shard_of_model(dense + adapter),
    };
    // Two moments of 4.
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

fn on_gpu(spec: &ResolvedSpec) -> bool {
    spec.workers.device == Device::Cuda
}

/// A pass under a budget of tokens for each rank of a sequence-parallel group.
fn logprob(
    spec: &ResolvedSpec,
    batch: &BatchPlan,
    budget: (u32, u32),
    activations: &Activations<'_>,
) -> Vec<MemoryTerm> {
    let share = scored_share(spec, batch.prompts_per_step, activations.sp);
    let FullPass { tokens, predicted, .. } = FullPass::new(spec, share, batch.samples_per_prompt, budget);
    let layers = vec![
        term("activations", tokens * activations.inference_bytes_per_token()),
        term("weight casts", activations.cast_bytes_of_one_layer()),
        activations.norm_temporaries(),
        dequantized(activations.model, activations.width),
    ];
    let head = activations.head(predicted, 1, 1);
    larger(layers, head)
}

fn update(
    spec: &ResolvedSpec,
    batch: &BatchPlan,
    (budget, inputs_offloaded): ((u32, u32), bool),
    (activations, shards): (&Activations<'_>, &Shards),
) -> Vec<MemoryTerm> {
    let share = scored_share(spec, spec.training.prompts_per_update.into(), activations.sp);
    let FullPass { tokens, predicted, .. } = FullPass::new(spec, share, batch.samples_per_prompt, budget);
    let checkpointing = spec.training.activation_checkpointing.unwrap_or(false);
    let offloaded = if inputs_offloaded && on_gpu(spec) { activations.input_bytes_per_token() } else { 0 };
    let of_one_layer = tokens * activations.kept_in_layer(checkpointing);
    let kept = vec![
        shards.gradients(of_one_layer),
        term("activations", tokens * activations.kept_bytes_per_token(checkpointing, inputs_offloaded)),
        on_host("activations", tokens * offloaded),
        term("weight casts", activations.kept_cast_bytes(checkpointing)),
    ];
    let layers = vec![
        term("recomputed activations", tokens * activations.recomputed_bytes_per_token(checkpointing)),
        term("activation gradients", tokens * activations.gradient_bytes_per_token()),
        term("gradient temporaries", activations.gradient_temporaries()),
        activations.norm_temporaries(),
        dequantized(activations.model, activations.width),
    ];
    let trains_head = u64::from(trains_head(spec, activations.model));
    [kept, larger(layers, activations.head(predicted, 2, 1 + trains_head))].concat()
}

/// The larger one of two consecutive moments.
fn larger(one: Vec<MemoryTerm>, other: Vec<MemoryTerm>) -> Vec<MemoryTerm> {
    let total = |terms: &[MemoryTerm]| terms.iter().map(|term| term.bytes).sum::<u64>();
    if total(&one) >= total(&other) { one } else { other }
}
