//! Images of running requests, on any device: the features that replace the embeddings of placeholder tokens,
//! and positions by time, height and width. A completion continues after the largest position of its prompt.

use rlt_core::images::ImageLayout;
use tch::Tensor;

use super::{RolloutError, RolloutRequest};
use crate::model::{Adapter, Decoder, PlacedFeatures};

/// A run of consecutive tokens of a sequence in one pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    /// Index of the sequence's request.
    pub(super) request_idx: usize,
    /// Number of the sequence's tokens before the run.
    pub(super) first_position: usize,
    /// Number of tokens in the run.
    pub(super) len: usize,
}

/// The images of a call's requests, and the positions of their tokens.
#[derive(Debug)]
pub(super) struct RequestImages<'a> {
    requests: &'a [RolloutRequest],
    /// Layout of each request's prompt; empty if no request has images.
    layouts: Vec<ImageLayout>,
    /// Number of patches of a token in each direction.
    merge: usize,
}

impl<'a> RequestImages<'a> {
    /// Lays out the images of `requests` for a decoder.
    ///
    /// # Errors
    /// [`RolloutError::NoVision`] and [`RolloutError::Images`].
    pub(super) fn new(decoder: &Decoder, requests: &'a [RolloutRequest]) -> Result<Self, RolloutError> {
        let Some(vision) = &decoder.config.vision else {
            let with_images = requests.iter().enumerate().find(|(_, request)| !request.images.is_empty());
            return match with_images {
                None => Ok(Self { requests, layouts: Vec::new(), merge: 1 }),
                Some((request_idx, request)) => {
                    Err(RolloutError::NoVision { request_idx, num_images: request.images.len() })
                }
            };
        };
        let merge = vision.spatial_merge_size;
        let layout = |(request_idx, request): (usize, &RolloutRequest)| {
            let grids = request.images.iter().map(|image| image.grid);
            ImageLayout::new(&request.prompt, grids, vision.image_token, merge)
                .map_err(|source| RolloutError::Images { request_idx, source })
        };
        let layouts: Vec<ImageLayout> = requests.iter().enumerate().map(layout).collect::<Result<_, _>>()?;
        let has_images = requests.iter().any(|request| !request.images.is_empty());
        Ok(Self { requests, layouts: if has_images { layouts } else { Vec::new() }, merge })
    }

    /// Position ids of a pass: `in_sequence`, i64 `[t]`, or if requests have images those of three axes, i64
    /// `[3, t]`.
    pub(super) fn position_ids(&self, stretches: &[Stretch], in_sequence: &[i64]) -> Tensor {
        match self.positions_by_axis(stretches) {
            Some(axes) => Tensor::from_slice(&axes.concat()).view([3, -1]),
            None => Tensor::from_slice(in_sequence),
        }
    }

    /// Position ids of a pass by time, height and width; `None` if no request has images.
    pub(super) fn positions_by_axis(&self, stretches: &[Stretch]) -> Option<[Vec<i64>; 3]> {
        if self.layouts.is_empty() {
            return None;
        }
        let mut axes: [Vec<i64>; 3] = Default::default();
        for stretch in stretches {
            let layout = &self.layouts[stretch.request_idx];
            let prompt_len = layout.positions[0].len();
            let (start, end) = (stretch.first_position, stretch.first_position + stretch.len);
            let behind = layout.positions_behind(
                start.saturating_sub(prompt_len),
                end.saturating_sub(prompt_len.max(start)),
            );
            for (axis, of_prompt) in axes.iter_mut().zip(&layout.positions) {
                axis.extend(&of_prompt[start.min(prompt_len)..end.min(prompt_len)]);
                axis.extend(behind.clone());
            }
        }
        Some(axes)
    }

    /// Difference between the position of a token after a request's images, the same on all axes, and the
    /// number of tokens before it.
    pub(super) fn position_offset(&self, request_idx: usize) -> i64 {
        let layout = self.layouts.get(request_idx);
        layout.map_or(0, |layout| layout.next_position - layout.positions[0].len() as i64)
    }

    /// Features of the images in a pass, with the indices of their tokens; `None` if it has no images.
    pub(super) fn placed_features(&self, decoder: &Decoder, stretches: &[Stretch]) -> Option<PlacedFeatures> {
        let (mut places, mut features) = (Vec::new(), Vec::new());
        let mut start_of_stretch = 0;
        for stretch in stretches {
            let end = stretch.first_position + stretch.len;
            let request = &self.requests[stretch.request_idx];
            let starts = self.layouts.get(stretch.request_idx).map_or(&[][..], |layout| &layout.starts);
            for (first, image) in starts.iter().zip(&request.images) {
                let tokens = *first..first + image.grid.num_tokens(self.merge);
                let (from, to) = (tokens.start.max(stretch.first_position), tokens.end.min(end));
                if from < to {
                    let place = (start_of_stretch + from - stretch.first_position) as i64;
                    places.extend(place..place + (to - from) as i64);
                    let of_image = decoder.image_features(std::slice::from_ref(image), Adapter::On);
                    features.push(of_image.narrow(0, (from - first) as i64, (to - from) as i64));
                }
            }
            start_of_stretch += stretch.len;
        }
        if features.is_empty() {
            return None;
        }
        let places = rlt_torch::upload(&[&places], decoder.device()).pop()?;
        Some(PlacedFeatures::new(places, &Tensor::cat(&features, 0), decoder.config.hidden_size))
    }
}
