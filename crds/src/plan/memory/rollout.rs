//! What sampling holds: packed weights, KV cache, logits and the activations of a prefill. Where workers share the model, first the parts
//! from which weights are packed, and then embeddings of its own; the packed copy is the one that is whole.

use super::activations::Activations;
use super::shards::Shards;
use super::{FP32, MemoryTerm, larger, term};
use crate::plan::KV_BLOCK_TOKENS;
use crate::plan::batch::{BatchPlan, num_held_out_prompts, share};
use crate::plan::model_config::ModelConfig;
use crate::resolved::ResolvedSpec;

/// Tokens that the engine prefills in one step unless a prompt alone is longer.
const PREFILL_TOKENS: u64 = 4096;

/// One block in so many is not given to newcomers.
const HEADROOM_DIVISOR: u64 = 100;

pub(super) fn terms(
    spec: &ResolvedSpec,
    model: &ModelConfig,
    batch: &BatchPlan,
    activations: &Activations<'_>,
    shards: &Shards,
) -> Vec<MemoryTerm> {
    let concurrent = batch.concurrent_sequences;
    let prompt = u64::from(spec.data.max_prompt_tokens);
    let prefilled = (prompt * share(spec, batch.prompts_per_step)).min(PREFILL_TOKENS.max(prompt));
    let vocab = model.vocab_size as u64;
    let sampling = vec![
        kv_cache(spec, model, batch, activations.width),
        term("sampling logits", concurrent * vocab * logits_bytes(spec, activations.width)),
        term("activations", prefilled.max(concurrent) * activations.inference_bytes_per_token()),
    ];
    // While a layer or the head is packed, its fused or cast original exists beside it.
    let packing =
        term("packing temporaries", activations.width * packing_temporaries(model, activations.width));
    let moments = larger(sampling, shards.taken_over().to_vec());
    [weights(model, activations.width, shards), moments, vec![packing]].concat()
}

/// What stays until all completions of a step are there and judged.
pub(super) fn kept(
    spec: &ResolvedSpec,
    model: &ModelConfig,
    batch: &BatchPlan,
    width: u64,
    shards: &Shards,
) -> Vec<MemoryTerm> {
    [weights(model, width, shards), vec![kv_cache(spec, model, batch, width)]].concat()
}

/// What is packed, and embeddings, b v h, where the worker's own come and go.
fn weights(model: &ModelConfig, width: u64, shards: &Shards) -> Vec<MemoryTerm> {
    let embeddings = if shards.comes_in_parts() { (model.vocab_size * model.hidden_size) as u64 } else { 0 };
    vec![
        term("rollout weights", width * packed_weights(model)),
        term("rollout embeddings", width * embeddings),
    ]
}

fn kv_cache(spec: &ResolvedSpec, model: &ModelConfig, batch: &BatchPlan, width: u64) -> MemoryTerm {
    term("KV cache", width * cache_numbers(spec, model, batch))
}

/// Bytes of one logit while tokens are drawn: as it was computed, and in fp32 itself, its log-prob and its probability;
/// once more where the temperature divides it, twice more where repetition is penalised.
fn logits_bytes(spec: &ResolvedSpec, width: u64) -> u64 {
    let rollout = &spec.rollout;
    let computed = if width == FP32 { 0 } else { width };
    let divided = u64::from(
        [rollout.temperature, rollout.held_out.temperature].iter().any(|t| ![0.0, 1.0].contains(t)),
    );
    let penalised = if rollout.repetition_penalty == 1.0 { 0 } else { 2 };
    computed + FP32 * (3 + divided + penalised)
}

/// A packed copy of every projection and of the head: L (projections) + v h.
fn packed_weights(model: &ModelConfig) -> u64 {
    model.num_layers as u64 * projections(model) + (model.vocab_size * model.hidden_size) as u64
}

fn projections(model: &ModelConfig) -> u64 {
    model.projections().iter().map(|projection| projection.num_parameters()).sum()
}

fn packing_temporaries(model: &ModelConfig, width: u64) -> u64 {
    let head = if width == FP32 { 0 } else { (model.vocab_size * model.hidden_size) as u64 };
    projections(model).max(head)
}

/// 2 L k numbers for each slot of the blocks that the engine asks for, in a step or in an evaluation.
fn cache_numbers(spec: &ResolvedSpec, model: &ModelConfig, batch: &BatchPlan) -> u64 {
    let blocks = |num_prompts: u64, samples_per_prompt: u64| {
        blocks_wanted(spec, share(spec, num_prompts), samples_per_prompt, batch.concurrent_sequences)
    };
    let step = blocks(batch.prompts_per_step, batch.samples_per_prompt);
    let evaluation = blocks(num_held_out_prompts(spec), spec.rollout.held_out.samples_per_prompt.into());
    let slots = step.max(evaluation) * u64::from(KV_BLOCK_TOKENS);
    2 * model.num_layers as u64 * (model.num_kv_heads * model.head_dim) as u64 * slots
}

/// The first sample of a prompt brings the shared blocks of the prompt and one to be copied from, the others only
/// what follows the shared ones; the last token needs no slot.
fn blocks_wanted(spec: &ResolvedSpec, num_prompts: u64, samples_per_prompt: u64, at_once: u64) -> u64 {
    let block = u64::from(KV_BLOCK_TOKENS);
    let longest = (spec.max_sequence_tokens() - 1).div_ceil(block);
    let num_shared = u64::from(spec.data.max_prompt_tokens - 1) / block;
    let concurrent = num_prompts.saturating_mul(samples_per_prompt).min(at_once);
    let num_first = num_prompts.min(concurrent);
    let blocks = num_first * (longest + 1) + (concurrent - num_first) * (longest - num_shared);
    blocks + blocks / HEADROOM_DIVISOR + 1
}
