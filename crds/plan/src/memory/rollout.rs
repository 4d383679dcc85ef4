//! Memory of sampling: packed weights, KV cache, logits and the activations of a prefill. With sharded
//! parameters it includes the FSDP units while they are packed, and full embeddings; the packed weights are
//! then the only full copy. Each of the n ranks of a rollout tensor-parallel group has a shard of the packed
//! weights, and the keys and values of its heads for the sequences of the whole group.

use rlt_api::resolved::ResolvedSpec;
use rlt_models::ModelConfig;

use super::activations::Activations;
use super::packed_weights::{PackedWeights, with_padded_heads};
use super::shards::Shards;
use super::{
    FP32, MemoryTerm, Place, adapter, frozen_width, larger, merges, on_gpu, rollout_width, term, vision,
};
use crate::KV_BLOCK_TOKENS;
use crate::batch::{BatchPlan, num_held_out_prompts, share};

/// Divisor for the KV blocks that are kept for running sequences: new ones may not take one block in 100.
const WATERMARK_DIVISOR: u64 = 100;

pub(super) fn terms(
    spec: &ResolvedSpec,
    memory: Option<u64>,
    model: &ModelConfig,
    batch: &BatchPlan,
    activations: &Activations<'_>,
    shards: &Shards,
) -> Vec<MemoryTerm> {
    let concurrent = batch.concurrent_sequences;
    let prompt = u64::from(spec.data.max_prompt_tokens);
    let budget = u64::from(spec.rollout.max_batched_tokens);
    let prefilled = (prompt * share(spec, batch.prompts_per_step)).min(budget);
    let vocab = model.vocab_size as u64;
    let shard = tp_shard(spec, model);
    let activations = Activations { model: &shard, ..*activations };
    let sampling = vec![
        kv_cache(spec, memory, model, batch, activations.width),
        term("sampling logits", concurrent * vocab * logits_bytes(spec, activations.width)),
        term("activations", prefilled.max(concurrent) * activations.inference_bytes_per_token()),
        dequantized(spec, &shard, activations.width),
    ];
    let weights = brought(spec, model, activations.width, shards);
    if on_gpu(spec) {
        return [weights, sampling].concat();
    }
    // The process keeps the memory that packing has freed: its heap is not fragmented enough to release it to
    // the system.
    let packing = packing(spec, model, activations.width);
    [weights, larger(sampling, shards.taken_over().to_vec()), vec![packing]].concat()
}

/// Memory terms of weight sync: the packed weights, and the FSDP units from which they are packed.
pub(super) fn taking_over(
    spec: &ResolvedSpec,
    model: &ModelConfig,
    width: u64,
    shards: &Shards,
) -> Vec<MemoryTerm> {
    let mut packed = brought(spec, model, width, shards);
    if !(on_gpu(spec) && shards.is_gathered_by_unit()) {
        return [packed, shards.taken_over().to_vec(), vec![packing(spec, model, width)]].concat();
    }
    // With an unmerged adapter the packed base is a resident term.
    if merges(spec) {
        packed[0].bytes -= width * PackedWeights::new(spec, model).num_elements_of_layer();
    }
    // Units are packed from the gathered buffer, except for an adapter.
    let folded = term("packing temporaries", folding(spec, model, width));
    [packed, shards.last_taken_over().to_vec(), vec![folded]].concat()
}

/// Temporaries of packing: while a layer or the head is packed, its fused or cast original exists as well. An
/// adapter is merged before the tensor-parallel shard is taken.
fn packing(spec: &ResolvedSpec, model: &ModelConfig, width: u64) -> MemoryTerm {
    let has_adapter = spec.model.lora.is_some();
    let original = if has_adapter { PackedWeights::full(model) } else { PackedWeights::new(spec, model) };
    let head = if width == FP32 { 0 } else { original.num_elements_of_head() };
    let packed = width * original.num_elements_of_layer().max(head);
    let folded = if on_gpu(spec) { folding(spec, model, width) } else { 0 };
    term("packing temporaries", packed.max(folded))
}

