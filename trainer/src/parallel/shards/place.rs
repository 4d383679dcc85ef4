//! Offsets of parameters in a flat buffer, and the piece of each in one rank's shard.

use std::ops::Range;

use rlt_api::plan::READ_CHUNK_NUMBERS;
use rlt_core::mesh::{EpShard, Shards};
use rlt_core::tensor_shard::{CutShard, TensorShard};
use tch::{Tensor, no_grad};

use crate::model::tp_cuts::{ParameterCuts, PlaceCuts, part_of};

/// Alignment in bytes at which memory is read fastest.
const CACHE_LINE: usize = 64;

/// Range of a parameter in the buffer, and its piece in this rank's shard.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) range: Range<usize>,
    /// Local size of the parameter: of this rank's experts with expert parallelism, of its shard with tensor
    /// parallelism, else the full size.
    pub(super) size: Vec<i64>,
    /// Full size of the parameter, and the index in it, in row-major order, at which the local values begin.
    pub(super) whole_size: Vec<i64>,
    pub(super) offset: usize,
    pub(super) part: Range<usize>,
    /// Tensor-parallel shards of the parameter, if the local values are not contiguous in the full one.
    pub(super) cuts: Option<PlaceCuts>,
}

impl Place {
    /// The piece as a range of the full parameter.
    pub(super) fn tensor_shard<'a>(&'a self, name: &'a str) -> CutShard<'a> {
        let Range { start, end } = self.shard_here(name).range;
        let range = self.offset + start..self.offset + end;
        let shard = TensorShard { name, shape: &self.whole_size, range };
        CutShard { shard, cut: self.cuts.as_ref().map(PlaceCuts::own) }
    }

    /// Copies the piece of the parameter `leaf`, which has its full or its local size.
    pub(super) fn copy_piece(&self, name: &str, leaf: &Tensor, piece: &Tensor) {
        let is_whole = leaf.size() == self.whole_size;
        match &self.cuts {
            Some(cuts) if is_whole => {
                copy_tensor_shard(&self.shard_here(name), &part_of(cuts.own(), &leaf.detach()), piece);
            }
            None if is_whole => copy_tensor_shard(&self.tensor_shard(name).shard, leaf, piece),
            _ => copy_tensor_shard(&self.shard_here(name), leaf, piece),
        }
    }

    /// The piece as a range of the local parameter.
    pub(super) fn shard_here<'a>(&'a self, name: &'a str) -> TensorShard<'a> {
        // An empty piece may be beyond the parameter's end.
        let start = self.part.start.saturating_sub(self.range.start).min(self.range.len());
        TensorShard { name, shape: &self.size, range: start..start + self.part.len() }
    }

    /// A view of the local parameter in the unsharded buffer `whole`, `[padded_len]`.
    pub(super) fn in_whole(&self, whole: &Tensor) -> Tensor {
        whole.narrow(0, self.range.start as i64, self.range.len() as i64).view(self.size.as_slice())
    }

    /// A view of the parameter's piece in a `shard` whose range in the buffer is `own`, `[len]`.
    pub(super) fn in_shard(&self, shard: &Tensor, own: &Range<usize>) -> Tensor {
        shard.narrow(0, (self.part.start - own.start) as i64, self.part.len() as i64)
    }
}

/// This rank's experts among all experts of a tensor, `[e, ..]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnExperts {
    pub(crate) shard: EpShard,
    /// Number of experts of the model, e.
    pub(crate) num_experts: usize,
}

impl OwnExperts {
    /// The local size of a leaf, which has its full size, or already its local one.
    fn size_here(self, leaf: &[i64]) -> Vec<i64> {
        let num_own = self.shard.experts(self.num_experts).len() as i64;
        std::iter::once(num_own).chain(leaf.iter().skip(1).copied()).collect()
    }
}

/// Local values of a buffer's parameters on this rank, before FSDP shards them.
#[derive(Clone, Copy, Debug)]
pub(super) enum Share<'a> {
    /// All of each parameter.
    Whole,
    /// The values of some experts.
    Experts(OwnExperts),
    /// A tensor-parallel shard of each parameter.
    Cut(&'a ParameterCuts),
}

impl Share<'_> {
    pub(super) fn is_of_experts(self) -> bool {
        matches!(self, Self::Experts(_))
    }

    pub(super) fn is_cut(self) -> bool {
        matches!(self, Self::Cut(_))
    }

    fn cuts_of(self, name: &str) -> Option<PlaceCuts> {
        match self {
            Self::Cut(cuts) => cuts.of(name),
            Self::Whole | Self::Experts(_) => None,
        }
    }
}

/// A named tensor of a decoder.
type Leaf = (String, Tensor);

/// Local sizes of the leaves.
pub(super) fn sizes(leaves: &[(String, Tensor)], share: Share<'_>) -> Vec<Vec<i64>> {
    let size = |(name, leaf): &(String, Tensor)| match share {
        Share::Experts(experts) => experts.size_here(&leaf.size()),
        Share::Whole => leaf.size(),
        Share::Cut(cuts) => {
            let size = leaf.size();
            cuts.of(name).map_or(size.clone(), |cuts| cuts.own().shape(&size))
        }
    };
    leaves.iter().map(size).collect()
}

/// The ranges of consecutive parameters of `sizes` in a buffer of `num_shards`. They are contiguous, but with
/// one shard aligned to cache lines, for values of `width` bytes.
pub(super) fn ranges(sizes: &[Vec<i64>], num_shards: usize, width: usize) -> Vec<Range<usize>> {
    let step = if num_shards == 1 { CACHE_LINE / width } else { 1 };
    let mut end = 0_usize;
    let range = |size: &Vec<i64>| {
        let start = end.next_multiple_of(step);
        end = start + size.iter().product::<i64>() as usize;
        start..end
    };
    sizes.iter().map(range).collect()
}

/// The places of leaves, whose local sizes and ranges are `at`, with the piece of each in shard `shard` of
/// `layout`.
pub(super) fn places(
    leaves: &[Leaf],
    share: Share<'_>,
    at: impl Iterator<Item = (Vec<i64>, Range<usize>)>,
    layout: Shards,
    shard: usize,
) -> Vec<Place> {
    let place = |((name, _), (size, range)): (&Leaf, (Vec<i64>, Range<usize>))| {
        let (mut whole_size, mut offset) = (size.clone(), 0);
        if let (Share::Experts(experts), Some(first)) = (share, whole_size.first_mut()) {
            *first = experts.num_experts as i64;
            offset = experts.shard.place * range.len();
        }
        let cuts = share.cuts_of(name);
        if let Some(cuts) = &cuts {
            whole_size = cuts.whole_size(&size);
        }
        Place { part: layout.part_of(&range, shard), size, whole_size, offset, range, cuts }
    };
    leaves.iter().zip(at).map(place).collect()
}

/// Copies a shard of the full tensor `whole` to `values`, `[len]`. A tensor that is not contiguous, such as
/// an expanded one, is copied chunk by chunk.
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
