//! Some of a tensor's numbers, told by their place in it: what one of several ranks reads, draws or copies of a tensor that no
//! rank needs whole. Where the numbers come from is not known here.

use std::ops::Range;

/// Numbers of a tensor that follow each other in row-major order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excerpt<'a> {
    /// The tensor's name.
    pub name: &'a str,
    /// The shape of all of it.
    pub shape: &'a [i64],
    /// Which of its numbers, by their place in row-major order.
    pub range: Range<usize>,
}

impl<'a> Excerpt<'a> {
    /// All of a tensor.
    pub fn whole(name: &'a str, shape: &'a [i64]) -> Self {
        Self { name, shape, range: 0..numel(shape) }
    }

    /// The same place in another tensor of the same shape.
    #[must_use]
    pub fn named(&self, name: &'a str) -> Self {
        Self { name, ..self.clone() }
    }

    /// It in parts of at most `max_len` numbers, at least one, first to last.
    pub fn chunks(&self, max_len: usize) -> impl Iterator<Item = Self> {
        let Range { start, end } = self.range;
        let max_len = max_len.max(1);
        (start..end)
            .step_by(max_len)
            .map(move |start| Self { range: start..end.min(start + max_len), ..self.clone() })
    }

    /// The rows of the first dim that it touches; a number without dims is one row.
    pub fn rows(&self) -> Range<usize> {
        let row_len = self.row_len();
        self.range.start / row_len..self.range.end.div_ceil(row_len)
    }

    /// Where it lies in [`Self::rows`], counted in numbers from their start.
    pub fn place_in_rows(&self) -> Range<usize> {
        let before = self.rows().start * self.row_len();
        self.range.start - before..self.range.end - before
    }

    fn row_len(&self) -> usize {
        self.shape.get(1..).map_or(1, numel).max(1)
    }
}

/// Numbers of a tensor of this shape.
fn numel(shape: &[i64]) -> usize {
    shape.iter().map(|len| *len as usize).product()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_rows_that_it_touches_hold_it_and_no_row_is_there_in_vain(
            shape in prop::collection::vec(1_i64..6, 0..4),
            (one, other) in (0.0..=1.0, 0.0..=1.0),
        ) {
            let num = numel(&shape);
            let place = |share: f64| (share * num as f64) as usize;
            let range = place(f64::min(one, other))..place(f64::max(one, other));
            prop_assume!(!range.is_empty());
            let excerpt = Excerpt { name: "a", shape: &shape, range: range.clone() };
            let row_len = num / shape.first().map_or(1, |rows| *rows as usize);
            let (rows, place) = (excerpt.rows(), excerpt.place_in_rows());
            let numbers: Vec<usize> = (rows.start * row_len..rows.end * row_len).collect();
            prop_assert_eq!(&numbers[place.clone()], &range.collect::<Vec<_>>()[..]);
            prop_assert!(place.start < row_len && numbers.len() - place.end < row_len);
        }

        #[test]
        fn its_chunks_are_it(start in 0_usize..20, len in 0_usize..20, max_len in 1_usize..9) {
            let excerpt = Excerpt { name: "a", shape: &[40], range: start..start + len };
            let chunks: Vec<_> = excerpt.chunks(max_len).map(|chunk| chunk.range).collect();
            prop_assert!(chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= max_len));
            prop_assert_eq!(chunks.into_iter().flatten().collect::<Vec<_>>(), excerpt.range.collect::<Vec<_>>());
        }
    }
}