/// Temporaries of merging an adapter into the largest projection: the fp32 copy, the adapter's product and
/// their sum; and the original of the packed weight, gate and up.
fn folding(spec: &ResolvedSpec, model: &ModelConfig, width: u64) -> u64 {
    let largest = model.largest_matrix();
    if spec.model.lora.is_some() && merges(spec) { (3 * FP32 + 2 * width) * largest } else { 0 }
}

/// Returns the model with the sizes of one of the rollout's tensor-parallel ranks: q / n, f / n and v / n,
/// and k / n of at least one head.
pub(crate) fn tp_shard(spec: &ResolvedSpec, model: &ModelConfig) -> ModelConfig {
    with_padded_heads(spec, model).tp_sharded(spec.workers.mesh.rollout_tp as usize)
}

/// Rollout terms that stay in memory until all completions of a step are scored.
pub(super) fn terms_until_scored(
    spec: &ResolvedSpec,
    memory: Option<u64>,
    model: &ModelConfig,
    batch: &BatchPlan,
    shards: &Shards,
) -> Vec<MemoryTerm> {
    let width = rollout_width(spec);
    let brought = brought(spec, model, width, shards);
    let cache = kv_cache(spec, memory, model, batch, width);
    [brought, vec![cache, vision::kept_in_rollout(spec, model)]].concat()
}

/// Blocks of a GPU that libtorch's allocator keeps after they were freed: `bytes`. A block serves only the
/// CUDA stream on which it was allocated. Weight sync and reward models compute on another stream than
/// decoding, and the cache is emptied before a weight sync and at the end of sampling only. In the worst case
/// no allocation between these fits a block.
pub(super) fn cached(spec: &ResolvedSpec, bytes: u64) -> MemoryTerm {
    term("cached blocks", if on_gpu(spec) { bytes } else { 0 })
}

/// Returns the bytes of the terms in `before` that are not among `after`.
pub(super) fn freed_bytes(before: &[MemoryTerm], after: &[MemoryTerm]) -> u64 {
    let stays = |term: &MemoryTerm| after.iter().any(|kept| kept.name == term.name);
    before.iter().filter(|term| term.place == Place::Device && !stays(term)).map(|term| term.bytes).sum()
}

/// Packed base weights that stay between rollouts with an unmerged adapter; empty if adapters are merged.
pub(super) fn base(spec: &ResolvedSpec, model: &ModelConfig, shards: &Shards) -> Vec<MemoryTerm> {
    if merges(spec) || !spec.samples() {
        return Vec::new();
    }
    let mut packed = weights(spec, model, rollout_width(spec), shards);
    let is_whole = !shards.is_gathered_by_unit() && spec.workers.mesh.rollout_tp == 1;
    if on_gpu(spec) && is_whole && frozen_width(spec) == rollout_width(spec) {
        // The rollout uses the trainer's weights of projections that it does not fuse.
        let head = (model.vocab_size * model.hidden_size) as u64;
        packed[0].bytes -= rollout_width(spec) * (adapter::numbers_alone(model) + head);
    }
    packed
}

/// Terms that weight sync packs or copies and the end of a rollout frees: all weights, or an unmerged adapter
/// whose base stays.
fn brought(spec: &ResolvedSpec, model: &ModelConfig, width: u64, shards: &Shards) -> Vec<MemoryTerm> {
    let packed = match spec.model.lora.as_ref().filter(|_| !merges(spec)) {
        None => weights(spec, model, width, shards),
        Some(lora) if on_gpu(spec) => {
            vec![term("rollout adapter", width * adapter::numbers_on_gpu(lora, model))]
        }
        Some(lora) => vec![term("rollout adapter", width * adapter::packed_numbers(lora, model))],
    };
    [packed, vec![vision::copied(spec, model)]].concat()
}

/// The packed weights; with sharded parameters also the full embeddings (b v h) and copies of quantized
/// weights, which a rank with the full model uses in place.
fn weights(spec: &ResolvedSpec, model: &ModelConfig, width: u64, shards: &Shards) -> Vec<MemoryTerm> {
    let packed = PackedWeights::new(spec, model);
    let embeddings =
        if shards.is_gathered_by_unit() { (model.vocab_size * model.hidden_size) as u64 } else { 0 };
    let quantized = if shards.is_gathered_by_unit() { packed.quantized_bytes() } else { 0 };
    vec![
        term("rollout weights", width * packed.num_elements() + quantized),
        term("rollout embeddings", width * embeddings),
    ]
}

