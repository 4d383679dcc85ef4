//! Offsets of parameters in a flat buffer, and the local shard of each in one rank's shard.

use std::ops::Range;

use rlt_decoder::of_ranges;
use rlt_layout::{EvenSplit, LocalTensor, ParameterLayout, TensorRun, TensorSlice};
use rlt_models::READ_CHUNK_NUMBERS;
use tch::{Tensor, no_grad};

/// Alignment in bytes at which memory is read fastest.
const CACHE_LINE: usize = 64;

/// Range of a parameter in the buffer, and its local shard in this rank's shard.
#[derive(Clone, Debug)]
pub(super) struct FlatSlot {
    pub(super) range: Range<usize>,
    /// Local size of the parameter.
    pub(super) size: Vec<i64>,
    /// Indices of the parameter that are local.
    pub(super) local: LocalTensor,
    pub(super) part: Range<usize>,
    /// Placement of the parameter along the axes that split weights.
    pub(super) layout: ParameterLayout,
}

impl FlatSlot {
    /// The local shard as a range of the local parameter, with its indices in the full one.
    pub(super) fn slice<'a>(&'a self, name: &'a str) -> TensorSlice<'a> {
        TensorSlice { name, local: &self.local, range: self.local_run(name).range }
    }

    /// Copies the local shard of the parameter `leaf`, which has its full or its local size.
    pub(super) fn copy_local_shard(&self, name: &str, leaf: &Tensor, local_shard: &Tensor) {
        let is_full = leaf.size() == self.local.shape();
        let own = if is_full { self.local_part(leaf) } else { leaf.shallow_clone() };
        copy_tensor_run(&self.local_run(name), &own, local_shard);
    }

    /// The local values of the full tensor `all`: a view, except where a dimension has several ranges.
    fn local_part(&self, all: &Tensor) -> Tensor {
        let split = self.local.dims().iter().enumerate().filter(|(_, dim)| !dim.is_full());
        split.fold(all.detach(), |all, (dim, own)| of_ranges(&all, &own.ranges, dim as i64))
    }

    /// The local shard as a range of the local parameter.
    pub(super) fn local_run<'a>(&'a self, name: &'a str) -> TensorRun<'a> {
        // An empty local shard may be beyond the parameter's end.
        let start = self.part.start.saturating_sub(self.range.start).min(self.range.len());
        TensorRun { name, shape: &self.size, range: start..start + self.part.len() }
    }

    /// A view of the local parameter in the buffer `unsharded`, `[padded_len]`.
    pub(super) fn in_unsharded(&self, unsharded: &Tensor) -> Tensor {
        unsharded.narrow(0, self.range.start as i64, self.range.len() as i64).view(self.size.as_slice())
    }

    /// Returns a view of the parameter's local shard, `[len]`, in `shard`, which has the range `own` of the
    /// buffer.
    pub(super) fn in_shard(&self, shard: &Tensor, own: &Range<usize>) -> Tensor {
        shard.narrow(0, (self.part.start - own.start) as i64, self.part.len() as i64)
    }
}

/// Lays out parameters in a buffer that is sharded over `num_shards` ranks. Returns each parameter's slot for
/// the rank that holds shard `shard`, and the layout of the buffer. `width` is the size of a value in bytes,
/// and `locals` are the parameters' local indices and layouts.
pub(super) fn places(
    locals: Vec<(LocalTensor, ParameterLayout)>,
    num_shards: usize,
    shard: usize,
    width: usize,
) -> (Vec<FlatSlot>, EvenSplit) {
    let sizes: Vec<Vec<i64>> = locals.iter().map(|(local, _)| local.local_shape()).collect();
    let ranges = ranges(&sizes, num_shards, width);
    let split = EvenSplit::new(ranges.last().map_or(0, |last| last.end), num_shards);
    let mut places = Vec::with_capacity(locals.len());
    for (((local, layout), size), range) in locals.into_iter().zip(sizes).zip(ranges) {
        places.push(FlatSlot { part: split.part_of(&range, shard), range, size, local, layout });
    }
    (places, split)
}

/// Returns the range of each parameter in a buffer. Ranges are adjacent, except that with a single shard each
/// begins at a cache line. `width` is the size of a value in bytes.
fn ranges(sizes: &[Vec<i64>], num_shards: usize, width: usize) -> Vec<Range<usize>> {
    let step = if num_shards == 1 { CACHE_LINE / width } else { 1 };
    let mut end = 0_usize;
    let range = |size: &Vec<i64>| {
        let start = end.next_multiple_of(step);
        end = start + size.iter().product::<i64>() as usize;
        start..end
    };
    sizes.iter().map(range).collect()
}

/// Copies a run of the tensor `full` to `values`, `[len]`, chunk by chunk, so that a tensor that is not
/// contiguous, such as an expanded one, is never copied in full.
pub fn copy_tensor_run(tensor_run: &TensorRun<'_>, full: &Tensor, values: &Tensor) {
    let full = if full.dim() == 0 { full.detach().view(1) } else { full.detach() };
    let chunks = tensor_run.chunks(READ_CHUNK_NUMBERS as usize);
    no_grad(|| {
        chunks.for_each(|chunk| {
            let (rows, place) = (chunk.rows(), chunk.place_in_rows());
            let rows = full.narrow(0, rows.start as i64, rows.len() as i64).contiguous().view(-1);
            let start = (chunk.range.start - tensor_run.range.start) as i64;
            let len = place.len() as i64;
            values.narrow(0, start, len).copy_(&rows.narrow(0, place.start as i64, len));
        });
    });
}
