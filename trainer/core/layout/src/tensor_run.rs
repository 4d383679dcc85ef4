//! Runs of a tensor's elements by offset and length, which a rank reads, initializes or copies. Where
//! the values come from is decided elsewhere.

use std::ops::Range;

use super::chunks::{Chunk, numel};
use super::local_tensor::LocalTensor;

/// A contiguous range of a tensor's elements, in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRun<'a> {
    /// Name of the tensor.
    pub name: &'a str,
    /// Shape of the full tensor.
    pub shape: &'a [i64],
    /// Range of element offsets in row-major order.
    pub range: Range<usize>,
}

/// A contiguous range of a rank's local tensor, in row-major order: the elements that FSDP stores on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSlice<'a> {
    /// Name of the tensor.
    pub name: &'a str,
    /// Indices of the tensor that the rank has before FSDP.
    pub local: &'a LocalTensor,
    /// Range of offsets of the local elements.
    pub range: Range<usize>,
}

impl<'a> TensorSlice<'a> {
    /// Returns the same range of another tensor of the same shape.
    #[must_use]
    pub fn named(&self, name: &'a str) -> Self {
        Self { name, ..self.clone() }
    }

    /// Returns the range as ranges of the full tensor, each with its offsets within this one.
    pub fn runs(&self) -> Vec<(TensorRun<'a>, Range<usize>)> {
        let (name, shape, mut end) = (self.name, self.local.shape(), 0);
        let of_run = |range: Range<usize>| {
            let start = end;
            end += range.len();
            (TensorRun { name, shape, range }, start..end)
        };
        self.local.runs(self.range.clone()).into_iter().map(of_run).collect()
    }

    /// Returns the runs in groups that are read together: each group covers at most `max_len` elements of the
    /// full tensor and at most 16 times the elements of its runs, or is one run.
    pub fn read_groups(&self, max_len: usize) -> Vec<ReadGroup<'a>> {
        let mut groups: Vec<ReadGroup<'a>> = Vec::new();
        for (run, own) in self.runs() {
            match groups.last_mut().filter(|group| group.can_add(&run.range, max_len)) {
                Some(group) => group.add(&run.range, own),
                None => groups.push(ReadGroup::new(run, own)),
            }
        }
        groups
    }

    /// Returns the range as axis-aligned boxes of the full tensor whose elements, concatenated, are the
    /// range.
    pub fn chunks(&self) -> Vec<Chunk> {
        self.local.chunks(self.range.clone())
    }
}

/// Largest ratio of elements that are read to elements that are used. Below it, runs that are parts of
/// adjacent rows are read together with the elements between them.
const MAX_READ_FACTOR: usize = 16;

/// Runs of a slice that are close to each other in the full tensor, and are read together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadGroup<'a> {
    /// Range of the full tensor from the first run to the end of the last one.
    pub cover: TensorRun<'a>,
    /// Runs of the slice, in order.
    pub runs: Vec<CoveredRun>,
    /// Number of elements of all runs.
    num_used: usize,
}

/// A run of a slice within the range that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CoveredRun {
    /// Offsets of the run in the range that is read.
    pub in_cover: Range<usize>,
    /// Offsets of the run in the slice.
    pub in_slice: Range<usize>,
}

impl<'a> ReadGroup<'a> {
    fn new(run: TensorRun<'a>, own: Range<usize>) -> Self {
        let runs = vec![CoveredRun { in_cover: 0..own.len(), in_slice: own.clone() }];
        Self { cover: run, runs, num_used: own.len() }
    }

    fn can_add(&self, run: &Range<usize>, max_len: usize) -> bool {
        let len = run.end - self.cover.range.start;
        len <= max_len && len <= MAX_READ_FACTOR * (self.num_used + run.len())
    }

    fn add(&mut self, run: &Range<usize>, own: Range<usize>) {
        let first = self.cover.range.start;
        self.cover.range.end = run.end;
        self.num_used += own.len();
        self.runs.push(CoveredRun { in_cover: run.start - first..run.end - first, in_slice: own });
    }
}

impl<'a> TensorRun<'a> {
    /// Returns the range of a full tensor.
    pub fn full(name: &'a str, shape: &'a [i64]) -> Self {
        Self { name, shape, range: 0..numel(shape) }
    }

    /// Returns the same range of another tensor of the same shape.
    #[must_use]
    pub fn named(&self, name: &'a str) -> Self {
        Self { name, ..self.clone() }
    }

