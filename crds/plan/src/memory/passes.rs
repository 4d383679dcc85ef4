//! Memory terms of a pass over the model: log-probs (forward only), and updates (forward and backward).

use rlt_api::resolved::ResolvedSpec;
use rlt_models::ModelConfig;

use super::activations::Activations;
use super::shards::Shards;
use super::{
    FP32, MemoryTerm, Trained, dequantized, is_gathered_by_unit, largest_layer, on_gpu, on_host, term,
    trains_head,
};
use crate::batch::{BatchPlan, FullPass, TokenBudget, scored_share};

/// Token budget and compute dtype of one role's passes.
pub(super) struct Pass {
    /// Token budget of the role's passes.
    pub(super) budget: TokenBudget,
    /// Bytes of an element in the role's compute dtype.
    pub(super) width: u64,
}

/// Number of elements of one layer that are cast to the compute dtype: those of all projections, or with an
/// adapter only the adapter's, because frozen projections are stored in the compute dtype. 0 where FSDP units
/// are gathered in the compute dtype.
pub(super) fn cast_of_layer(spec: &ResolvedSpec, model: &ModelConfig, trained: &Trained, width: u64) -> u64 {
    if width == FP32 || is_gathered_by_unit(spec) {
        return 0;
    }
    if spec.model.lora.is_some() {
        return trained.of_one_layer;
    }
    largest_layer(model)
}

/// Elements of the largest projection, whose row norms DoRA takes; 0 without DoRA.
pub(super) fn normed_weight(spec: &ResolvedSpec, model: &ModelConfig) -> u64 {
    if spec.model.lora.as_ref().is_some_and(|lora| lora.dora) { model.largest_matrix() } else { 0 }
}

/// Memory terms of a log-prob pass.
pub(super) fn logprob(
    spec: &ResolvedSpec,
    batch: &BatchPlan,
    budget: TokenBudget,
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

/// Memory of an update of one role, whose `num_trained` parameters have gradients.
///
/// From the second micro-batch on, the gradients of the earlier ones exist beside all activations. An update
/// of one micro-batch never holds both in full: a layer frees its activations when its gradients are
/// computed. Its peak is either the beginning or the end of its backward pass.
pub(super) fn update(
    spec: &ResolvedSpec,
    batch: &BatchPlan,
    budget: TokenBudget,
    inputs_offloaded: bool,
    activations: &Activations<'_>,
    shards: &Shards,
    num_trained: u64,
) -> Vec<MemoryTerm> {
    let FullPass { tokens, predicted, num_passes } =
        FullPass::of_updates(spec, batch.samples_per_prompt, budget);
    let checkpointing = spec.training.activation_checkpointing.unwrap_or(false);
    let offloaded = if inputs_offloaded && on_gpu(spec) { activations.input_bytes_per_token() } else { 0 };
    let of_one_layer = tokens * activations.kept_in_layer(checkpointing);
    let gradients =
        vec![term("gradients", FP32 * shards.shard_of_trained(num_trained)), shards.gradients(of_one_layer)];
    let kept = vec![
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
    let head = activations.head(predicted, 2, 1 + trains_head);
    if num_passes > 1 {
        return [gradients, kept, larger(layers, head)].concat();
    }
    let first_gradients = vec![shards.gradients_outside_of_layers(), shards.gradients(of_one_layer)];
    let at_start = [first_gradients, kept, larger(layers.clone(), head)].concat();
    larger(at_start, [gradients, layers].concat())
}

/// Returns the larger of two sets of terms that do not exist at the same time.
pub(super) fn larger(one: Vec<MemoryTerm>, other: Vec<MemoryTerm>) -> Vec<MemoryTerm> {
    let total = |terms: &[MemoryTerm]| terms.iter().map(|term| term.bytes).sum::<u64>();
    if total(&one) >= total(&other) { one } else { other }
}
