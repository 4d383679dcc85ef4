//! Ragged rows: concatenated sequences of different lengths, with a mask of the tokens that count.
//!
//! This crate has no padded batches. A per-token quantity is one flat slice; [`Rows`] has the offsets of its
//! sequences (`cu_seqlens`, as for varlen attention) and the loss mask, which may have holes (tool
//! observations, rejected tokens) and may be empty for a row. Arithmetic on rewards or losses is elsewhere;
//! functions that take slices from outside check them with [`Rows::check_tokens`] before anything here reads
//! them.

use std::ops::Range;

use thiserror::Error;

/// A mismatch between flat values and their rows.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RowsError {
    /// The offsets do not describe consecutive rows.
    #[error("row offsets must start at 0 and never fall, but offset {index} is {got} after {previous}")]
    Offsets {
        /// Index in `cu_seqlens`.
        index: usize,
        /// Previous offset (0 for the first).
        previous: usize,
        /// Offset at this index.
        got: usize,
    },
    /// There is no offset at all; even zero rows need the leading 0.
    #[error("row offsets are empty, expected at least the leading 0")]
    NoOffsets,
    /// A per-token or per-row slice has the wrong length.
    #[error("{name} holds {got} values, expected {expected}")]
    Length {
        /// Name of the slice.
        name: &'static str,
        /// Number of tokens or rows.
        expected: usize,
        /// Number of values in the slice.
        got: usize,
    },
}

/// Offsets and loss mask of concatenated sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows {
    cu_seqlens: Vec<usize>,
    mask: Vec<bool>,
    valid_lens: Vec<usize>,
}

impl Rows {
    /// Makes rows from `cu_seqlens` (number of rows + 1 offsets, the first 0) and one mask entry per token.
    ///
    /// # Errors
    /// When the offsets descend or do not end at the mask's length.
    pub fn new(cu_seqlens: Vec<usize>, mask: Vec<bool>) -> Result<Self, RowsError> {
        let mut previous = 0;
        for (index, &got) in cu_seqlens.iter().enumerate() {
            if got < previous || (index == 0 && got != 0) {
                return Err(RowsError::Offsets { index, previous, got });
            }
            previous = got;
        }
        let expected = *cu_seqlens.last().ok_or(RowsError::NoOffsets)?;
        if mask.len() != expected {
            return Err(RowsError::Length { name: "loss_mask", expected, got: mask.len() });
        }
        let valid_lens = cu_seqlens.windows(2).map(|w| count_true(&mask[w[0]..w[1]])).collect();
        Ok(Self { cu_seqlens, mask, valid_lens })
    }

