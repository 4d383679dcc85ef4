//! Local tensors: the index ranges of each dimension that a rank has before FSDP shards them. Which tensor is
//! sharded along which axis is decided elsewhere.
//!
//! ```text
//! rows      [. . . .]      columns   [. # # .]      of a fused weight   [. . .]  part 0
//!           [# # # #]                [. # # .]                          [# # #]
//!           [# # # #]                [. # # .]                          [. . .]  part 1
//!           [. . . .]                [. # # .]                          [# # #]
//! ```
//! A tensor may be sharded along several dimensions, such as the stacked weights of experts: by experts, and
//! by the width of each.

use std::ops::Range;

use super::chunks::{Chunk, chunks};

/// Selected indices of a dimension: ascending, disjoint ranges, several where a fused weight is split part by
/// part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DimRanges {
    /// Length of the dimension.
    pub len: usize,
    /// Ranges of the selected indices.
    pub ranges: Vec<Range<usize>>,
}

impl DimRanges {
    /// Selects all indices of a dimension of length `len`.
    pub fn full(len: usize) -> Self {
        Self { len, ranges: std::iter::once(0..len).collect() }
    }

    /// Number of selected indices.
    pub fn count(&self) -> usize {
        self.ranges.iter().map(Range::len).sum()
    }

    /// Whether all indices are selected.
    pub fn is_full(&self) -> bool {
        self.count() == self.len
    }

    /// Returns the selected index number `nth`, from 0.
    fn index(&self, nth: usize) -> usize {
        let selected = nth..nth + 1;
        overlaps(self.ranges.iter().cloned(), &selected).first().map_or(self.len, |index| index.start)
    }
}

/// A dimension of a tensor that is split over the ranks of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DimShards {
    /// Index of the dimension.
    pub dim: usize,
    /// Indices that each rank has, in the order of ranks.
    pub of_ranks: Vec<DimRanges>,
}

impl DimShards {
    /// Whether the shards are equally many rows that follow each other: concatenated, they are the tensor.
    pub fn are_consecutive_rows(&self) -> bool {
        let len = self.of_ranks.first().map_or(0, DimRanges::count);
        let is_next = |rank: usize, own: &DimRanges| match own.ranges.as_slice() {
            [rows] => rows.start == rank * len && rows.end == (rank + 1) * len,
            _ => false,
        };
        self.dim == 0 && self.of_ranks.iter().enumerate().all(|(rank, own)| is_next(rank, own))
    }
}

/// Placement of a parameter over the ranks of a group (DTensor's placements).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Every rank has the parameter and computes its full gradient.
    Replicate,
    /// Every rank has some indices of one dimension, of the parameter and of its gradient.
    Shard(DimShards),
    /// Every rank has the parameter and computes a summand of its gradient.
    Partial,
}

/// Indices of each dimension of a tensor that a rank has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalTensor {
    shape: Vec<i64>,
    dims: Vec<DimRanges>,
}

impl LocalTensor {
    /// Selects all indices of a tensor of shape `shape`.
    pub fn full(shape: &[i64]) -> Self {
        Self { shape: shape.to_vec(), dims: shape.iter().map(|len| DimRanges::full(*len as usize)).collect() }
    }

    /// Returns this selection with the indices `ranges` of dimension `dim`, whose length becomes that of
    /// `ranges`. Has no effect if the tensor has no dimension `dim`.
    #[must_use]
    pub fn with(mut self, dim: usize, ranges: DimRanges) -> Self {
        if let (Some(len), Some(own)) = (self.shape.get_mut(dim), self.dims.get_mut(dim)) {
            *len = ranges.len as i64;
            *own = ranges;
        }
        self
    }

    /// Shape of the full tensor.
    pub fn shape(&self) -> &[i64] {
        &self.shape
    }

    /// Selected indices of each dimension.
    pub fn dims(&self) -> &[DimRanges] {
        &self.dims
    }

    /// Shape of the local tensor.
    pub fn local_shape(&self) -> Vec<i64> {
        self.dims.iter().map(|dim| dim.count() as i64).collect()
    }

