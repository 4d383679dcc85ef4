//! Initial weights of a new model.

use std::ops::Range;

use rlt_layout::TensorRun;
use rlt_models::{ModelConfig, READ_CHUNK_NUMBERS};
use tch::{TchError, Tensor, no_grad};

use super::super::random::TensorRandom;

/// Writes a run of weights, as transformers initialises them, over `values`, `[len]`: normal with the
/// configuration's `initializer_range`, biases zero, norms the identity. A value depends on `seed`, the
/// weight's name and the value's index in the weight.
pub(crate) fn draw_into(
    config: &ModelConfig,
    seed: u64,
    tensor_run: &TensorRun<'_>,
    values: &Tensor,
) -> Result<(), TchError> {
    let mut values = values.detach();
    if tensor_run.name.ends_with("bias") {
        return values.f_fill_(0.0).map(drop);
    }
    let is_norm = ["norm.weight", "norm1.weight", "norm2.weight", "ln_q.weight"];
    if is_norm.iter().any(|name| tensor_run.name.ends_with(name)) {
        return values.f_fill_(1.0 - config.norm_offset).map(drop);
    }
    tensor_run.chunks(READ_CHUNK_NUMBERS as usize).try_for_each(|TensorRun { range, .. }| {
        let place = (range.start - tensor_run.range.start) as i64;
        let std = config.initializer_range;
        let draw = |range| TensorRandom::new(seed, tensor_run.name).normal_between(range, std);
        let chunk = Tensor::from_slice(&drawn(range, &draw));
        no_grad(|| values.f_narrow(0, place, chunk.numel() as i64)?.f_copy_(&chunk))
    })
}

/// Smallest number of values that a thread draws: fewer are not worth starting one.
const MIN_THREAD_VALUES: usize = 1 << 14;

/// Draws the values `range` of a tensor's random stream on all cores, each chunk by `draw`. A value depends
/// only on its index in the stream, so the result does not depend on the number of threads.
fn drawn(range: Range<usize>, draw: &(dyn Fn(Range<usize>) -> Vec<f32> + Sync)) -> Vec<f32> {
    let num_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut values = vec![0.0; range.len()];
    let chunk_len = values.len().div_ceil(num_threads).max(MIN_THREAD_VALUES);
    std::thread::scope(|scope| {
        for (start, chunk) in (range.start..).step_by(chunk_len).zip(values.chunks_mut(chunk_len)) {
            scope.spawn(move || chunk.copy_from_slice(&draw(start..start + chunk.len())));
        }
    });
    values
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Mutex;
    use std::thread;

    use super::*;

    #[test]
    fn every_core_draws_a_part_of_the_values_that_one_thread_draws() {
        let num_cores = thread::available_parallelism().map_or(1, usize::from);
        // An odd start, and a last chunk that is shorter.
        for (range, num_threads) in [(0..10, 1), (7..7 + num_cores * MIN_THREAD_VALUES + 3, num_cores)] {
            let threads = Mutex::new(HashSet::new());
            let by_one = |range| TensorRandom::new(3, "a").normal_between(range, 0.5);
            let draw = |range| {
                threads.lock().unwrap().insert(thread::current().id());
                by_one(range)
            };
            assert_eq!(drawn(range.clone(), &draw), by_one(range));
            assert_eq!(threads.into_inner().unwrap().len(), num_threads);
        }
    }
}
