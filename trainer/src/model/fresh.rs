//! Initial weights of a new model.

use rlt_api::plan::READ_CHUNK_NUMBERS;
use rlt_api::plan::model_config::ModelConfig;
use rlt_core::tensor_shard::TensorShard;
use tch::{TchError, Tensor, no_grad};

use super::random::TensorRandom;

/// Writes a tensor shard of weights as transformers initialises them over `values`, `[len]`: normal with the
/// configuration's `initializer_range`, biases zero, norms the identity. A weight's numbers depend on `seed`,
/// its name and their place in it.
pub(super) fn draw_into(
    config: &ModelConfig,
    seed: u64,
    tensor_shard: &TensorShard<'_>,
    values: &Tensor,
) -> Result<(), TchError> {
    let mut values = values.detach();
    if tensor_shard.name.ends_with("bias") {
        return values.f_fill_(0.0).map(drop);
    }
    let is_norm = ["norm.weight", "norm1.weight", "norm2.weight", "ln_q.weight"];
    if is_norm.iter().any(|name| tensor_shard.name.ends_with(name)) {
        return values.f_fill_(1.0 - config.norm_offset).map(drop);
    }
    tensor_shard.chunks(READ_CHUNK_NUMBERS as usize).try_for_each(|TensorShard { range, .. }| {
        let place = (range.start - tensor_shard.range.start) as i64;
        let random = TensorRandom::new(seed, tensor_shard.name);
        let chunk = Tensor::from_slice(&random.normal_between(range, config.initializer_range));
        no_grad(|| values.f_narrow(0, place, chunk.numel() as i64)?.f_copy_(&chunk))
    })
}