    /// Whether the rank has the full tensor.
    pub fn is_full(&self) -> bool {
        self.dims.iter().all(DimRanges::is_full)
    }

    /// Maps a range of the local elements to ranges of the full tensor's elements, both in row-major order.
    /// The returned ranges, concatenated, are `range`.
    pub fn runs(&self, range: Range<usize>) -> Vec<Range<usize>> {
        // The dimensions behind the last split one are contiguous.
        let Some(split) = self.dims.iter().rposition(|dim| !dim.is_full()) else {
            return std::iter::once(range).filter(|range| !range.is_empty()).collect();
        };
        let (outer, own) = (&self.dims[..split], &self.dims[split]);
        let inner: usize = self.dims[split + 1..].iter().map(|dim| dim.len).product();
        let (local_len, full_len) = (own.count() * inner, own.len * inner);
        let rows = range.start / local_len.max(1)..range.end.div_ceil(local_len.max(1));
        let before = rows.start * local_len;
        let blocks = rows.flat_map(|row| {
            let start = full_row(outer, row) * full_len;
            own.ranges.iter().map(move |range| start + range.start * inner..start + range.end * inner)
        });
        overlaps(blocks, &(range.start - before..range.end - before))
    }

    /// Returns a range of the local elements as axis-aligned boxes of the full tensor whose elements,
    /// concatenated, are the range.
    pub fn chunks(&self, range: Range<usize>) -> Vec<Chunk> {
        let local = chunks(&self.local_shape(), range);
        local.iter().flat_map(|chunk| boxes(&self.dims, &chunk.start, &chunk.shape)).collect()
    }
}

/// Converts the row `local` of the selected rows to a row of the full tensor; rows are numbered in row-major
/// order of `dims`.
fn full_row(dims: &[DimRanges], local: usize) -> usize {
    let (mut row, mut stride, mut left) = (0, 1, local);
    for dim in dims.iter().rev() {
        let count = dim.count().max(1);
        row += dim.index(left % count) * stride;
        left /= count;
        stride *= dim.len;
    }
    row
}

/// Converts a box of the local tensor, which begins at `start` and has shape `shape`, to boxes of the full
/// tensor in the same order.
fn boxes(dims: &[DimRanges], start: &[u64], shape: &[u64]) -> Vec<Chunk> {
    let (Some((dim, inner)), [first, starts @ ..], [len, lens @ ..]) = (dims.split_first(), start, shape)
    else {
        return vec![Chunk { start: Vec::new(), shape: Vec::new() }];
    };
    let of_row = boxes(inner, starts, lens);
    let selected = *first as usize..(*first + *len) as usize;
    let rows = overlaps(dim.ranges.iter().cloned(), &selected).into_iter();
    match of_row.as_slice() {
        // If the box covers a single box of each row, the boxes of adjacent rows are merged into one.
        [one] => rows.map(|rows| one.clone().within(rows)).collect(),
        several => {
            let of_row = |row: usize| several.iter().map(move |one| one.clone().within(row..row + 1));
            rows.flatten().flat_map(of_row).collect()
        }
    }
}

