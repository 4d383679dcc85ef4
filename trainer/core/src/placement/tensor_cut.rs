//! Tensor-parallel shards of a weight: ranges of its rows, or of its columns. Which weight is sharded how is
//! decided elsewhere.
//!
//! ```text
//! rows      [. . . .]      columns   [. # # .]      of a fused weight   [. . .]  part 0
//!           [# # # #]                [. # # .]                          [# # #]
//!           [# # # #]                [. # # .]                          [. . .]  part 1
//!           [. . . .]                [. # # .]                          [# # #]
//! ```

use std::ops::Range;

/// A tensor-parallel rank's shard of a tensor, with the same number of dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Ranges of the first dimension, ascending and disjoint: one, or one in each part of a fused weight.
    Rows(Vec<Range<usize>>),
    /// A range of the last dimension.
    Columns(Range<usize>),
}

impl Cut {
    /// The shape of the shard of a tensor of shape `whole`.
    pub fn shape(&self, whole: &[i64]) -> Vec<i64> {
        let mut shape = whole.to_vec();
        match self {
            Self::Rows(ranges) => {
                shape.iter_mut().take(1).for_each(|rows| *rows = num_of(ranges) as i64);
            }
            Self::Columns(range) => {
                shape.iter_mut().rev().take(1).for_each(|columns| *columns = range.len() as i64);
            }
        }
        shape
    }

    /// Maps a range of the shard's elements to ranges of the full tensor's elements, both in row-major order.
    /// `whole` is the full shape; the returned ranges, concatenated, are `range`.
    pub fn runs(&self, whole: &[i64], range: Range<usize>) -> Vec<Range<usize>> {
        match self {
            Self::Rows(ranges) => {
                let row_len = whole.iter().skip(1).map(|len| *len as usize).product::<usize>();
                let blocks = ranges.iter().map(|rows| rows.start * row_len..rows.end * row_len);
                overlaps(blocks, &range)
            }
            Self::Columns(columns) => {
                let row_len = whole.last().map_or(1, |len| *len as usize);
                let len = columns.len().max(1);
                let rows = range.start / len..range.end.div_ceil(len);
                let start = rows.start * columns.len();
                let blocks = rows.map(|row| row * row_len + columns.start..row * row_len + columns.end);
                overlaps(blocks, &(range.start - start..range.end - start))
            }
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

fn num_of(ranges: &[Range<usize>]) -> usize {
    ranges.iter().map(Range::len).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The numbers of a tensor [rows, columns] that a cut leaves, one by one.
    fn left(cut: &Cut, rows: usize, columns: usize) -> Vec<usize> {
        let is_left = |row: usize, column: usize| match cut {
            Cut::Rows(ranges) => ranges.iter().any(|range| range.contains(&row)),
            Cut::Columns(range) => range.contains(&column),
        };
        let all = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        all.filter(|(row, column)| is_left(*row, *column))
            .map(|(row, column)| row * columns + column)
            .collect()
    }

    fn cuts() -> impl Strategy<Value = (Cut, usize, usize)> {
        let rows = (1_usize..5, 1_usize..4, 0_usize..3).prop_map(|(len, parts, place)| {
            let own = |part: usize| part * 3 * len + place * len..part * 3 * len + (place + 1) * len;
            (Cut::Rows((0..parts).map(own).collect()), parts * 3 * len, 4)
        });
        let columns = (1_usize..5, 1_usize..5, 0_usize..3)
            .prop_map(|(len, rows, place)| (Cut::Columns(place * len..(place + 1) * len), rows, 3 * len));
        prop_oneof![rows, columns]
    }

    proptest! {
        #[test]
        fn runs_of_any_range_are_its_numbers_in_order(
            (cut, rows, columns) in cuts(),
            (one, other) in (0.0..=1.0, 0.0..=1.0),
        ) {
            let shape = [rows as i64, columns as i64];
            let expected = left(&cut, rows, columns);
            let own: i64 = cut.shape(&shape).iter().product();
            prop_assert_eq!(own as usize, expected.len());
            let place = |share: f64| (share * expected.len() as f64) as usize;
            let range = place(f64::min(one, other))..place(f64::max(one, other));
            let runs: Vec<usize> = cut.runs(&shape, range.clone()).into_iter().flatten().collect();
            prop_assert_eq!(&runs[..], &expected[range]);
        }
    }

    #[test]
    fn a_vector_is_cut_by_its_rows() {
        let cut = Cut::Rows(vec![2..4, 6..8]);
        assert_eq!(cut.shape(&[8]), [4]);
        assert_eq!(cut.runs(&[8], 1..3), [3..4, 6..7]);
    }
}
