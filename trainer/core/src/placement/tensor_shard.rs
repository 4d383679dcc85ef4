//! A shard of a tensor by its offset and length: the part that one rank reads, initializes or copies. Where
//! the values come from is decided elsewhere.

use std::ops::Range;

use crate::tensor_cut::Cut;

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

/// A contiguous range of a tensor-parallel rank's shard of a tensor, or of a full tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CutShard<'a> {
    /// Name and shape of the full tensor, and the range within its tensor-parallel shard.
    pub shard: TensorShard<'a>,
    /// Tensor-parallel shard of the tensor; `None` for the full tensor.
    pub cut: Option<&'a Cut>,
}

impl<'a> From<TensorShard<'a>> for CutShard<'a> {
    /// Converts a range of a full tensor.
    fn from(shard: TensorShard<'a>) -> Self {
        Self { shard, cut: None }
    }
}

impl<'a> CutShard<'a> {
    /// Returns the same range of another tensor of the same shape.
    #[must_use]
    pub fn named(&self, name: &'a str) -> Self {
        Self { shard: self.shard.named(name), cut: self.cut }
    }

    /// Returns the range as ranges of the full tensor, each with its offsets within this one.
    pub fn runs(&self) -> Vec<(TensorShard<'a>, Range<usize>)> {
        let TensorShard { shape, range, .. } = &self.shard;
        let Some(cut) = self.cut else { return vec![(self.shard.clone(), 0..range.len())] };
        let mut end = 0;
        let of_run = |run: Range<usize>| {
            let start = end;
            end += run.len();
            (TensorShard { range: run, ..self.shard.clone() }, start..end)
        };
        cut.runs(shape, range.clone()).into_iter().map(of_run).collect()
    }

    /// Returns the range as axis-aligned boxes of the full tensor whose elements, concatenated, are the
    /// range.
    pub fn regions(&self) -> Vec<Region> {
        match self.cut {
            None => self.shard.regions(),
            Some(Cut::Rows(_)) => self.runs().iter().flat_map(|(run, _)| run.regions()).collect(),
            Some(cut @ Cut::Columns(columns)) => {
                let shape = cut.shape(self.shard.shape);
                let mut boxes = TensorShard { shape: &shape, ..self.shard.clone() }.regions();
                let starts = boxes.iter_mut().filter_map(|region| region.start.last_mut());
                starts.for_each(|start| *start += columns.start as u64);
                boxes
            }
        }
    }
}

/// An axis-aligned box within a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// First index in each dimension.
    pub start: Vec<u64>,
    /// Length in each dimension.
    pub shape: Vec<u64>,
}

impl Region {
    /// Embeds the box in row `row` of a tensor with one more dimension.
    fn within_row(self, row: usize) -> Self {
        Self { start: [&[row as u64], &self.start[..]].concat(), shape: [&[1], &self.shape[..]].concat() }
    }

    /// Returns the box of the full rows `rows`, each of shape `row_shape`.
    fn of_rows(rows: Range<usize>, row_shape: &[i64]) -> Self {
        let start = [vec![rows.start as u64], vec![0; row_shape.len()]].concat();
        let shape = std::iter::once(rows.len() as u64).chain(row_shape.iter().map(|len| *len as u64));
        Self { start, shape: shape.collect() }
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

    /// Returns the range as axis-aligned boxes whose elements, concatenated, are the range: a box of full
    /// rows and at most one partial row on either side, and so on in each dimension.
    pub fn regions(&self) -> Vec<Region> {
        regions(self.shape, self.range.clone())
    }

    fn row_len(&self) -> usize {
        self.shape.get(1..).map_or(1, numel).max(1)
    }
}

fn regions(shape: &[i64], range: Range<usize>) -> Vec<Region> {
    if range.is_empty() {
        return Vec::new();
    }
    let Some((_, row_shape)) = shape.split_first() else {
        return vec![Region { start: Vec::new(), shape: Vec::new() }];
    };
    let row_len = numel(row_shape);
    let of_row = |row: usize, wanted: Range<usize>| {
        let start = row * row_len;
        let inner = regions(row_shape, wanted.start - start..wanted.end - start);
        inner.into_iter().map(move |region| region.within_row(row))
    };
    let whole = range.start.div_ceil(row_len)..range.end / row_len;
    if whole.is_empty() {
        // Neither end is that of a row, or both are within one row: at most two rows are touched.
        let border = (whole.start * row_len).clamp(range.start, range.end);
        let parts = [range.start..border, border..range.end].into_iter().filter(|part| !part.is_empty());
        return parts.flat_map(|part| of_row(part.start / row_len, part)).collect();
    }
    let (head, tail) = (range.start..whole.start * row_len, whole.end * row_len..range.end);
    let middle = Region::of_rows(whole.clone(), row_shape);
    let head = (!head.is_empty()).then(|| of_row(whole.start - 1, head)).into_iter().flatten();
    let tail = (!tail.is_empty()).then(|| of_row(whole.end, tail)).into_iter().flatten();
    head.chain([middle]).chain(tail).collect()
}

/// Number of elements of a tensor of this shape.
fn numel(shape: &[i64]) -> usize {
    shape.iter().map(|len| *len as usize).product()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The places in row-major order of a region's numbers, in the region's own order.
    fn numbers_of(shape: &[i64], region: &Region) -> Vec<usize> {
        let dims = shape.iter().zip(region.start.iter().zip(&region.shape));
        dims.fold(vec![0], |places, (len, (start, num))| {
            let within =
                |place: usize| (*start..start + num).map(move |at| place * *len as usize + at as usize);
            places.into_iter().flat_map(within).collect()
        })
    }

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
        fn its_regions_are_it_in_order(
            shape in prop::collection::vec(1_i64..6, 0..5),
            (one, other) in (0.0..=1.0, 0.0..=1.0),
        ) {
            let place = |share: f64| (share * numel(&shape) as f64) as usize;
            let range = place(f64::min(one, other))..place(f64::max(one, other));
            let regions = TensorShard { name: "a", shape: &shape, range: range.clone() }.regions();
            // Two a dim, and whole rows.
            prop_assert!(regions.len() <= 2 * shape.len() + 1);
            let numbers = regions.iter().flat_map(|region| numbers_of(&shape, region));
            prop_assert_eq!(numbers.collect::<Vec<_>>(), range.collect::<Vec<_>>());
        }

        #[test]
        fn regions_of_columns_are_its_numbers_in_order(
            (rows, width) in (1_i64..6, 1_usize..4),
            (place, one, other) in (0_usize..3, 0.0..=1.0, 0.0..=1.0),
        ) {
            let shape = [rows, 3 * width as i64];
            let cut = Cut::Columns(place * width..(place + 1) * width);
            let at = |share: f64| (share * (rows as usize * width) as f64) as usize;
            let range = at(f64::min(one, other))..at(f64::max(one, other));
            let shard = TensorShard { name: "a", shape: &shape, range };
            let shard = CutShard { shard, cut: Some(&cut) };
            let numbers: Vec<usize> =
                shard.regions().iter().flat_map(|region| numbers_of(&shape, region)).collect();
            let runs = shard.runs().into_iter().flat_map(|(run, _)| run.range);
            prop_assert_eq!(numbers, runs.collect::<Vec<_>>());
            prop_assert!(shard.regions().len() <= 5);
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
