//! Memory of a vision tower: frozen weights on every rank, cached image features, one pass over the largest
//! image, and the passes that train the tower or its adapters. Trained weights are counted with the text
//! model's.
//!
//! Legend: p patches of an image, d and f widths of the tower and of its feed-forward blocks, b bytes of an
//! element.

use rlt_api::resolved::ResolvedSpec;
use rlt_api::spec::VisionTraining;
use rlt_models::{KEPT_FEATURES_BYTES, ModelConfig, VisionBlocks, VisionConfig};

use super::{
    FP32, MemoryTerm, adapter, elements, frozen_width, has_critic, is_gathered_by_unit, on_host, term,
};
use crate::batch;
use crate::pictures::Pictures;

/// Resident terms of the tower: its frozen weights in the dtype of the text model's, cached features of
/// recently used images from a tower that does not change (frozen, or the reference's), and on the host the
/// patches of generated pictures.
pub(super) fn resident_terms(spec: &ResolvedSpec, model: &ModelConfig) -> Vec<MemoryTerm> {
    let width = if spec.model.lora.is_some() { frozen_width(spec) } else { FP32 };
    let Some(vision) = &model.vision else { return Vec::new() };
    let shared = model.num_vision_parameters() - parameters(spec, model);
    let is_constant = !trains_tower(spec) || spec.algorithm.reads_reference();
    let features = if is_constant { kept_features(spec, model) } else { 0 };
    let patches = Pictures::of(spec).map(|pictures| {
        let num_patches = pictures.num_rows * pictures.num_tokens(vision) * merged(vision);
        num_patches * FP32 * vision.patch_width() as u64
    });
    vec![
        term("vision tower", width * shared),
        term("image features", features),
        on_host("pictures", patches.unwrap_or(0)),
    ]
}

/// Upper bound of the bytes of cached features. The number and sizes of images are known only if the images
/// are generated.
fn kept_features(spec: &ResolvedSpec, model: &ModelConfig) -> u64 {
    let Some(vision) = &model.vision else { return 0 };
    let generated =
        |pictures: Pictures| pictures.num_different * pictures.num_tokens(vision) * features(vision, model);
    Pictures::of(spec).map_or(KEPT_FEATURES_BYTES, generated).min(KEPT_FEATURES_BYTES)
}

/// Memory of a forward pass over an image that fills a prompt: pixels, the residual stream and block
/// temporaries, three tensors inside a feed-forward block, and the features. Nothing is kept for a backward
/// pass. Rotary embeddings are fp32.
fn pass(spec: &ResolvedSpec, model: &ModelConfig) -> Vec<MemoryTerm> {
    let tokens = u64::from(spec.data.max_prompt_tokens);
    let bytes = model.vision.as_ref().map(|vision| {
        tokens * merged(vision) * (2 * FP32 * vision.patch_width() as u64 + FP32 * temporaries(vision))
            + tokens * features(vision, model)
    });
    vec![term(ACTIVATIONS, bytes.unwrap_or(0))]
}

/// Memory of image encoding in the rollout: one forward pass, and the features that the engine keeps.
pub(super) fn sampling(spec: &ResolvedSpec, model: &ModelConfig) -> Vec<MemoryTerm> {
    [vec![kept_in_rollout(spec, model)], pass(spec, model)].concat()
}

/// Features that a trained or adapted tower computed in the rollout, kept until completions are scored.
pub(super) fn kept_in_rollout(spec: &ResolvedSpec, model: &ModelConfig) -> MemoryTerm {
    let bytes = if trains_tower(spec) { kept_features(spec, model) } else { 0 };
    term("image features of the rollout", bytes)
}

/// Parameters of a trained or adapted tower that weight sync copies.
pub(super) fn copied(spec: &ResolvedSpec, model: &ModelConfig) -> MemoryTerm {
    let adapter = spec.model.lora.as_ref().map_or(0, |lora| adapter::numbers_in_tower(lora, model));
    let numbers = adapter + parameters(spec, model);
    term("tower in the rollout", if is_gathered_by_unit(spec) { FP32 * numbers } else { 0 })
}

/// Number of tower parameters that are trained in full; 0 for a frozen tower.
pub(super) fn parameters(spec: &ResolvedSpec, model: &ModelConfig) -> u64 {
    if trains_weights(spec) { model.num_vision_parameters() } else { 0 }
}

/// Elements of the largest tower tensor that is trained in full.
pub(super) fn largest(spec: &ResolvedSpec, model: &ModelConfig) -> u64 {
    let tensors = model.vision_tensors().into_iter().filter(|_| trains_weights(spec));
    tensors.map(|tensor| elements(&tensor)).max().unwrap_or(0)
}

fn trains_weights(spec: &ResolvedSpec) -> bool {
    spec.model.vision_tower == VisionTraining::Trained
}