    /// Splits the range into chunks of at most `max_len` elements (at least one), first to last.
    pub fn chunks(&self, max_len: usize) -> impl Iterator<Item = Self> {
        let Range { start, end } = self.range;
        let max_len = max_len.max(1);
        (start..end)
            .step_by(max_len)
            .map(move |start| Self { range: start..end.min(start + max_len), ..self.clone() })
    }

    /// Returns the indices of the first dimension that the range touches; a tensor without dimensions is one
    /// row.
    pub fn rows(&self) -> Range<usize> {
        let row_len = self.row_len();
        self.range.start / row_len..self.range.end.div_ceil(row_len)
    }

    /// Returns the range's element offsets relative to the start of [`Self::rows`].
    pub fn place_in_rows(&self) -> Range<usize> {
        let before = self.rows().start * self.row_len();
        self.range.start - before..self.range.end - before
    }

    fn row_len(&self) -> usize {
        self.shape.get(1..).map_or(1, numel).max(1)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::local_tensor::DimRanges;
    use super::*;

    proptest! {
        #[test]
        fn the_rows_of_a_run_contain_it_and_no_row_is_superfluous(
            shape in prop::collection::vec(1_i64..6, 0..4),
            (one, other) in (0.0..=1.0, 0.0..=1.0),
        ) {
            let num = numel(&shape);
            let place = |share: f64| (share * num as f64) as usize;
            let range = place(f64::min(one, other))..place(f64::max(one, other));
            prop_assume!(!range.is_empty());
            let tensor_run = TensorRun { name: "a", shape: &shape, range: range.clone() };
            let row_len = num / shape.first().map_or(1, |rows| *rows as usize);
            let (rows, place) = (tensor_run.rows(), tensor_run.place_in_rows());
            let numbers: Vec<usize> = (rows.start * row_len..rows.end * row_len).collect();
            prop_assert_eq!(&numbers[place.clone()], &range.collect::<Vec<_>>()[..]);
            prop_assert!(place.start < row_len && numbers.len() - place.end < row_len);
        }

        #[test]
        fn groups_of_runs_are_the_slice_and_read_little_more(
            (rows, width) in (1_i64..20, 1_usize..4),
            (num_shards, place) in (1_usize..30, 0_usize..30),
            (one, other) in (0.0..=1.0, 0.0..=1.0),
            max_len in 1_usize..200,
        ) {
            let place = place % num_shards;
            let columns = std::iter::once(place * width..(place + 1) * width).collect();
            let columns = DimRanges { len: num_shards * width, ranges: columns };
            let local = LocalTensor::full(&[rows, 1]).with(1, columns);
            let at = |share: f64| (share * (rows as usize * width) as f64) as usize;
            let range = at(f64::min(one, other))..at(f64::max(one, other));
            let slice = TensorSlice { name: "a", local: &local, range: range.clone() };
            let groups = slice.read_groups(max_len);
            let mut pairs = Vec::new();
            for ReadGroup { cover, runs, num_used } in &groups {
                let len = cover.range.len();
                prop_assert!(runs.len() == 1 || len <= max_len.min(MAX_READ_FACTOR * num_used));
                for CoveredRun { in_cover, in_slice } in runs {
                    prop_assert!(in_cover.end <= len);
                    let in_full = in_cover.clone().map(|at| cover.range.start + at);
                    pairs.extend(in_full.zip(in_slice.clone()));
                }
            }
            let expected: Vec<_> = slice.runs().into_iter().flat_map(|(run, own)| run.range.zip(own)).collect();
            prop_assert_eq!(pairs, expected);
            // Half of each row is read as rows.
            prop_assert!(num_shards != 2 || max_len < 190 || groups.len() <= 1);
        }

        #[test]
        fn chunks_cover_the_run_in_order(start in 0_usize..20, len in 0_usize..20, max_len in 1_usize..9) {
            let tensor_run = TensorRun { name: "a", shape: &[40], range: start..start + len };
            let chunks: Vec<_> = tensor_run.chunks(max_len).map(|chunk| chunk.range).collect();
            prop_assert!(chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= max_len));
            let covered = chunks.into_iter().flatten().collect::<Vec<_>>();
            prop_assert_eq!(covered, tensor_run.range.collect::<Vec<_>>());
        }
    }
}
