//! The order in which a tower computes the patches of an image: tokens window by window, so that tokens of a
//! window are neighbours, and the inverse.
//!
//! The patches of a token are neighbours all along; what is moved are tokens.

use rlt_api::plan::model_config::VisionConfig;
use rlt_core::images::ImageGrid;
use tch::{Device, Tensor};

use super::attention::{Rotary, Spans};

/// Where the patches of an image are computed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PatchOrder {
    /// The token that is computed at each place.
    tokens: Vec<i64>,
    /// Patches of each window.
    windows: Vec<usize>,
    /// Patches of each frame.
    frames: Vec<usize>,
    /// Row and column of each patch, in the order in which they are computed.
    places: [Vec<i64>; 2],
    patches_per_token: i64,
}

impl PatchOrder {
    /// Of an image of `grid`. Windows begin at the first row and column of tokens; those at the other edges
    /// have what is left.
    pub(super) fn new(config: &VisionConfig, grid: ImageGrid) -> Self {
        let merge = config.spatial_merge_size;
        let (rows, columns) = (grid.rows / merge, grid.columns / merge);
        let side = config.window_tokens().unwrap_or(rows.max(columns).max(1));
        let (mut tokens, mut windows) = (Vec::new(), Vec::new());
        for frame in 0..grid.frames {
            for first_row in (0..rows).step_by(side) {
                for first_column in (0..columns).step_by(side) {
                    let before = tokens.len();
                    for row in first_row..rows.min(first_row + side) {
                        let first = (frame * rows + row) * columns;
                        let in_row = first_column..columns.min(first_column + side);
                        tokens.extend(in_row.map(|column| (first + column) as i64));
                    }
                    windows.push((tokens.len() - before) * merge * merge);
                }
            }
        }
        let places = places(&tokens, (rows, columns), merge);
        let frames = vec![grid.rows * grid.columns; grid.frames];
        Self { tokens, windows, frames, places, patches_per_token: (merge * merge) as i64 }
    }

    /// The same as tensors.
    pub(super) fn to_device(&self, device: Device) -> Units {
        let tokens = Tensor::from_slice(&self.tokens).to_device(device);
        Units {
            inverse: tokens.argsort(0, false),
            tokens,
            windows: Spans::new(&self.windows, device),
            frames: Spans::new(&self.frames, device),
            places: self.places.each_ref().map(|places| Tensor::from_slice(places).to_device(device)),
            patches_per_token: self.patches_per_token,
        }
    }
}

/// Row and column of each patch of `tokens`.
fn places(tokens: &[i64], (rows, columns): (usize, usize), merge: usize) -> [Vec<i64>; 2] {
    let mut places = [Vec::new(), Vec::new()];
    for token in tokens {
        let of_frame = *token as usize % (rows * columns);
        let (row, column) = (of_frame / columns * merge, of_frame % columns * merge);
        for patch in 0..merge * merge {
            places[0].push((row + patch / merge) as i64);
            places[1].push((column + patch % merge) as i64);
        }
    }
    places
}

/// A [`PatchOrder`] on a device.
#[derive(Debug)]
pub(super) struct Units {
    tokens: Tensor,
    inverse: Tensor,
    pub(super) windows: Spans,
    pub(super) frames: Spans,
    places: [Tensor; 2],
    patches_per_token: i64,
}

impl Units {
    /// Patches `[p, d]` in the order in which they are computed. Frames are not split.
    pub(super) fn sort(&self, hidden_pd: &Tensor) -> Tensor {
        hidden_pd.unflatten(0, [-1, self.patches_per_token]).index_select(0, &self.tokens).flatten(0, 1)
    }

    /// Tokens `[n, hidden]` in the order of the prompt.
    pub(super) fn restore(&self, features: &Tensor) -> Tensor {
        features.index_select(0, &self.inverse)
    }

    /// What turns queries and keys.
    pub(super) fn rotary(&self, config: &VisionConfig) -> Rotary {
        let [rows, columns] = &self.places;
        Rotary::new([rows, columns], (config.hidden_size / config.num_heads) as i64)
    }
}

#[cfg(test)]
mod tests {
    use rlt_api::plan::model_config::ModelConfig;
    use serde_json::json;

    use super::*;

    fn config() -> VisionConfig {
        let document = json!({
            "architectures": ["Qwen2_5_VLForConditionalGeneration"], "vocab_size": 8, "hidden_size": 16,
            "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
            "image_token_id": 4, "video_token_id": 5, "vision_start_token_id": 6, "vision_end_token_id": 7,
            "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
            "vision_config": {
                "hidden_size": 16, "out_hidden_size": 16, "num_heads": 2, "patch_size": 4, "window_size": 16
            }
        });
        ModelConfig::from_json(&document).unwrap().vision.unwrap()
    }

    #[test]
    fn windows_cut_at_the_edges_hold_every_token_once_and_sorting_is_undone() {
        // Windows of 2 x 2 tokens on 3 x 5 tokens.
        let order = PatchOrder::new(&config(), ImageGrid { frames: 1, rows: 6, columns: 10 });
        assert_eq!(order.tokens, [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14]);
        assert_eq!(order.windows, [16, 16, 8, 8, 8, 4]);
        assert_eq!(order.frames, [60]);
        assert_eq!(order.places[0][8..12], [2, 2, 3, 3]);
        assert_eq!(order.places[1][8..12], [0, 1, 0, 1]);
        let units = order.to_device(Device::Cpu);
        let tokens = Tensor::arange(15, (tch::Kind::Float, Device::Cpu));
        let patches = tokens.unsqueeze(1).expand([15, 4], true).flatten(0, 1).unsqueeze(1);
        let sorted = units.sort(&patches).unflatten(0, [-1, 4]).select(1, 0);
        assert!(units.restore(&sorted).squeeze().equal(&tokens));
    }
}
