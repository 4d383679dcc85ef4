//! The vision tower in front of a decoder.

use serde_json::Value;

/// Prefix of the names of the tower's tensors, in memory and on disk.
pub const TOWER: &str = "visual.";

/// Everything besides the weights that decides the values that a tower computes, and the tokens that mark
/// images in a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    /// Height and width of a patch in pixels.
    pub patch_size: usize,
    /// Number of frames in a patch; a still image is repeated as often.
    pub temporal_patch_size: usize,
    /// Number of patches, in each direction, that are merged into one token.
    pub spatial_merge_size: usize,
    /// Number of colour channels of a pixel.
    pub in_channels: usize,
    /// Width of the tower's residual stream.
    pub hidden_size: usize,
    /// Number of blocks.
    pub depth: usize,
    /// Number of attention heads.
    pub num_heads: usize,
    /// Inner width of the feed-forward blocks.
    pub intermediate_size: usize,
    /// Kind of the blocks.
    pub blocks: VisionBlocks,
    /// Side of an attention window in pixels; `None` for attention over the whole frame.
    pub window_size: Option<usize>,
    /// Indices of blocks that attend to the whole frame even if there are windows.
    pub full_attention_blocks: Vec<usize>,
    /// Side of the table of learned positions, which is interpolated to an image's patches; `None` where
    /// blocks know positions by their rotary embedding alone.
    pub position_side: Option<usize>,
    /// Indices of blocks whose output, through separate mergers, is added to image tokens after the first
    /// layers of the text model, one block a layer.
    pub deepstack_blocks: Vec<usize>,
    /// Number of a head's rotary pairs for time, height and width (`mrope_section`).
    pub rope_sections: [usize; 3],
    /// Whether the pairs of the three axes are interleaved (`mrope_interleaved`) rather than contiguous.
    pub rope_is_interleaved: bool,
    /// Placeholder token of an image piece in a prompt.
    pub image_token: u32,
    /// Placeholder token of a video piece.
    pub video_token: u32,
    /// Token before an image or a video.
    pub vision_start_token: u32,
    /// Token after an image or a video.
    pub vision_end_token: u32,
    /// `vision_config` as it was read; exports hold it unchanged.
    pub document: Value,
}

impl VisionConfig {
    /// Number of values of one patch.
    pub fn patch_width(&self) -> usize {
        self.in_channels * self.temporal_patch_size * self.patch_size * self.patch_size
    }

    /// Width of the concatenated patches of one token.
    pub fn merged_width(&self) -> usize {
        self.hidden_size * self.spatial_merge_size * self.spatial_merge_size
    }

    /// Side of an attention window in tokens; `None` without windows.
    pub fn window_tokens(&self) -> Option<usize> {
        self.window_size.map(|pixels| (pixels / self.spatial_merge_size / self.patch_size).max(1))
    }

    /// Returns the axis (time 0, height 1 or width 2) whose position rotates each pair of a head's
    /// dimensions.
    pub fn rope_axes(&self) -> Vec<usize> {
        let [time, height, width] = self.rope_sections;
        if !self.rope_is_interleaved {
            return [vec![0; time], vec![1; height], vec![2; width]].concat();
        }
        let of_pair = |pair: usize| match pair % 3 {
            1 if pair < 3 * height => 1,
            2 if pair < 3 * width => 2,
            _ => 0,
        };
        (0..time + height + width).map(of_pair).collect()
    }

    /// Number of feature rows, of the text model's width, that the tower computes for a token: one that
    /// replaces its embedding, and one for each layer after which features are added.
    pub fn features_per_token(&self) -> usize {
        1 + self.deepstack_blocks.len()
    }

    /// Whether a block attends to the whole frame.
    pub fn sees_all(&self, block_idx: usize) -> bool {
        self.window_size.is_none() || self.full_attention_blocks.contains(&block_idx)
    }
}

/// Kind of a tower's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisionBlocks {
    /// Qwen2-VL: layer norms, two linear layers with the quick GELU between them.
    Plain,
    /// Qwen2.5-VL: RMS norms, and a gated feed-forward block.
    Gated,
    /// Qwen3-VL: layer norms, two linear layers with GELU by tanh between them, and a table of positions that
    /// is added to patches before the first block.
    Positioned,
}
