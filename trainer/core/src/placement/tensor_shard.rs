//! A shard of a tensor by its offset and length: the part that one rank reads, initializes or copies. Where
//! the values come from is decided elsewhere.

use std::ops::Range;

use super::local_tensor::{LocalTensor, Region};
use super::regions::numel;

/// A contiguous range of a tensor's elements, in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShard<'a> {
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
    pub fn runs(&self) -> Vec<(TensorShard<'a>, Range<usize>)> {
        let (name, shape, mut end) = (self.name, self.local.shape(), 0);
        let of_run = |range: Range<usize>| {
            let start = end;
            end += range.len();
            (TensorShard { name, shape, range }, start..end)
        };
        self.local.runs(self.range.clone()).into_iter().map(of_run).collect()
    }

    /// Returns the range as axis-aligned boxes of the full tensor whose elements, concatenated, are the
    /// range.
    pub fn regions(&self) -> Vec<Region> {
        self.local.regions(self.range.clone())
    }
}

impl<'a> TensorShard<'a> {
    /// Returns the range of a full tensor.
    pub fn whole(name: &'a str, shape: &'a [i64]) -> Self {
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

    use super::*;

    proptest! {
        #[test]
        fn the_touched_rows_contain_it_and_no_row_is_superfluous(
            shape in prop::collection::vec(1_i64..6, 0..4),
            (one, other) in (0.0..=1.0, 0.0..=1.0),
        ) {
            let num = numel(&shape);
            let place = |share: f64| (share * num as f64) as usize;
            let range = place(f64::min(one, other))..place(f64::max(one, other));
            prop_assume!(!range.is_empty());
            let tensor_shard = TensorShard { name: "a", shape: &shape, range: range.clone() };
            let row_len = num / shape.first().map_or(1, |rows| *rows as usize);
            let (rows, place) = (tensor_shard.rows(), tensor_shard.place_in_rows());
            let numbers: Vec<usize> = (rows.start * row_len..rows.end * row_len).collect();
            prop_assert_eq!(&numbers[place.clone()], &range.collect::<Vec<_>>()[..]);
            prop_assert!(place.start < row_len && numbers.len() - place.end < row_len);
        }

        #[test]
        fn its_chunks_are_it(start in 0_usize..20, len in 0_usize..20, max_len in 1_usize..9) {
            let tensor_shard = TensorShard { name: "a", shape: &[40], range: start..start + len };
            let chunks: Vec<_> = tensor_shard.chunks(max_len).map(|chunk| chunk.range).collect();
            prop_assert!(chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= max_len));
            prop_assert_eq!(chunks.into_iter().flatten().collect::<Vec<_>>(), tensor_shard.range.collect::<Vec<_>>());
        }
    }
}
