//! Images of a prompt as a vision tower reads them: patches in rows, and the grid that they fill.
//!
//! No files, pixels or tensors here: the code that decodes and resizes fills [`PromptImage`], and a model
//! reads it.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::types::TokenId;

/// How many patches an image has in each direction, before patches are merged into tokens (`image_grid_thw`
/// of transformers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ImageGrid {
    /// Frames, in temporal patches; 1 of a still image.
    pub frames: usize,
    /// Rows of patches.
    pub rows: usize,
    /// Columns of patches.
    pub columns: usize,
}

impl ImageGrid {
    /// Patches of the image.
    pub fn num_patches(self) -> usize {
        self.frames * self.rows * self.columns
    }

    /// Tokens that the image takes in a prompt, where `merge` x `merge` patches become one token.
    pub fn num_tokens(self, merge: usize) -> usize {
        self.num_patches() / (merge * merge)
    }
}

/// One image of a prompt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PromptImage {
    /// Of the pixels and the grid: equal images have equal digests, by which features are kept.
    pub digest: u64,
    /// The patches' grid.
    pub grid: ImageGrid,
    /// Normalised pixels, f32 [patches, channels x temporal patch x patch x patch] flattened. Patches of one
    /// merged token are neighbours: rows in the order (row / merge, column / merge, row % merge, column %
    /// merge).
    pub patches: Vec<f32>,
}

/// Where the images of a prompt are, and at which positions its tokens are turned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageLayout {
    /// The first token of each image.
    pub starts: Vec<usize>,
    /// Position of each token by time, height and width. Text has the same one thrice; the tokens of an image
    /// share that of its first and count rows and columns from there (Wang et al. 2024, arXiv 2409.12191).
    pub positions: [Vec<i64>; 3],
    /// The position of the first token behind the prompt: behind an image text continues at the largest
    /// position, which is less than the number of tokens.
    pub next_position: i64,
}

/// Why the tokens of a prompt do not fit its images.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// Placeholders without an image.
    #[error(
        "expected placeholders (token {token}) for {num_images} images, got one more at token {position}, or an image \
         with fewer tokens"
    )]
    MorePlaceholders {
        /// The placeholder.
        token: TokenId,
        /// Images of the prompt.
        num_images: usize,
        /// Its position.
        position: usize,
    },
    /// An image without placeholders, or with too few.
    #[error("image {image_idx}: expected {expected} placeholders (token {token}), got {got}")]
    FewerPlaceholders {
        /// The placeholder.
        token: TokenId,
        /// Which image.
        image_idx: usize,
        /// Its tokens.
        expected: usize,
        /// The number of placeholders there.
        got: usize,
    },
    /// Patches that do not make whole tokens.
    #[error(
        "image {image_idx}: expected rows and columns of patches that are multiples of {merge}, got {grid:?}"
    )]
    NotMerged {
        /// Which image.
        image_idx: usize,
        /// Patches of a token in each direction.
        merge: usize,
        /// Its patches.
        grid: ImageGrid,
    },
    /// Nothing could be predicted from the last token.
    #[error("expected text behind the last image of a prompt, got nothing")]
    EndsInImage,
}

impl ImageLayout {
    /// Lays out a prompt of `tokens` with images of `grids`, whose tokens are `image_token`; `merge` x
    /// `merge` patches are one token.
    ///
    /// # Errors
    /// [`ImageError`] unless the placeholders are those of the images, in their order.
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

    /// The positions of `num` tokens after the prompt, from the token `after` on.
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
    fn text_alone_has_one_position_thrice() {
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
