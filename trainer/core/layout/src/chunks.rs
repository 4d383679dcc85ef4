//! Ranges of a tensor's elements as axis-aligned boxes, as files of checkpoints list them.

use std::ops::Range;

/// An axis-aligned box within a tensor, as torch's distributed checkpoints call it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// First index in each dimension.
    pub start: Vec<u64>,
    /// Length in each dimension.
    pub shape: Vec<u64>,
}

impl Chunk {
    /// Repeats the box in each of the rows `rows` of a tensor with one more dimension.
    pub(super) fn within(self, rows: Range<usize>) -> Self {
        Self {
            start: [&[rows.start as u64], &self.start[..]].concat(),
            shape: [&[rows.len() as u64], &self.shape[..]].concat(),
        }
    }

    /// Returns the box of the full rows `rows`, each of shape `row_shape`.
    fn of_rows(rows: Range<usize>, row_shape: &[i64]) -> Self {
        let start = [vec![rows.start as u64], vec![0; row_shape.len()]].concat();
        let shape = std::iter::once(rows.len() as u64).chain(row_shape.iter().map(|len| *len as u64));
        Self { start, shape: shape.collect() }
    }
}

/// Returns a range of the elements of a tensor of shape `shape`, in row-major order, as axis-aligned boxes
/// whose elements, concatenated, are the range: a box of full rows and at most one partial row on either
/// side, and so on in each dimension.
pub(super) fn chunks(shape: &[i64], range: Range<usize>) -> Vec<Chunk> {
    if range.is_empty() {
        return Vec::new();
    }
    let Some((_, row_shape)) = shape.split_first() else {
        return vec![Chunk { start: Vec::new(), shape: Vec::new() }];
    };
    let row_len = numel(row_shape);
    let of_row = |row: usize, wanted: Range<usize>| {
        let start = row * row_len;
        let inner = chunks(row_shape, wanted.start - start..wanted.end - start);
        inner.into_iter().map(move |chunk| chunk.within(row..row + 1))
    };
    let whole = range.start.div_ceil(row_len)..range.end / row_len;
    if whole.is_empty() {
        // The range contains no full row, so it touches at most two rows: `border` is the row boundary
        // between its two parts, or an end of the range if it is within one row.
        let border = (whole.start * row_len).clamp(range.start, range.end);
        let parts = [range.start..border, border..range.end].into_iter().filter(|part| !part.is_empty());
        return parts.flat_map(|part| of_row(part.start / row_len, part)).collect();
    }
    let (head, tail) = (range.start..whole.start * row_len, whole.end * row_len..range.end);
    let middle = Chunk::of_rows(whole.clone(), row_shape);
    let head = (!head.is_empty()).then(|| of_row(whole.start - 1, head)).into_iter().flatten();
    let tail = (!tail.is_empty()).then(|| of_row(whole.end, tail)).into_iter().flatten();
    head.chain([middle]).chain(tail).collect()
}

/// Number of elements of a tensor of this shape.
pub(super) fn numel(shape: &[i64]) -> usize {
    shape.iter().map(|len| *len as usize).product()
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The offsets of a chunk's elements in row-major order of the tensor, in the order of the chunk.
    pub(crate) fn elements_of(shape: &[i64], chunk: &Chunk) -> Vec<usize> {
        let dims = shape.iter().zip(chunk.start.iter().zip(&chunk.shape));
        dims.fold(vec![0], |places, (len, (start, num))| {
            let within =
                |place: usize| (*start..start + num).map(move |at| place * *len as usize + at as usize);
            places.into_iter().flat_map(within).collect()
        })
    }

    proptest! {
        #[test]
        fn the_chunks_of_a_range_are_its_elements_in_order(
            shape in prop::collection::vec(1_i64..6, 0..5),
            (one, other) in (0.0..=1.0, 0.0..=1.0),
        ) {
            let place = |share: f64| (share * numel(&shape) as f64) as usize;
            let range = place(f64::min(one, other))..place(f64::max(one, other));
            let chunks = chunks(&shape, range.clone());
            // Two a dim, and whole rows.
            prop_assert!(chunks.len() <= 2 * shape.len() + 1);
            let elements = chunks.iter().flat_map(|chunk| elements_of(&shape, chunk));
            prop_assert_eq!(elements.collect::<Vec<_>>(), range.collect::<Vec<_>>());
        }
    }
}
