//! Images of a prompt as a vision tower reads them: patches in rows, and the grid that they fill.
//!
//! Files, pixels and tensors have no place here; whoever decodes and resizes fills [`PromptImage`], and a
//! model reads it.

use serde::{Deserialize, Serialize};

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