/// A GPU's buffer for a dequantized weight, used by products of more than a few rows.
fn dequantized(spec: &ResolvedSpec, shard: &ModelConfig, width: u64) -> MemoryTerm {
    let is_dequantized = on_gpu(spec) && shard.quantization.is_some();
    term("dequantized weight", if is_dequantized { width * adapter::largest_product(shard) } else { 0 })
}

/// The KV cache: as much as all sequences can fill, at most what `rollout.memoryFraction` of the rank's
/// memory leaves after the packed weights.
fn kv_cache(
    spec: &ResolvedSpec,
    memory: Option<u64>,
    model: &ModelConfig,
    batch: &BatchPlan,
    width: u64,
) -> MemoryTerm {
    let wanted = width * cache_numbers(spec, &tp_shard(spec, model), batch);
    let allowed = memory_of_rank(spec, memory).map_or(u64::MAX, |memory| {
        let of_rollout = (memory * spec.rollout.memory_fraction) as u64;
        of_rollout.saturating_sub(width * PackedWeights::new(spec, model).num_elements())
    });
    term("KV cache", wanted.min(allowed))
}

/// Bytes of which the rollout may take its fraction, where known: the GPU's memory, or on CPUs the pod's
/// memory divided by its ranks.
pub(crate) fn memory_of_rank(spec: &ResolvedSpec, memory: Option<u64>) -> Option<f64> {
    if on_gpu(spec) {
        return memory.map(|memory| memory as f64);
    }
    let of_pod = spec.workers.resources.memory.as_deref().and_then(rlt_api::quantity_value);
    of_pod.map(|memory| memory / f64::from(spec.workers.ranks_per_worker))
}

/// Bytes of one logit while tokens are drawn: in the dtype of the logits, and in fp32 the logit, its log-prob
/// and its probability; one fp32 copy more for a temperature, two more for a repetition penalty.
fn logits_bytes(spec: &ResolvedSpec, width: u64) -> u64 {
    let rollout = &spec.rollout;
    let computed = if width == FP32 { 0 } else { width };
    let divided = u64::from(
        [rollout.temperature, rollout.held_out.temperature].iter().any(|t| ![0.0, 1.0].contains(t)),
    );
    let penalised = if rollout.repetition_penalty == 1.0 { 0 } else { 2 };
    computed + FP32 * (3 + divided + penalised)
}

/// Elements of the KV cache: 2 L k, or for latent attention L times the width of a latent and its rotated
/// keys, for each slot of the blocks that the engine asks for, in a step or in an evaluation.
fn cache_numbers(spec: &ResolvedSpec, shard: &ModelConfig, batch: &BatchPlan) -> u64 {
    let blocks = |num_prompts: u64, samples_per_prompt: u64| {
        blocks_wanted(spec, share(spec, num_prompts), samples_per_prompt, batch.concurrent_sequences)
    };
    let step = blocks(batch.prompts_per_step, batch.samples_per_prompt);
    let evaluation = blocks(num_held_out_prompts(spec), spec.rollout.held_out.samples_per_prompt.into());
    let slots = step.max(evaluation) * u64::from(KV_BLOCK_TOKENS);
    shard.num_layers as u64 * shard.cached_numbers() as u64 * slots
}

/// Number of KV blocks that the engine asks for. The first sample of a prompt needs the shared blocks of the
/// prompt and one to be copied, other samples only blocks after the shared ones; the last token needs no
/// slot.
fn blocks_wanted(spec: &ResolvedSpec, num_prompts: u64, samples_per_prompt: u64, at_once: u64) -> u64 {
    let block = u64::from(KV_BLOCK_TOKENS);
    let longest = (spec.max_sequence_tokens() - 1).div_ceil(block);
    let num_shared = (spec.largest_group().0 - 1) / block;
    let concurrent = num_prompts.saturating_mul(samples_per_prompt).min(at_once);
    let num_first = num_prompts.min(concurrent);
    let blocks = num_first * (longest + 1) + (concurrent - num_first) * (longest - num_shared);
    blocks + blocks / WATERMARK_DIVISOR + 1
}