/// Returns the overlaps of `range` with `blocks`. `range` counts in the concatenation of the blocks, the
/// result in the coordinates of the blocks.
fn overlaps(blocks: impl Iterator<Item = Range<usize>>, range: &Range<usize>) -> Vec<Range<usize>> {
    let mut before = 0;
    let part = |block: Range<usize>| {
        let (start, end) = (before, before + block.len());
        before = end;
        let touched = range.start.max(start)..range.end.min(end);
        (touched.start < touched.end)
            .then(|| block.start + touched.start - start..block.start + touched.end - start)
    };
    blocks.filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::chunks::tests::elements_of;
    use super::*;

    /// The selected elements of the full tensor in row-major order, one by one.
    fn selected(local: &LocalTensor) -> Vec<usize> {
        local.dims().iter().fold(vec![0], |rows, dim| {
            let indices: Vec<usize> = dim.ranges.iter().cloned().flatten().collect();
            rows.iter().flat_map(|row| indices.iter().map(move |index| row * dim.len + index)).collect()
        })
    }

    /// The share of one of three ranks in a dimension of up to three parts, or all of it.
    fn dim() -> impl Strategy<Value = DimRanges> {
        (1_usize..4, 1_usize..4, 0_usize..4).prop_map(|(len, parts, place)| {
            let own = |part: usize| part * 3 * len + place * len..part * 3 * len + (place + 1) * len;
            match place {
                3 => DimRanges::full(len),
                _ => DimRanges { len: parts * 3 * len, ranges: (0..parts).map(own).collect() },
            }
        })
    }

    fn local_tensor() -> impl Strategy<Value = LocalTensor> {
        prop::collection::vec(dim(), 0..4).prop_map(|dims| {
            let full = LocalTensor::full(&vec![1; dims.len()]);
            dims.into_iter().enumerate().fold(full, |local, (dim, ranges)| local.with(dim, ranges))
        })
    }

    proptest! {
        #[test]
        fn runs_and_chunks_of_any_range_are_its_elements_in_order(
            local in local_tensor(),
            (one, other) in (0.0..=1.0, 0.0..=1.0),
        ) {
            let expected = selected(&local);
            prop_assert_eq!(local.local_shape().iter().product::<i64>() as usize, expected.len());
            let place = |share: f64| (share * expected.len() as f64) as usize;
            let range = place(f64::min(one, other))..place(f64::max(one, other));
            let runs: Vec<usize> = local.runs(range.clone()).into_iter().flatten().collect();
            prop_assert_eq!(&runs[..], &expected[range.clone()]);
            let chunks = local.chunks(range.clone());
            let elements: Vec<usize> =
                chunks.iter().flat_map(|chunk| elements_of(local.shape(), chunk)).collect();
            prop_assert_eq!(&elements[..], &expected[range]);
        }

        #[test]
        fn columns_are_as_few_chunks_as_a_full_tensor_has(
            (rows, width) in (1_i64..6, 1_usize..4),
            (place, one, other) in (0_usize..3, 0.0..=1.0, 0.0..=1.0),
        ) {
            let columns = std::iter::once(place * width..(place + 1) * width).collect();
            let columns = DimRanges { len: 3 * width, ranges: columns };
            let local = LocalTensor::full(&[rows, 1]).with(1, columns);
            let at = |share: f64| (share * (rows as usize * width) as f64) as usize;
            prop_assert!(local.chunks(at(f64::min(one, other))..at(f64::max(one, other))).len() <= 5);
        }
    }

    #[test]
    fn equal_shards_of_rows_are_the_tensor_and_others_are_not() {
        let are_consecutive = |dim: usize, of_ranks: [&[usize]; 2]| {
            let of_ranks = of_ranks.map(|bounds| {
                let ranges = bounds.chunks(2).map(|ends| ends[0]..ends[1]);
                DimRanges { len: 8, ranges: ranges.collect() }
            });
            DimShards { dim, of_ranks: of_ranks.into() }.are_consecutive_rows()
        };
        assert!(are_consecutive(0, [&[0, 4], &[4, 8]]));
        assert!(!are_consecutive(1, [&[0, 4], &[4, 8]]), "columns");
        assert!(!are_consecutive(0, [&[0, 5], &[5, 8]]), "more rows for the first rank");
        assert!(!are_consecutive(0, [&[0, 2, 4, 6], &[2, 4, 6, 8]]), "a fused weight");
        assert!(!are_consecutive(0, [&[0, 4], &[0, 4]]), "a key head that two ranks have");
    }

    #[test]
    fn a_vector_is_split_by_its_rows() {
        let local = LocalTensor::full(&[8]).with(0, DimRanges { len: 8, ranges: vec![2..4, 6..8] });
        assert_eq!((local.local_shape(), local.is_full()), (vec![4], false));
        assert_eq!(local.runs(1..3), [3..4, 6..7]);
        assert_eq!(local.with(1, DimRanges::full(3)).shape(), [8]);
    }
}
