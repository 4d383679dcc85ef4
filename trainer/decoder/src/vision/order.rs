//! Order in which a tower computes the patches of an image: window by window, so that a window's tokens are
//! adjacent, and the inverse.
//!
//! The patches of a token are always adjacent, so only tokens are permuted.

use rlt_core::images::ImageGrid;
use rlt_models::VisionConfig;
use tch::{Device, Kind, Tensor};

use super::attention::{AttentionWindows, Rotary};

/// Permutation of an image's tokens, with the windows and frames of their patches.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PatchOrder {
    /// Token index at each position of the order.
    tokens: Vec<i64>,
    /// Number of patches of each window.
    windows: Vec<usize>,
    /// Number of patches of each frame.
    frames: Vec<usize>,
    /// Row and column of each patch, in the computed order.
    places: [Vec<i64>; 2],
    /// Number of rows and columns of patches.
    size: [usize; 2],
    patches_per_token: i64,
}

impl PatchOrder {
    /// The order for an image of `grid`. Windows begin at the first row and column of tokens; those at the
    /// opposite edges may be smaller.
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
        let places = places(&tokens, rows, columns, merge);
        let frames = vec![grid.rows * grid.columns; grid.frames];
        let size = [grid.rows, grid.columns];
        Self { tokens, windows, frames, places, size, patches_per_token: (merge * merge) as i64 }
    }

    /// Uploads the order to a device, by one copy.
    pub(super) fn to_device(&self, device: Device) -> MergeUnits {
        let [windows, frames] =
            [&self.windows, &self.frames].map(|spans| AttentionWindows::patches_by_length(spans));
        let first = [&self.tokens, &self.places[0], &self.places[1]].into_iter();
        let arrays: Vec<&[i64]> =
            first.chain(windows.values()).chain(frames.values()).map(Vec::as_slice).collect();
        let mut uploaded = rlt_torch::upload(&arrays, device).into_iter();
        // There are as many tensors as arrays.
        let mut next = || uploaded.next().unwrap_or_else(|| Tensor::empty([0], (Kind::Int64, device)));
        let tokens = next();
        MergeUnits {
            inverse: tokens.argsort(0, false),
            tokens,
            places: [next(), next()],
            windows: AttentionWindows::new(windows.keys().map(|length| (next(), *length as i64))),
            frames: AttentionWindows::new(frames.keys().map(|length| (next(), *length as i64))),
            size: self.size.map(|patches| patches as i64),
            patches_per_token: self.patches_per_token,
        }
    }
}

/// Row and column of each patch of `tokens`, in their order.
fn places(tokens: &[i64], rows: usize, columns: usize, merge: usize) -> [Vec<i64>; 2] {
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
pub(super) struct MergeUnits {
    tokens: Tensor,
    inverse: Tensor,
    pub(super) windows: AttentionWindows,
    pub(super) frames: AttentionWindows,
    places: [Tensor; 2],
    size: [i64; 2],
    patches_per_token: i64,
}

impl MergeUnits {
    /// Interpolates a table of `side` times `side` position embeddings, `[side * side, d]`, to the patches of
    /// the image, `[p, d]`: bilinear, with aligned corners.
    pub(super) fn positions(&self, table: &Tensor, side: i64) -> Tensor {
        let [rows, columns] = [0, 1].map(|axis| neighbours(&self.places[axis], self.size[axis], side));
        let mut sum = None::<Tensor>;
        for (row, row_weight) in &rows {
            for (column, column_weight) in &columns {
                // The gradient of an embedding is summed in the same order in every run.
                let found = Tensor::embedding(table, &(row * side + column), -1, false, false);
                let part = found * (row_weight * column_weight).unsqueeze(1);
                sum = Some(sum.map_or_else(|| part.shallow_clone(), |sum| sum + &part));
            }
        }
        sum.unwrap_or_else(|| table.narrow(0, 0, 0))
    }

    /// Permutes patches `[p, d]` from image order to the computed order. Frames are not split.
    pub(super) fn sort(&self, hidden_pd: &Tensor) -> Tensor {
        hidden_pd.unflatten(0, [-1, self.patches_per_token]).index_select(0, &self.tokens).flatten(0, 1)
    }

    /// Permutes tokens `[n, hidden]` back to the order of the prompt.
    pub(super) fn restore(&self, features: &Tensor) -> Tensor {
        features.index_select(0, &self.inverse)
    }

    /// Rotary embedding of queries and keys for the patches in the computed order.
    pub(super) fn rotary(&self, config: &VisionConfig) -> Rotary {
        let [rows, columns] = &self.places;
        Rotary::new([rows, columns], (config.hidden_size / config.num_heads) as i64)
    }
}

/// Returns, for patches at `places` of an axis of `size`, the two neighbouring entries of an axis of `side`
/// positions, i64 `[p]`, each with its weight, f32 `[p]`.
fn neighbours(places: &Tensor, size: i64, side: i64) -> [(Tensor, Tensor); 2] {
    let at = places.to_kind(Kind::Float) * (side - 1) / (size - 1).max(1);
    let below = at.floor();
    let behind = &at - &below;
    let idx = below.to_kind(Kind::Int64);
    let above = (&idx + 1).clamp(0, side - 1);
    [(idx, 1.0 - &behind), (above, behind)]
}

#[cfg(test)]
mod tests {
    use rlt_models::ModelConfig;
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

    /// A table of 3 x 3 positions on an image of 4 x 2 patches of one token each.
    #[test]
    fn a_table_of_positions_is_interpolated_with_its_corners_on_those_of_the_image() {
        let config = VisionConfig { spatial_merge_size: 1, window_size: None, ..config() };
        let units =
            PatchOrder::new(&config, ImageGrid { frames: 1, rows: 4, columns: 2 }).to_device(Device::Cpu);
        // The value of an entry is 10 * row + column.
        let table = [0.0_f32, 1.0, 2.0, 10.0, 11.0, 12.0, 20.0, 21.0, 22.0];
        let found = units.positions(&Tensor::from_slice(&table).unsqueeze(1), 3).squeeze();
        let expected = [0.0_f32, 2.0, 20.0 / 3.0, 26.0 / 3.0, 40.0 / 3.0, 46.0 / 3.0, 20.0, 22.0];
        let error = (found - Tensor::from_slice(&expected)).abs().max().double_value(&[]);
        assert!(error < 1e-5, "{error}");
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
