//! Memory of the roles besides the actor (a frozen reference, a critic with its optimizer, reward models),
//! and of loading their weights.

use rlt_api::resolved::ResolvedSpec;
use rlt_api::spec::LoraInit;
use rlt_models::{ModelConfig, READ_CHUNK_NUMBERS};

use super::activations::Activations;
use super::shards::Shards;
use super::{
    FP32, MemoryTerm, Trained, elements, frozen_width, has_critic, on_gpu, on_host, resident_term, term,
    vision,
};
use crate::batch::{BatchPlan, FullPass, TokenBudget};

const REFERENCE: &str = "reference weights";
/// Number of matrices that a singular value decomposition has in memory: the matrix, LAPACK's copy of it,
/// both factors, and work space for at most four.
const DECOMPOSITION: u64 = 8;

/// Memory terms of loading. A rank reads, initializes or copies its own shard of the weights, with 8 host
/// bytes for each element in flight. An adapter is initialized in full on each rank; a reference is in memory
/// before it is written to a file, and its source is gathered unit by unit.
pub(super) fn loading(
    spec: &ResolvedSpec,
    model: &ModelConfig,
    trained: &Trained,
    shards: &Shards,
) -> Vec<MemoryTerm> {
    let adapter = if spec.model.lora.is_some() { trained.num_parameters } else { 0 };
    let copies = has_reference(spec) || has_critic(spec);
    let largest_tensor = model.tensors().iter().map(elements).max().unwrap_or(0);
    let read = 2 * FP32 * u64::from(READ_CHUNK_NUMBERS).min(largest_tensor);
    let quantizes = model.quantization.as_ref().is_some_and(|quantization| !quantization.is_stored);
    // A weight is quantized as soon as it is read, from the compute dtype.
    let quantized = if quantizes { frozen_width(spec) * model.largest_matrix() } else { 0 };
    let starts_from_error = spec.model.lora.as_ref().is_some_and(|lora| lora.init == LoraInit::Loftq);
    // Ranks exchange the matrices of the full adapter.
    let decomposed = DECOMPOSITION * model.largest_matrix() + adapter;
    let decomposed = if quantizes && starts_from_error { FP32 * decomposed } else { 0 };
    // Merging holds the adapter's product, and its sum with the weight.
    let folded = if spec.model.adapters.is_empty() { 0 } else { read };
    let mut terms = vec![
        on_host("weights being read", read),
        on_host("adapters being folded in", folded),
        on_host("weight being quantized", quantized),
        on_host("quantization error being decomposed", decomposed),
        term("whole adapter", FP32 * (adapter - shards.shard_of(adapter))),
        reference_read(spec, model, shards),
        shards.fetched(),
    ];
    terms.extend(copies.then(|| shards.one_part()));
    terms
}

/// The resident reference on a GPU or its host; 0 on a CPU, where it is in a file between reads.
pub(super) fn reference_kept(spec: &ResolvedSpec, model: &ModelConfig, shards: &Shards) -> MemoryTerm {
    let bytes = if on_gpu(spec) { reference_bytes(spec, model, shards) } else { 0 };
    resident_term(spec, REFERENCE, spec.training.reference_is_offloaded(), bytes)
}

/// The reference while it is read, if it is not resident on the device. Units of an offloaded reference are
/// fetched one by one into the buffers of the FSDP units, so this term is 0.
pub(super) fn reference_read(spec: &ResolvedSpec, model: &ModelConfig, shards: &Shards) -> MemoryTerm {
    let stays = on_gpu(spec) || spec.training.reference_is_offloaded();
    term(REFERENCE, if stays { 0 } else { reference_bytes(spec, model, shards) })
}

/// Bytes of a rank's shard of the frozen reference, b P / s. With an adapter the reference is the same
/// weights with the adapter disabled, so it takes nothing.
fn reference_bytes(spec: &ResolvedSpec, model: &ModelConfig, shards: &Shards) -> u64 {
    let shards = shards.of_degree(spec.workers.mesh.dp_shard_of_reference());
    let part = shards.shard_of_model(shards.all_parameters() + vision::parameters(spec, model));
    if has_reference(spec) { kept_width(spec) * part } else { 0 }
}