/// Memory of image encoding in the actor's log-prob pass, where the tower is trained and features are
/// therefore not cached; empty for a frozen tower.
pub(super) fn scoring(spec: &ResolvedSpec, model: &ModelConfig) -> Vec<MemoryTerm> {
    if trains_tower(spec) { pass(spec, model) } else { Vec::new() }
}

/// Memory of the pass that trains the tower, the larger of the actor's and the critic's.
pub(super) fn training(spec: &ResolvedSpec, model: &ModelConfig) -> Vec<MemoryTerm> {
    let Some(vision) = model.vision.as_ref().filter(|_| trains_tower(spec)) else { return Vec::new() };
    let training = &spec.training;
    // Each prompt is in a pass once, so the images of files fill at most all prompts.
    let of_prompt =
        Pictures::of(spec).map_or(spec.data.max_prompt_tokens.into(), |pictures| pictures.num_tokens(vision));
    let of_images = batch::most_updated_prompts(spec) * of_prompt;
    let own = (training.max_tokens_per_micro_batch, training.precision);
    let critic =
        has_critic(spec).then(|| (training.critic_micro_batch_tokens(), training.critic_precision()));
    let bytes = [Some(own), critic].into_iter().flatten().map(|(in_pass, precision)| {
        training_bytes(spec, model, vision, of_images.min(in_pass.into()), precision.width())
    });
    vec![term(ACTIVATIONS, bytes.max().unwrap_or(0))]
}

/// Bytes of a forward and backward pass that trains the tower: the tensors that blocks and mergers keep of
/// each patch (of one image with activation checkpointing, else of `in_pass` image tokens), the temporaries
/// of one image, and the features with their gradient. Trained weights are cast once for all images, unless
/// they are gathered in the compute dtype.
fn training_bytes(
    spec: &ResolvedSpec,
    model: &ModelConfig,
    vision: &VisionConfig,
    in_pass: u64,
    width: u64,
) -> u64 {
    let image = u64::from(spec.data.max_prompt_tokens).min(in_pass);
    let recomputes = spec.training.activation_checkpointing.unwrap_or(false);
    let kept = if recomputes { image } else { in_pass };
    let of_adapter = spec.model.lora.as_ref().map_or(0, |lora| adapter::width_in_tower(lora, model));
    let of_patch = kept_of_patch(vision, width) + width * of_adapter;
    let of_image = FP32 * (temporaries(vision) + vision.patch_width() as u64);
    let features = 2 * in_pass * features(vision, model);
    let is_cast = width != FP32 && !is_gathered_by_unit(spec);
    let casts = if is_cast { width * parameters(spec, model) } else { 0 };
    merged(vision) * (kept * of_patch + image * of_image) + features + casts
}

/// Bytes that a backward pass needs of a patch: its pixels; for each block both norms and the inputs of the
/// linear layers after them, queries, keys, values, twice the attention output, and the values inside the
/// feed-forward block; for each merger its norm, the inputs of its two layers and the values between them.
fn kept_of_patch(vision: &VisionConfig, width: u64) -> u64 {
    let [d, f] = [vision.hidden_size, vision.intermediate_size].map(|width| width as u64);
    // An RMS norm keeps its fp32 input, and the normed values that its weight multiplies.
    let (norm, inner) = match vision.blocks {
        VisionBlocks::Plain => (width, 3),
        VisionBlocks::Positioned => (width, 2),
        VisionBlocks::Gated => (FP32 + width, 4),
    };
    let block = d * (2 * (norm + width) + 5 * width) + f * inner * width;
    let merger = d * (norm + 3 * width);
    let pixels = width * vision.patch_width() as u64;
    pixels + vision.depth as u64 * block + vision.features_per_token() as u64 * merger
}

const ACTIVATIONS: &str = "tower activations";

/// Whether passes have gradients for the tower or its adapters.
fn trains_tower(spec: &ResolvedSpec) -> bool {
    trains_weights(spec) || spec.model.lora.as_ref().is_some_and(|lora| lora.vlm_lora.adapts_vision())
}

/// Number of patches that are merged into one token.
fn merged(vision: &VisionConfig) -> u64 {
    (vision.spatial_merge_size * vision.spatial_merge_size) as u64
}

/// Elements of a patch in a block that keeps nothing for a backward pass.
fn temporaries(vision: &VisionConfig) -> u64 {
    let [d, f] = [vision.hidden_size, vision.intermediate_size].map(|width| width as u64);
    8 * d + (6 * d).max(3 * f)
}

/// Bytes of a token's features, in fp32.
fn features(vision: &VisionConfig, model: &ModelConfig) -> u64 {
    FP32 * (vision.features_per_token() * model.hidden_size) as u64
}
