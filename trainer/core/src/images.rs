//! Images of a prompt as a vision tower reads them: rows of patches, and the grid that they fill.
//!
//! This module has no files, pixels or tensors: the code that decodes and resizes fills [`PromptImage`], and
//! a model reads it.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::types::TokenId;

/// Number of patches of an image in each direction, before patches are merged into tokens (`image_grid_thw`
/// of transformers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ImageGrid {
    /// Number of frames, in temporal patches; 1 for a still image.
    pub frames: usize,
    /// Number of rows of patches.
    pub rows: usize,
    /// Number of columns of patches.
    pub columns: usize,
}

impl ImageGrid {
    /// Number of patches in the image.
    pub fn num_patches(self) -> usize {
        self.frames * self.rows * self.columns
    }

    /// Number of tokens of the image in a prompt, where `merge` x `merge` patches become one token.
    pub fn num_tokens(self, merge: usize) -> usize {
        self.num_patches() / (merge * merge)
    }
}

/// One image of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromptImage {
    /// Digest of the pixels and the grid; the key under which the image's features are cached.
    pub digest: u64,
    /// Grid that the patches fill.
    pub grid: ImageGrid,
    /// Normalised pixels, `f32[patches, channels * temporal_patch * patch * patch]` flattened. The patches of
    /// one merged token are adjacent: rows have the order (row / merge, column / merge, row % merge, column %
    /// merge).
    pub patches: Vec<f32>,
}

/// Token offsets of a prompt's images, and the rotary positions of its tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageLayout {
    /// Index of the first token of each image.
    pub starts: Vec<usize>,
    /// Position of each token by time, height and width. A text token has three equal positions. The tokens
    /// of an image count frames, rows and columns from the position after the preceding text (Wang et al.
    /// 2024, arXiv 2409.12191).
    pub positions: [Vec<i64>; 3],
    /// Position of the first token after the prompt. Text after an image continues after the image's largest
    /// position, so this is less than the number of tokens.
    pub next_position: i64,
}

/// A mismatch between the tokens of a prompt and its images.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The prompt has placeholders without an image.
    #[error(
        "expected placeholders (token {token}) for {num_images} images, got one more at token {position}, or an image \
         with fewer tokens"
    )]
    MorePlaceholders {
        /// Token id of the placeholder.
        token: TokenId,
        /// Number of images of the prompt.
        num_images: usize,
        /// Index of the first placeholder without an image.
        position: usize,
    },
    /// An image has no placeholders, or too few.
    #[error("image {image_idx}: expected {expected} placeholders (token {token}), got {got}")]
    FewerPlaceholders {
        /// Token id of the placeholder.
        token: TokenId,
        /// Index of the image.
        image_idx: usize,
        /// Number of tokens of the image.
        expected: usize,
        /// Number of placeholders found.
        got: usize,
    },
    /// The grid cannot be merged into whole tokens.
    #[error(
        "image {image_idx}: expected rows and columns of patches that are multiples of {merge}, got {grid:?}"
    )]
    NotMerged {
        /// Index of the image.
        image_idx: usize,
        /// Number of patches of a token in each direction.
        merge: usize,
        /// Grid of the image.
        grid: ImageGrid,
    },
    /// The prompt ends in an image; its completion needs a text token to begin from.
    #[error("expected text behind the last image of a prompt, got nothing")]
    EndsInImage,
}

impl ImageLayout {
    /// Lays out a prompt of `tokens` with images of `grids`, whose placeholder is `image_token`. `merge` x
    /// `merge` patches are one token.
    ///
    /// # Errors
    /// [`ImageError`] unless the placeholders match the images, in their order, and text follows the last
    /// image.
    pub fn new(
        tokens: &[TokenId],
        grids: impl IntoIterator<Item = ImageGrid>,
        image_token: TokenId,
        merge: usize,
    ) -> Result<Self, ImageError> {
        let grids: Vec<ImageGrid> = grids.into_iter().collect();
        let mut layout = Self::default();
        let mut at = 0;
        while at < tokens.len() {
            if tokens[at] != image_token {
                layout.push_text(1);
                at += 1;
                continue;
            }
            let image_idx = layout.starts.len();
            let Some(grid) = grids.get(image_idx) else {
                let num_images = grids.len();
                return Err(ImageError::MorePlaceholders { token: image_token, num_images, position: at });
            };
            if !grid.rows.is_multiple_of(merge)
                || !grid.columns.is_multiple_of(merge)
                || grid.num_patches() == 0
            {
                return Err(ImageError::NotMerged { image_idx, merge, grid: *grid });
            }
            let expected = grid.num_tokens(merge);
            let got = tokens[at..].iter().take(expected).take_while(|token| **token == image_token).count();
            if got < expected {
                return Err(ImageError::FewerPlaceholders { token: image_token, image_idx, expected, got });
            }
            layout.starts.push(at);
            layout.push_image(*grid, merge);
            at += expected;
        }
        if layout.starts.len() < grids.len() {
            let image_idx = layout.starts.len();
            let expected = grids[image_idx].num_tokens(merge);
            return Err(ImageError::FewerPlaceholders { token: image_token, image_idx, expected, got: 0 });
        }
        match tokens.last() {
            Some(last) if *last == image_token => Err(ImageError::EndsInImage),
            _ => Ok(layout),
        }
    }

