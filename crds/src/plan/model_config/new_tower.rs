//! The vision tower of a model to be made: what the manifest says of it as the `vision_config` that is read
//! and written like a published one. Never here: weights, pixels.

use serde_json::{Value, json};

use super::fields::Fields;
use super::{Family, ModelConfig, ModelConfigError, vision};
use crate::spec::{ArchitectureSpec, VisionSpec};

/// The special tokens around and of images and videos by their text: of a piece of an image, a piece of a
/// video, before them and behind them.
pub const VISION_TOKENS: [&str; 4] = ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"];

/// Width of a tower's feed-forward blocks by that of its residual stream.
const INNER_BY_WIDTH: u32 = 4;
/// Rows and columns of tokens in a window, and how many blocks go by between two that see the whole frame, as
/// in published Qwen2.5-VL.
const WINDOW_TOKENS: u32 = 4;
const BLOCKS_BY_WHOLE: u32 = 8;
/// Rows times columns of the table of positions, as in published Qwen3-VL.
const NUM_POSITIONS: u32 = 48 * 48;
/// At most so many blocks whose features are added after text layers.
const MAX_DEEPSTACK: u32 = 3;
/// Frames of a patch.
const TEMPORAL_PATCH: u32 = 2;

/// The ids of [`VISION_TOKENS`], in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VisionTokens(pub [u32; 4]);

impl VisionTokens {
    /// Of a vocabulary that ends with them.
    pub fn at_the_end_of(vocab_size: usize) -> Self {
        let first = vocab_size.saturating_sub(VISION_TOKENS.len()) as u32;
        Self([0, 1, 2, 3].map(|place| first + place))
    }
}

/// Gives a model to be made its tower.
pub(super) fn shape(
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
        (false, Some(_), _) => Err(invalid(format!("nothing beside the family {:?}", spec.family), "vision")),
        (true, None, _) => Err(invalid(format!("a tower beside the family {:?}", spec.family), "nothing")),
        (true, Some(_), None) => {
            Err(invalid(format!("a tokenizer with {}", VISION_TOKENS.join(", ")), "one without"))
        }
        (true, Some(tower), Some(tokens)) => {
            let document = document(spec, tower, tokens, config);
            vision::read(&Fields::root(&document)?, config)
        }
    }
}

/// The part of `config.json` that says of images.
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

/// Every eighth block, and the last one.
fn whole_blocks(num_layers: u32) -> Vec<u32> {
    (0..num_layers).filter(|idx| (idx + 1) % BLOCKS_BY_WHOLE == 0 || idx + 1 == num_layers).collect()
}

/// Three blocks, evenly spread as in published Qwen3-VL; fewer of a small tower or text model.
fn deepstack_blocks(depth: u32, text_layers: u32) -> Vec<u32> {
    let count = MAX_DEEPSTACK.min((depth / 2).max(1)).min(text_layers);
    (1..=count).map(|number| (number * depth / (count + 1)).saturating_sub(1)).collect()
}

/// A quarter of the pairs of dims for time, and the others for height and width, as in published models; of
/// axes that take turns 5 of 16 pairs for height, and for width.
fn rope_sections(family: Family, num_pairs: usize) -> [usize; 3] {
    if family == Family::Qwen3Vl {
        let in_space = (5 * num_pairs / 16).max(usize::from(num_pairs >= 3));
        return [num_pairs - 2 * in_space, in_space, in_space];
    }
    let time = num_pairs / 4;
    let height = (num_pairs - time) / 2;
    [time, height, num_pairs - time - height]
}
