//! Vision tower of a model that is initialized from scratch: the manifest's sizes as a `vision_config`, read
//! and written like a published one. Never here: weights, pixels.

use rlt_api::spec::{ArchitectureSpec, VisionSpec};
use serde_json::{Value, json};

use super::super::fields::Fields;
use super::super::{Family, ModelConfig, ModelConfigError, vision};

/// Special tokens of images and videos, as text: placeholder of an image piece, of a video piece, start and
/// end markers.
pub const VISION_TOKENS: [&str; 4] = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"];

/// Ratio of a feed-forward block's inner width to the width of the tower's residual stream.
const INNER_BY_WIDTH: u32 = 4;
/// Side of an attention window in tokens; below, the interval of blocks with full attention. Both as in
/// published Qwen2.5-VL.
const WINDOW_TOKENS: u32 = 4;
const BLOCKS_BY_WHOLE: u32 = 8;
/// Size of the position table, rows times columns, as in published Qwen3-VL.
const NUM_POSITIONS: u32 = 48 * 48;
/// Most blocks whose features are added after text layers.
const MAX_DEEPSTACK: u32 = 3;
/// Number of frames in a patch.
const TEMPORAL_PATCH: u32 = 2;

/// Token ids of [`VISION_TOKENS`], in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VisionTokens(pub [u32; 4]);

impl VisionTokens {
    /// Returns the last ids of a vocabulary of `vocab_size`, which ends with these tokens.
    pub fn at_the_end_of(vocab_size: usize) -> Self {
        let first = vocab_size.saturating_sub(VISION_TOKENS.len()) as u32;
        Self([0, 1, 2, 3].map(|place| first + place))
    }
}

/// Gives a model that is initialized from scratch its tower.
pub(crate) fn shape(
    spec: &ArchitectureSpec,
    tokens: Option<VisionTokens>,
    config: &mut ModelConfig,
) -> Result<(), ModelConfigError> {
    let invalid = |expected: String, got: &str| ModelConfigError::InvalidField {
        field: "vision".to_owned(),
        expected,
        got: got.to_owned(),
    };
    match (spec.family.has_vision(), &spec.vision, tokens) {
        (false, None, _) => Ok(()),
        (false, Some(_), _) => Err(invalid(format!("nothing with the family {:?}", spec.family), "vision")),
        (true, None, _) => Err(invalid(format!("a tower with the family {:?}", spec.family), "nothing")),
        (true, Some(_), None) => {
            Err(invalid(format!("a tokenizer with {}", VISION_TOKENS.join(", ")), "one without"))
        }
        (true, Some(tower), Some(tokens)) => {
            let document = document(spec, tower, tokens, config);
            vision::read(&Fields::root(&document)?, config)
        }
    }
}

/// Returns the fields of `config.json` that describe images and the tower.
fn document(
    spec: &ArchitectureSpec,
    tower: &VisionSpec,
    VisionTokens([image, video, start, end]): VisionTokens,
    config: &ModelConfig,
) -> Value {
    let mut vision = json!({
        "depth": tower.num_layers,
        "num_heads": tower.num_heads,
        "patch_size": tower.patch_size,
        "spatial_merge_size": tower.merge_size,
        "temporal_patch_size": TEMPORAL_PATCH,
        "in_channels": 3,
    });
    let of_family = match spec.family {
        Family::Qwen2Vl => json!({
            "embed_dim": tower.hidden_size, "hidden_size": spec.hidden_size, "mlp_ratio": INNER_BY_WIDTH,
            "hidden_act": "quick_gelu",
        }),
        Family::Qwen3Vl => json!({
            "hidden_size": tower.hidden_size, "out_hidden_size": spec.hidden_size,
            "intermediate_size": INNER_BY_WIDTH * tower.hidden_size, "hidden_act": "gelu_pytorch_tanh",
            "num_position_embeddings": NUM_POSITIONS,
            "deepstack_visual_indexes": deepstack_blocks(tower.num_layers, spec.num_layers),
        }),
        _ => json!({
            "hidden_size": tower.hidden_size, "out_hidden_size": spec.hidden_size,
            "intermediate_size": INNER_BY_WIDTH * tower.hidden_size, "hidden_act": "silu",
            "window_size": WINDOW_TOKENS * tower.merge_size * tower.patch_size,
            "fullatt_block_indexes": whole_blocks(tower.num_layers), "tokens_per_second": 2,
        }),
    };
    for (name, value) in of_family.as_object().into_iter().flatten() {
        vision[name] = value.clone();
    }
    json!({
        "image_token_id": image, "video_token_id": video, "vision_start_token_id": start,
        "vision_end_token_id": end, "vision_config": vision,
        "rope_scaling": {"mrope_section": rope_sections(spec.family, config.rotary_dim / 2)},
    })
}

/// Returns the blocks with full attention: every eighth, and the last one.
fn whole_blocks(num_layers: u32) -> Vec<u32> {
    (0..num_layers).filter(|idx| (idx + 1) % BLOCKS_BY_WHOLE == 0 || idx + 1 == num_layers).collect()
}

/// Returns three evenly spread blocks as in published Qwen3-VL, or fewer for a small tower or text model.
fn deepstack_blocks(depth: u32, text_layers: u32) -> Vec<u32> {
    let count = MAX_DEEPSTACK.min((depth / 2).max(1)).min(text_layers);
    (1..=count).map(|number| (number * depth / (count + 1)).saturating_sub(1)).collect()
}

/// Number of rotary pairs for time, height and width. As in published models a quarter is for time and the
/// rest is split; interleaved axes (Qwen3-VL) have 5 of 16 pairs each for height and width.
fn rope_sections(family: Family, num_pairs: usize) -> [usize; 3] {
    if family == Family::Qwen3Vl {
        let in_space = (5 * num_pairs / 16).max(usize::from(num_pairs >= 3));
        return [num_pairs - 2 * in_space, in_space, in_space];
    }
    let time = num_pairs / 4;
    let height = (num_pairs - time) / 2;
    [time, height, num_pairs - time - height]
}