/// Bytes of an element of the stored reference: its compute dtype, or fp32 where the reference follows the
/// actor in steps so small that lower precisions would round them away.
fn kept_width(spec: &ResolvedSpec) -> u64 {
    if spec.algorithm.reference_sync.is_some() { FP32 } else { reference_width(spec) }
}

/// Bytes of an element in the reference's compute dtype; with an adapter, the actor's.
pub(super) fn reference_width(spec: &ResolvedSpec) -> u64 {
    spec.training.reference_precision().width()
}

fn has_reference(spec: &ResolvedSpec) -> bool {
    spec.model.lora.is_none() && spec.algorithm.reads_reference()
}

/// The critic's weights and both moments, 4 / s and 8 / s bytes for each trained parameter unless offloaded.
/// The critic trains the actor's parameters without an untied language-model head, and a value head of h
/// parameters. With an adapter the critic shares the actor's base.
pub(super) fn critic(
    spec: &ResolvedSpec,
    model: &ModelConfig,
    trained: &Trained,
    shards: &Shards,
) -> [MemoryTerm; 2] {
    let hidden = model.hidden_size as u64;
    let has_head = spec.model.lora.is_none() && !model.tie_word_embeddings;
    let head = if has_head { model.vocab_size as u64 * hidden } else { 0 };
    let num_parameters = if has_critic(spec) { trained.num_parameters - head + hidden } else { 0 };
    let offload = spec.training.critic_offload();
    let part =
        FP32 * shards.of_degree(spec.workers.mesh.dp_shard_of_critic()).shard_of_trained(num_parameters);
    [
        resident_term(spec, "critic", offload.parameters, part),
        resident_term(spec, "critic's optimizer state", offload.optimizer, 2 * part),
    ]
}

/// The reward models in their compute dtype: b P / s bytes for each, unless offloaded.
pub(super) fn reward_models(
    spec: &ResolvedSpec,
    judges: &[ModelConfig],
    width: u64,
    shards: &Shards,
) -> MemoryTerm {
    let shards = shards.of_degree(spec.workers.mesh.dp_shard_of_reward_models());
    let shard_of = |judge: &ModelConfig| shards.shard_of(judge.parameter_count().total());
    let weights = width * judges.iter().map(shard_of).sum::<u64>();
    resident_term(spec, "reward models", spec.training.reward_models_are_offloaded(), weights)
}

/// Terms of judging: a pass of the reward model with the widest activations over a rank's local samples, and
/// the gathered units of the largest reward model.
pub(super) fn judging(
    spec: &ResolvedSpec,
    judges: &[ModelConfig],
    batch: &BatchPlan,
    width: u64,
    shards: &Shards,
) -> Vec<MemoryTerm> {
    // Every rank scores its local samples, whatever the sequence-parallel degree of other passes.
    let budget = u64::from(spec.training.reward_model_forward_tokens()).max(spec.max_sequence_tokens());
    let budget = TokenBudget { tokens: u32::try_from(budget).unwrap_or(u32::MAX), sp: 1 };
    let share = batch.prompts_per_step.div_ceil(spec.workers.num_ranks().into());
    let FullPass { tokens, .. } = FullPass::new(spec, share, batch.samples_per_prompt, budget);
    let pass = |model| Activations {
        model,
        width,
        adapter_width: 0,
        normed_weight: 0,
        sp: 1,
        cast_of_layer: 0,
        casts_head: false,
        largest_trained: 0,
    };
    let of_token = |model| pass(model).inference_bytes_per_token();
    vec![
        shards.gathered_of(judges, width),
        term("activations", tokens * judges.iter().map(of_token).max().unwrap_or(0)),
    ]
}