    /// Makes one row per mask, in order.
    pub fn from_masks<'a>(masks: impl IntoIterator<Item = &'a [bool]>) -> Self {
        let (mut cu_seqlens, mut mask, mut valid_lens) = (vec![0], Vec::new(), Vec::new());
        for row in masks {
            mask.extend_from_slice(row);
            cu_seqlens.push(mask.len());
            valid_lens.push(count_true(row));
        }
        Self { cu_seqlens, mask, valid_lens }
    }

    /// Makes rows of these lengths whose tokens all count, such as completions without their prompts.
    pub fn unmasked(lens: impl IntoIterator<Item = usize>) -> Self {
        let valid_lens: Vec<usize> = lens.into_iter().collect();
        let mut cu_seqlens = vec![0];
        let mut end = 0;
        for len in &valid_lens {
            end += len;
            cu_seqlens.push(end);
        }
        Self { cu_seqlens, mask: vec![true; end], valid_lens }
    }

    /// Returns the same rows with another mask, for instance after tokens were rejected.
    ///
    /// # Errors
    /// When `mask` does not have one entry per token.
    pub fn with_mask(&self, mask: Vec<bool>) -> Result<Self, RowsError> {
        Self::new(self.cu_seqlens.clone(), mask)
    }

    /// Number of rows, empty ones included.
    pub fn num_rows(&self) -> usize {
        self.valid_lens.len()
    }

    /// Number of tokens, masked ones included.
    pub fn num_tokens(&self) -> usize {
        self.mask.len()
    }

    /// Number of tokens that count.
    pub fn num_valid_tokens(&self) -> usize {
        self.valid_lens.iter().sum()
    }

    /// Number of rows with at least one token that counts.
    pub fn num_valid_rows(&self) -> usize {
        self.valid_lens.iter().filter(|len| **len > 0).count()
    }

    /// Range of row `row_idx` in the flat slices.
    pub fn range(&self, row_idx: usize) -> Range<usize> {
        self.cu_seqlens[row_idx]..self.cu_seqlens[row_idx + 1]
    }

    /// Ranges of all rows in the flat slices, in order.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.cu_seqlens.windows(2).map(|w| w[0]..w[1])
    }

    /// Number of tokens of row `row_idx` that count.
    pub fn valid_len(&self, row_idx: usize) -> usize {
        self.valid_lens[row_idx]
    }

    /// Loss mask of all rows, flat.
    pub fn mask(&self) -> &[bool] {
        &self.mask
    }

    /// Index of the row to which token `token_idx` of the flat slices belongs.
    pub fn row_of(&self, token_idx: usize) -> usize {
        self.cu_seqlens.partition_point(|&offset| offset <= token_idx).saturating_sub(1)
    }

    /// Sum of `values` (one per token) over every row, masked tokens included.
    pub fn sums(&self, values: &[f64]) -> Vec<f64> {
        self.ranges().map(|range| values[range].iter().sum()).collect()
    }

    /// Sum of `values` (one per token) over the tokens of every row that count.
    pub fn masked_sums(&self, values: &[f64]) -> Vec<f64> {
        self.ranges().map(|range| self.valid(range).map(|token| values[token]).sum()).collect()
    }

    /// Gives every counting token its row's value, and 0 to the others.
    pub fn broadcast(&self, row_values: &[f64]) -> Vec<f64> {
        let mut tokens = vec![0.0; self.num_tokens()];
        for (range, value) in self.ranges().zip(row_values) {
            self.valid(range).for_each(|token| tokens[token] = *value);
        }
        tokens
    }

    /// Assigns each row's value to its last token that counts (an outcome reward), and 0 to all others.
    pub fn at_last_valid(&self, row_values: &[f64]) -> Vec<f64> {
        let mut tokens = vec![0.0; self.num_tokens()];
        for (range, value) in self.ranges().zip(row_values) {
            if let Some(last) = self.valid(range).last() {
                tokens[last] = *value;
            }
        }
        tokens
    }

    /// Iterates over the counting tokens of `range`, in order.
    pub fn valid(&self, range: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        range.filter(move |token| self.mask[*token])
    }

    /// Fails unless `values` has one value per token.
    ///
    /// # Errors
    /// [`RowsError::Length`] with the slice's name and both lengths.
    pub fn check_tokens<T>(&self, name: &'static str, values: &[T]) -> Result<(), RowsError> {
        check_len(name, self.num_tokens(), values.len())
    }

    /// Fails unless `values` has one value per row.
    ///
    /// # Errors
    /// [`RowsError::Length`] with the slice's name and both lengths.
    pub fn check_rows<T>(&self, name: &'static str, values: &[T]) -> Result<(), RowsError> {
        check_len(name, self.num_rows(), values.len())
    }
}

fn check_len(name: &'static str, expected: usize, got: usize) -> Result<(), RowsError> {
    if expected == got { Ok(()) } else { Err(RowsError::Length { name, expected, got }) }
}

fn count_true(mask: &[bool]) -> usize {
    mask.iter().filter(|counts| **counts).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holed() -> Rows {
        Rows::from_masks([&[true, false, true][..], &[], &[false, false], &[true]])
    }

    #[test]
    fn rows_have_their_offsets() {
        let rows = holed();
        assert_eq!(rows.ranges().collect::<Vec<_>>(), [0..3, 3..3, 3..5, 5..6]);
        assert_eq!((rows.num_rows(), rows.num_valid_rows()), (4, 2));
        assert_eq!((rows.num_tokens(), rows.num_valid_tokens()), (6, 3));
        assert_eq!((0..6).map(|token| rows.row_of(token)).collect::<Vec<_>>(), [0, 0, 0, 2, 2, 3]);
    }

    #[test]
    fn sums_and_broadcasts_respect_the_mask() {
        let rows = holed();
        let values = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
        assert_eq!(rows.sums(&values), [7.0, 0.0, 24.0, 32.0]);
        assert_eq!(rows.masked_sums(&values), [5.0, 0.0, 0.0, 32.0]);
        assert_eq!(rows.broadcast(&[1.0, 2.0, 3.0, 4.0]), [1.0, 0.0, 1.0, 0.0, 0.0, 4.0]);
        assert_eq!(rows.at_last_valid(&[1.0, 2.0, 3.0, 4.0]), [0.0, 0.0, 1.0, 0.0, 0.0, 4.0]);
    }

    #[test]
    fn offsets_that_do_not_fit_are_refused() {
        assert_eq!(Rows::new(vec![], vec![]), Err(RowsError::NoOffsets));
        assert_eq!(
            Rows::new(vec![0, 2, 1], vec![true]),
            Err(RowsError::Offsets { index: 2, previous: 2, got: 1 })
        );
        assert_eq!(
            Rows::new(vec![0, 2], vec![true]),
            Err(RowsError::Length { name: "loss_mask", expected: 2, got: 1 })
        );
        assert!(Rows::new(vec![1, 2], vec![true]).is_err());
    }
}
