//! The offsets of parameters in a flat buffer, and the part of each that is in one rank's shard.

use std::ops::Range;

use rlt_api::plan::READ_CHUNK_NUMBERS;
use rlt_core::mesh::Shards;
use rlt_core::tensor_shard::TensorShard;
use tch::{Tensor, no_grad};

/// Bytes between places where memory is read fastest.
const CACHE_LINE: usize = 64;

/// A parameter's range in the buffer, and its piece in this rank's shard.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) range: Range<usize>,
    pub(super) size: Vec<i64>,
    pub(super) part: Range<usize>,
}

impl Place {
    /// The parameter's piece in the shard.
    pub(super) fn tensor_shard<'a>(&'a self, name: &'a str) -> TensorShard<'a> {
        // An empty piece may be beyond the parameter's end.
        let start = self.part.start.saturating_sub(self.range.start).min(self.range.len());
        TensorShard { name, shape: &self.size, range: start..start + self.part.len() }
    }

    /// The parameter in all of the buffer, `[padded_len]`, in its own size.
    pub(super) fn in_whole(&self, whole: &Tensor) -> Tensor {
        whole.narrow(0, self.range.start as i64, self.range.len() as i64).view(self.size.as_slice())
    }

    /// The parameter's part of a shard at `own`, `[len]`.
    pub(super) fn in_shard(&self, shard: &Tensor, own: &Range<usize>) -> Tensor {
        shard.narrow(0, (self.part.start - own.start) as i64, self.part.len() as i64)
    }
}

/// The ranges of consecutive leaves in a buffer of `num_shards`: contiguous, or with one shard aligned to
/// cache lines, for numbers of `width` bytes.
pub(super) fn ranges(leaves: &[(String, Tensor)], num_shards: usize, width: usize) -> Vec<Range<usize>> {
    let step = if num_shards == 1 { CACHE_LINE / width } else { 1 };
    let mut end = 0_usize;
    let range = |(_, leaf): &(String, Tensor)| {
        let start = end.next_multiple_of(step);
        end = start + leaf.numel();
        start..end
    };
    leaves.iter().map(range).collect()
}

/// The places of leaves at `ranges`, with the piece of each in shard `shard` of `layout`.
pub(super) fn places(
    leaves: &[(String, Tensor)],
    ranges: Vec<Range<usize>>,
    layout: Shards,
    shard: usize,
) -> Vec<Place> {
    let place = |((_, leaf), range): (&(String, Tensor), Range<usize>)| Place {
        part: layout.part_of(&range, shard),
        size: leaf.size(),
        range,
    };
    leaves.iter().zip(ranges).map(place).collect()
}

/// Copies a shard of the whole tensor over `values`, `[len]`. A tensor that is not contiguous, such as an
/// expanded one, is copied chunk by chunk.
pub(crate) fn copy_tensor_shard(tensor_shard: &TensorShard<'_>, whole: &Tensor, values: &Tensor) {
    let whole = if whole.dim() == 0 { whole.detach().view(1) } else { whole.detach() };
    let chunks = tensor_shard.chunks(READ_CHUNK_NUMBERS as usize);
    no_grad(|| {
        chunks.for_each(|chunk| {
            let (rows, place) = (chunk.rows(), chunk.place_in_rows());
            let rows = whole.narrow(0, rows.start as i64, rows.len() as i64).contiguous().view(-1);
            let start = (chunk.range.start - tensor_shard.range.start) as i64;
            let len = place.len() as i64;
            values.narrow(0, start, len).copy_(&rows.narrow(0, place.start as i64, len));
        });
    });
}
