//! The images of a micro-batch: the packed positions of their tokens, and their rotary positions by time,
//! height and width. Micro-batches without images have positions of one axis, as in text models.

use std::sync::Arc;

use rlt_api::plan::model_config::VisionConfig;
use rlt_core::images::{ImageError, ImageLayout, PromptImage};
use rlt_core::types::Prompt;

use crate::model::PackedInput;

/// Images and positions of a packed row under construction.
pub(super) struct PlacedImages<'a> {
    config: &'a VisionConfig,
    images: Vec<Arc<PromptImage>>,
    places: Vec<i64>,
    positions: [Vec<i64>; 3],
}

impl<'a> PlacedImages<'a> {
    /// Of no tokens yet.
    pub(super) fn new(config: &'a VisionConfig) -> Self {
        let (images, places, positions) = Default::default();
        Self { config, images, places, positions }
    }

    /// Appends a prompt, and behind it the tokens of completions, `behind` of each.
    ///
    /// # Errors
    /// [`ImageError`] when the prompt's tokens are not those of its images.
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

    /// The packed input with its images, if it has any.
    pub(super) fn beside(self, input: PackedInput) -> PackedInput {
        if self.images.is_empty() {
            return input;
        }
        input.with_images(self.images, &self.places, &self.positions)
    }
}
