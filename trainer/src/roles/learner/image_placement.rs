//! Images of a micro-batch: the packed positions of their placeholder tokens, and rotary positions of all
//! tokens by time, height and width. Micro-batches of text models have positions in one axis.

use std::sync::Arc;

use rlt_core::images::{ImageError, ImageLayout, PromptImage};
use rlt_core::types::Prompt;
use rlt_decoder::PackedInput;
use rlt_models::VisionConfig;

/// Images and positions of a packed row under construction.
pub(super) struct ImagePlacement<'a> {
    config: &'a VisionConfig,
    images: Vec<Arc<PromptImage>>,
    places: Vec<i64>,
    positions: [Vec<i64>; 3],
}

impl<'a> ImagePlacement<'a> {
    /// Creates an empty row.
    pub(super) fn new(config: &'a VisionConfig) -> Self {
        let (images, places, positions) = Default::default();
        Self { config, images, places, positions }
    }

    /// Appends a prompt and its completions; `behind` gives the number of tokens of each completion.
    ///
    /// # Errors
    /// [`ImageError`] if the prompt's tokens do not fit its images.
    pub(super) fn push(
        &mut self,
        prompt: &Prompt,
        behind: impl Iterator<Item = usize>,
    ) -> Result<(), ImageError> {
        let VisionConfig { image_token, spatial_merge_size: merge, .. } = *self.config;
        let grids = prompt.images.iter().map(|image| image.grid);
        let layout = ImageLayout::new(&prompt.tokens, grids, image_token, merge)?;
        let start = self.positions[0].len();
        for (first, image) in layout.starts.iter().zip(&prompt.images) {
            let first = (start + first) as i64;
            self.places.extend(first..first + image.grid.num_tokens(merge) as i64);
            self.images.push(Arc::clone(image));
        }
        for (axis, of_prompt) in self.positions.iter_mut().zip(&layout.positions) {
            axis.extend(of_prompt);
        }
        for num in behind {
            let positions = layout.positions_behind(0, num);
            self.positions.iter_mut().for_each(|axis| axis.extend(positions.clone()));
        }
        Ok(())
    }

    /// Adds the images to the packed `input`, if there are any.
    pub(super) fn add_to(self, input: PackedInput) -> PackedInput {
        if self.images.is_empty() {
            return input;
        }
        input.with_images(self.images, &self.places, &self.positions)
    }
}
