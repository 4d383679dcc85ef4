//! Images of running requests, on any device: the features that replace the embeddings of placeholder tokens,
//! and positions by time, height and width. A completion continues after the largest position of its prompt.

use std::collections::HashMap;
use std::sync::Arc;

use rlt_core::images::{ImageLayout, PromptImage};
use rlt_decoder::{Adapter, Decoder, ImageEmbeddings};
use tch::Tensor;

use super::{EngineError, Request};

/// A run of consecutive tokens of a sequence in one pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenSpan {
    /// Index of the sequence's request.
    pub(super) request_idx: usize,
    /// Number of the sequence's tokens before the run.
    pub(super) first_position: usize,
    /// Number of tokens in the run.
    pub(super) len: usize,
}

/// The images of one request, and the positions of its tokens.
#[derive(Debug)]
struct ImagesOfRequest {
    images: Vec<Arc<PromptImage>>,
    layout: ImageLayout,
}

/// The images of the requests of a run.
#[derive(Debug)]
pub(super) struct RequestImages {
    /// Requests with images, by index.
    of_requests: HashMap<usize, ImagesOfRequest>,
    /// Whether a request of the run has had images. From then on all positions have three axes.
    by_axis: bool,
    /// Number of patches of a token in each direction.
    merge: usize,
}

impl RequestImages {
    /// Creates an empty set of images for the vision tower of `decoder`.
    pub(super) fn new(decoder: &Decoder) -> Self {
        let merge = decoder.config.vision.as_ref().map_or(1, |vision| vision.spatial_merge_size);
        Self { of_requests: HashMap::new(), by_axis: false, merge }
    }

    /// Lays out the images of a request for a decoder.
    ///
    /// # Errors
    /// [`EngineError::NoVision`] and [`EngineError::Images`].
    pub(super) fn add(
        &mut self,
        decoder: &Decoder,
        request_idx: usize,
        request: &Request,
    ) -> Result<(), EngineError> {
        let num_images = request.images.len();
        let Some(vision) = &decoder.config.vision else {
            let refused = EngineError::NoVision { request_idx, num_images };
            return if num_images == 0 { Ok(()) } else { Err(refused) };
        };
        let grids = request.images.iter().map(|image| image.grid);
        let layout = ImageLayout::new(&request.prompt, grids, vision.image_token, self.merge)
            .map_err(|source| EngineError::Images { request_idx, source })?;
        if num_images > 0 {
            self.by_axis = true;
            self.of_requests.insert(request_idx, ImagesOfRequest { images: request.images.clone(), layout });
        }
        Ok(())
    }

    /// Drops the images of a request whose sequences no longer exist.
    pub(super) fn remove(&mut self, request_idx: usize) {
        self.of_requests.remove(&request_idx);
    }

    /// Position ids of a pass: `in_sequence`, i64 `[t]`, or those of three axes, i64 `[3, t]`, if a request
    /// of the run has had images.
    pub(super) fn position_ids(&self, spans: &[TokenSpan], in_sequence: &[i64]) -> Tensor {
        match self.positions_by_axis(spans) {
            Some(axes) => Tensor::from_slice(&axes.concat()).view([3, -1]),
            None => Tensor::from_slice(in_sequence),
        }
    }

    /// Position ids of a pass by time, height and width; `None` if no request has had images.
    pub(super) fn positions_by_axis(&self, spans: &[TokenSpan]) -> Option<[Vec<i64>; 3]> {
        if !self.by_axis {
            return None;
        }
        let mut axes: [Vec<i64>; 3] = Default::default();
        for token_span in spans {
            let (start, end) = (token_span.first_position, token_span.first_position + token_span.len);
            let Some(ImagesOfRequest { layout, .. }) = self.of_requests.get(&token_span.request_idx) else {
                // The three positions of a text token are equal.
                axes.iter_mut().for_each(|axis| axis.extend(start as i64..end as i64));
                continue;
            };
            let prompt_len = layout.positions[0].len();
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
        let request = self.of_requests.get(&request_idx);
        request.map_or(0, |ImagesOfRequest { layout, .. }| {
            layout.next_position - layout.positions[0].len() as i64
        })
    }

    /// Features of the images in a pass, with the indices of their tokens; `None` if it has no images.
    pub(super) fn placed_features(&self, decoder: &Decoder, spans: &[TokenSpan]) -> Option<ImageEmbeddings> {
        let (mut places, mut features) = (Vec::new(), Vec::new());
        let mut start_of_stretch = 0;
        for token_span in spans {
            let end = token_span.first_position + token_span.len;
            let request = self.of_requests.get(&token_span.request_idx);
            let images =
                request.into_iter().flat_map(|request| request.layout.starts.iter().zip(&request.images));
            for (first, image) in images {
                let tokens = *first..first + image.grid.num_tokens(self.merge);
                let (from, to) = (tokens.start.max(token_span.first_position), tokens.end.min(end));
                if from < to {
                    let place = (start_of_stretch + from - token_span.first_position) as i64;
                    places.extend(place..place + (to - from) as i64);
                    let of_image = decoder.image_features(std::slice::from_ref(image), Adapter::On);
                    features.push(of_image.narrow(0, (from - first) as i64, (to - from) as i64));
                }
            }
            start_of_stretch += token_span.len;
        }
        if features.is_empty() {
            return None;
        }
        let places = rlt_torch::upload(&[&places], decoder.device()).pop()?;
        Some(ImageEmbeddings::new(places, &Tensor::cat(&features, 0), decoder.config.hidden_size))
    }
}
