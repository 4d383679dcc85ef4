//! What a vision tower takes: its weights on every rank, the features of images that it keeps, and one pass
//! over the largest image.
//!
//! Legend: p patches of an image, d and f widths of the tower and of its feed-forward blocks, b bytes of a
//! number.

use super::{FP32, MemoryTerm, frozen_width, term};
use crate::plan::KEPT_FEATURES_BYTES;
use crate::plan::model_config::ModelConfig;
use crate::plan::pictures::Pictures;
use crate::resolved::ResolvedSpec;

/// Weights, b each as those of the text model are kept, features of the images used last, and the patches
/// of generated pictures. How many images a data set has, and of which sizes, is not known here.
pub(super) fn kept(spec: &ResolvedSpec, model: &ModelConfig) -> Vec<MemoryTerm> {
    let width = if spec.model.lora.is_some() { frozen_width(spec) } else { FP32 };
    let Some(vision) = &model.vision else { return Vec::new() };
    let tower = term("vision tower", width * model.num_vision_parameters());
    let Some(pictures) = Pictures::of(spec) else {
        return vec![tower, term("image features", KEPT_FEATURES_BYTES)];
    };
    let tokens = pictures.num_tokens(vision);
    let width = (vision.features_per_token() * model.hidden_size) as u64;
    let features = pictures.num_different * tokens * FP32 * width;
    let merged = (vision.spatial_merge_size * vision.spatial_merge_size) as u64;
    let patches = pictures.num_rows * tokens * merged * FP32 * vision.patch_width() as u64;
    vec![tower, term("image features", features.min(KEPT_FEATURES_BYTES)), term("pictures", patches)]
}

/// A pass over an image that fills a prompt: pixels, the residual stream with what its blocks make of it,
/// three of what is inside a feed-forward block, and the features. Nothing is kept for a backward pass.
/// Rotations are fp32.
pub(super) fn pass(spec: &ResolvedSpec, model: &ModelConfig) -> Vec<MemoryTerm> {
    let Some(vision) = &model.vision else { return Vec::new() };
    let merged = (vision.spatial_merge_size * vision.spatial_merge_size) as u64;
    let tokens = u64::from(spec.data.max_prompt_tokens);
    let patches = tokens * merged;
    let [d, f, pixels] =
        [vision.hidden_size, vision.intermediate_size, vision.patch_width()].map(|width| width as u64);
    let numbers = 8 * d + (6 * d).max(3 * f);
    let features = tokens * FP32 * (vision.features_per_token() * model.hidden_size) as u64;
    vec![term("tower activations", patches * (2 * FP32 * pixels + FP32 * numbers) + features)]
}
