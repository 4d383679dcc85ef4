//! Weights for a model that was never trained.

use rlt_api::plan::READ_CHUNK_NUMBERS;
use rlt_api::plan::model_config::ModelConfig;
use rlt_core::excerpt::Excerpt;
use tch::{TchError, Tensor, no_grad};

use super::random::TensorRandom;

/// Writes an excerpt of weights as transformers initialises them over `values`, `[len]`: normal with the
/// configuration's `initializer_range`, biases zero, norms the identity. A weight's numbers depend on `seed`,
/// its name and their place in it.
pub(super) fn draw_into(
    config: &ModelConfig,
    seed: u64,
    excerpt: &Excerpt<'_>,
    values: &Tensor,
) -> Result<(), TchError> {
    let mut values = values.detach();
    if excerpt.name.ends_with(".bias") {
        return values.f_fill_(0.0).map(drop);
    }
    if excerpt.name.ends_with("norm.weight") {
        return values.f_fill_(1.0 - config.norm_offset).map(drop);
    }
    excerpt.chunks(READ_CHUNK_NUMBERS as usize).try_for_each(|Excerpt { range, .. }| {
        let place = (range.start - excerpt.range.start) as i64;
        let random = TensorRandom::new(seed, excerpt.name);
        let chunk = Tensor::from_slice(&random.normal_between(range, config.initializer_range));
        no_grad(|| values.f_narrow(0, place, chunk.numel() as i64)?.f_copy_(&chunk))
    })
}