    /// Returns the positions of `num` completion tokens, from completion token `after` on.
    pub fn positions_behind(&self, after: usize, num: usize) -> Range<i64> {
        let first = self.next_position + after as i64;
        first..first + num as i64
    }

    fn push_text(&mut self, num: usize) {
        let positions = self.next_position..self.next_position + num as i64;
        self.positions.iter_mut().for_each(|axis| axis.extend(positions.clone()));
        self.next_position = positions.end;
    }

    fn push_image(&mut self, grid: ImageGrid, merge: usize) {
        let (rows, columns) = (grid.rows / merge, grid.columns / merge);
        let first = self.next_position;
        for frame in 0..grid.frames {
            for row in 0..rows {
                for column in 0..columns {
                    for (axis, place) in self.positions.iter_mut().zip([frame, row, column]) {
                        axis.push(first + place as i64);
                    }
                }
            }
        }
        self.next_position = first + grid.frames.max(rows).max(columns) as i64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAD: TokenId = 9;

    fn grid(rows: usize, columns: usize) -> ImageGrid {
        ImageGrid { frames: 1, rows, columns }
    }

    #[test]
    fn tokens_of_an_image_count_rows_and_columns_and_text_continues_after_the_longer_side() {
        let tokens = [1, PAD, PAD, PAD, PAD, PAD, PAD, 2, 3, PAD, 4];
        let layout = ImageLayout::new(&tokens, [grid(4, 6), grid(2, 2)], PAD, 2).unwrap();
        assert_eq!(layout.starts, [1, 9]);
        assert_eq!(layout.positions[0], [0, 1, 1, 1, 1, 1, 1, 4, 5, 6, 7]);
        assert_eq!(layout.positions[1], [0, 1, 1, 1, 2, 2, 2, 4, 5, 6, 7]);
        assert_eq!(layout.positions[2], [0, 1, 2, 3, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!((layout.next_position, layout.positions_behind(1, 2)), (8, 9..11));
    }

    #[test]
    fn two_images_may_touch() {
        let layout = ImageLayout::new(&[PAD, PAD, PAD, 1], [grid(2, 2), grid(2, 4)], PAD, 2).unwrap();
        assert_eq!(layout.starts, [0, 1]);
        assert_eq!(layout.positions[2], [0, 1, 2, 3]);
    }

    #[test]
    fn text_has_the_same_position_on_all_three_axes() {
        let layout = ImageLayout::new(&[1, 2, 3], [], PAD, 2).unwrap();
        assert_eq!(layout.positions, [vec![0, 1, 2], vec![0, 1, 2], vec![0, 1, 2]]);
        assert_eq!(layout.next_position, 3);
    }

    #[test]
    fn placeholders_that_are_not_those_of_the_images_are_named() {
        let layout = |tokens: &[TokenId], grids: &[ImageGrid]| {
            ImageLayout::new(tokens, grids.iter().copied(), PAD, 2).unwrap_err()
        };
        let more = ImageError::MorePlaceholders { token: PAD, num_images: 1, position: 2 };
        assert_eq!(layout(&[1, PAD, PAD, 2], &[grid(2, 2)]), more);
        let fewer =
            |image_idx, got| ImageError::FewerPlaceholders { token: PAD, image_idx, expected: 2, got };
        assert_eq!(layout(&[PAD, 1], &[grid(2, 4)]), fewer(0, 1));
        assert_eq!(layout(&[PAD, PAD, 1], &[grid(2, 4), grid(4, 2)]), fewer(1, 0));
        assert_eq!(layout(&[1, PAD], &[grid(2, 2)]), ImageError::EndsInImage);
        let odd = ImageError::NotMerged { image_idx: 0, merge: 2, grid: grid(3, 2) };
        assert_eq!(layout(&[PAD, 1], &[grid(3, 2)]), odd);
    }
}
