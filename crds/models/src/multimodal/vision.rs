//! Vision tower of a vision-language model as `config.json` describes it, in both existing layouts: text
//! fields next to `vision_config` (Qwen2-VL as published), or inside `text_config` (written by transformers
//! since 4.52). Never here: pixels, tensors.

use serde_json::{Map, Value, json};

use super::super::fields::Fields;
use super::super::rope::rope_object;
use super::super::{Family, ModelConfig, ModelConfigError, TensorShape, VisionBlocks, VisionConfig};

impl ModelConfig {
    /// Returns all tensors of the vision tower; none without a tower.
    pub fn vision_tensors(&self) -> Vec<TensorShape> {
        self.vision.as_ref().map_or_else(Vec::new, |vision| vision.tensors(self.hidden_size))
    }

    /// Yields the linear layers of the vision tower, in blocks and mergers, by module name, with shape
    /// `[outputs, inputs]`.
    pub fn vision_linears(&self) -> impl Iterator<Item = TensorShape> + use<> {
        let is_linear = |tensor: &TensorShape| tensor.shape.len() == 2 && !tensor.name.contains("pos_embed");
        let module = |tensor: TensorShape| {
            let name = tensor.name.strip_suffix(".weight")?.to_owned();
            Some(TensorShape { name, ..tensor })
        };
        self.vision_tensors().into_iter().filter(is_linear).filter_map(module)
    }

    /// Number of parameters of the vision tower, which [`Self::parameter_count`] leaves out.
    pub fn num_vision_parameters(&self) -> u64 {
        let elements = |tensor: &TensorShape| tensor.shape.iter().product::<usize>() as u64;
        self.vision_tensors().iter().map(elements).sum()
    }
}

/// Converts a document with `text_config` to the older layout, whose text fields stand next to
/// `vision_config`. The older name `mrope` of a rotary embedding with three axes becomes `default`, as in
/// transformers.
pub(crate) fn flattened(document: &Value, family: Family) -> Value {
    const TIED: &str = "tie_word_embeddings";
    let mut flat = document.clone();
    if let Some(Value::Object(text)) = document.get("text_config") {
        // The class of the whole model, and whether its head is tied, stand at the top level.
        let is_outer = |name: &str| matches!(name, "architectures" | "model_type" | "text_config");
        // Before Qwen3-VL, a head that either level ties is tied.
        let is_tied_inside = family != Family::Qwen3Vl && text.get(TIED) == Some(&Value::Bool(true));
        let outer_wins = |name: &str| name == TIED && document.get(TIED).is_some() && !is_tied_inside;
        for (name, value) in text.iter().filter(|(name, _)| !is_outer(name) && !outer_wins(name)) {
            flat[name] = value.clone();
        }
    }
    for rope in ["rope_scaling", "rope_parameters"] {
        for kind in ["type", "rope_type"] {
            if flat[rope].get(kind).is_some_and(|kind| kind == "mrope") {
                flat[rope][kind] = "default".into();
            }
        }
    }
    flat
}

/// Reads tower and placeholder tokens from the flat document of a family with a tower.
pub(crate) fn read(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<(), ModelConfigError> {
    if fields.get("quantization_config").is_some_and(|value| !value.is_null()) {
        return Err(
            fields.unsupported("quantization_config", "unquantized weights of a vision-language model")
        );
    }
    let token = |field: &str, default: u32| {
        let id = fields.token_id(field, Some(default))?.ok_or_else(|| fields.missing(field))?;
        if (id as usize) < config.vocab_size {
            Ok(id)
        } else {
            Err(fields.invalid(field, "a token id below vocab_size"))
        }
    };
    let (rope_sections, rope_is_interleaved) = rope_sections(fields, config)?;
    let tower = fields.object("vision_config")?;
    let document = fields.get("vision_config").cloned().ok_or_else(|| fields.missing("vision_config"))?;
    let blocks = match config.family {
        Family::Qwen2Vl => VisionBlocks::Plain,
        Family::Qwen3Vl => VisionBlocks::Positioned,
        _ => VisionBlocks::Gated,
    };
    let size =
        |field: &str, default: usize| Ok::<usize, ModelConfigError>(tower.size(field)?.unwrap_or(default));
    let sizes = Sizes::read(&tower, blocks, config.hidden_size)?;
    let vision = VisionConfig {
        patch_size: size("patch_size", if blocks == VisionBlocks::Positioned { 16 } else { 14 })?,
        temporal_patch_size: size("temporal_patch_size", 2)?,
        spatial_merge_size: size("spatial_merge_size", 2)?,
        in_channels: size("in_channels", 3)?,
        hidden_size: sizes.hidden,
        depth: tower.depth("depth")?.unwrap_or(if blocks == VisionBlocks::Positioned { 27 } else { 32 }),
        num_heads: size("num_heads", 16)?,
        intermediate_size: sizes.intermediate,
        blocks,
        window_size: match blocks {
            VisionBlocks::Plain | VisionBlocks::Positioned => None,
            VisionBlocks::Gated => Some(size("window_size", 112)?),
        },
        full_attention_blocks: block_idxs(&tower, "fullatt_block_indexes", &[7, 15, 23, 31])?,
        position_side: position_side(&tower, blocks)?,
        deepstack_blocks: match blocks {
            VisionBlocks::Positioned => block_idxs(&tower, "deepstack_visual_indexes", &[8, 16, 24])?,
            VisionBlocks::Plain | VisionBlocks::Gated => Vec::new(),
        },
        rope_sections,
        rope_is_interleaved,
        image_token: token("image_token_id", 151_655)?,
        video_token: token("video_token_id", 151_656)?,
        vision_start_token: token("vision_start_token_id", 151_652)?,
        vision_end_token: token("vision_end_token_id", 151_653)?,
        document,
    };
    check_rotation(&tower, &vision)?;
    check_deepstack(&tower, &vision, config.num_layers)?;
    config.vision = Some(vision);
    Ok(())
}

/// Checks that the tower's rotary embedding is the one that the trainer computes.
fn check_rotation(tower: &Fields<'_>, vision: &VisionConfig) -> Result<(), ModelConfigError> {
    let rope = rope_object(tower)?;
    for place in [&rope, tower] {
        if place.number("rope_theta")?.is_some_and(|theta| theta != 10_000.0) {
            return Err(place.unsupported("rope_theta", "10000 in vision_config"));
        }
    }
    let kind = if rope.get("rope_type").is_some() { "rope_type" } else { "type" };
    if !matches!(rope.text(kind)?, None | Some("default" | "axial")) {
        return Err(rope.unsupported(kind, "default, axial in vision_config"));
    }
    // Rows and columns rotate a quarter of a head's dimensions each, in pairs.
    if !vision.hidden_size.is_multiple_of(4 * vision.num_heads) {
        return Err(
            tower.invalid("num_heads", "a divisor of the tower's width into heads of a multiple of 4")
        );
    }
    let head_dim = vision.hidden_size / vision.num_heads;
    if tower.size("head_dim")?.is_some_and(|stated| stated != head_dim) {
        return Err(tower.invalid("head_dim", &format!("the tower's width divided by its heads, {head_dim}")));
    }
    Ok(())
}

/// Widths of the tower.
struct Sizes {
    hidden: usize,
    intermediate: usize,
}

impl Sizes {
    fn read(tower: &Fields<'_>, blocks: VisionBlocks, text_size: usize) -> Result<Self, ModelConfigError> {
        let (activation, supported, output) = match blocks {
            VisionBlocks::Plain => ("hidden_act", "quick_gelu", "hidden_size"),
            VisionBlocks::Gated => ("hidden_act", "silu", "out_hidden_size"),
            VisionBlocks::Positioned => ("hidden_act", "gelu_pytorch_tanh", "out_hidden_size"),
        };
        if tower.text(activation)?.unwrap_or(supported) != supported {
            return Err(tower.unsupported(activation, supported));
        }
        if tower.size(output)?.unwrap_or(3584) != text_size {
            return Err(tower.invalid(output, &format!("the text model's hidden_size {text_size}")));
        }
        Ok(match blocks {
            VisionBlocks::Plain => {
                let hidden = tower.size("embed_dim")?.unwrap_or(1280);
                let ratio = tower.number("mlp_ratio")?.unwrap_or(4.0);
                Self { hidden, intermediate: (hidden as f64 * ratio) as usize }
            }
            VisionBlocks::Gated => Self {
                hidden: tower.size("hidden_size")?.unwrap_or(3584),
                intermediate: tower.size("intermediate_size")?.unwrap_or(3420),
            },
            VisionBlocks::Positioned => Self {
                hidden: tower.size("hidden_size")?.unwrap_or(1152),
                intermediate: tower.size("intermediate_size")?.unwrap_or(4304),
            },
        })
    }
}

/// Reads a list of block indices.
fn block_idxs(tower: &Fields<'_>, field: &str, default: &[usize]) -> Result<Vec<usize>, ModelConfigError> {
    let Some(list) = tower.list(field)? else { return Ok(default.to_vec()) };
    let idxs: Vec<usize> = list.iter().filter_map(Value::as_u64).map(|idx| idx as usize).collect();
    if idxs.len() == list.len() { Ok(idxs) } else { Err(tower.invalid(field, "a list of block numbers")) }
}

/// Reads `num_position_embeddings` and returns its square root.
fn position_side(tower: &Fields<'_>, blocks: VisionBlocks) -> Result<Option<usize>, ModelConfigError> {
    if blocks != VisionBlocks::Positioned {
        return Ok(None);
    }
    let field = "num_position_embeddings";
    let positions = tower.size(field)?.unwrap_or(2304);
    let side = positions.isqrt();
    if side * side == positions { Ok(Some(side)) } else { Err(tower.invalid(field, "a square number")) }
}

/// Checks that each block has a text layer after which its output is added.
fn check_deepstack(
    tower: &Fields<'_>,
    vision: &VisionConfig,
    num_layers: usize,
) -> Result<(), ModelConfigError> {
    let blocks = &vision.deepstack_blocks;
    let are_ordered = blocks.is_sorted_by(|one, next| one < next);
    if are_ordered && blocks.iter().all(|block| *block < vision.depth) && blocks.len() <= num_layers {
        return Ok(());
    }
    let expected = format!(
        "different block numbers below the depth {}, in order, no more than the {num_layers} text layers",
        vision.depth
    );
    Err(tower.invalid("deepstack_visual_indexes", &expected))
}

/// Reads `mrope_section`, which must add up to the rotated pairs of a head, and whether its axes are
/// interleaved, which they always are in Qwen3-VL.
fn rope_sections(fields: &Fields<'_>, config: &ModelConfig) -> Result<([usize; 3], bool), ModelConfigError> {
    const SECTION: &str = "mrope_section";
    let (num_pairs, is_interleaved) = (config.rotary_dim / 2, config.family == Family::Qwen3Vl);
    let scaling = fields.object("rope_scaling")?;
    let parameters = fields.object("rope_parameters")?;
    let rope = if scaling.get(SECTION).is_some() { scaling } else { parameters };
    if rope.flag("mrope_interleaved")?.unwrap_or(is_interleaved) != is_interleaved {
        return Err(rope.unsupported("mrope_interleaved", if is_interleaved { "true" } else { "false" }));
    }
    let list = rope.list(SECTION)?.ok_or_else(|| rope.missing(SECTION))?;
    let sections: Vec<usize> = list.iter().filter_map(Value::as_u64).map(|pairs| pairs as usize).collect();
    match <[usize; 3]>::try_from(sections) {
        Ok(sections) if sections.iter().sum::<usize>() == num_pairs => Ok((sections, is_interleaved)),
        _ => Err(rope.invalid(SECTION, &format!("three numbers that add up to {num_pairs}"))),
    }
}

/// Moves the text model's fields into `text_config`, and writes the tower next to it.
pub(crate) fn write(config: &ModelConfig, document: &mut Value) {
    let Some(vision) = &config.vision else { return };
    let mut text = document.take();
    let mut outer = Map::new();
    for name in ["architectures", "model_type", "tie_word_embeddings", "torch_dtype"] {
        outer.insert(name.to_owned(), text[name].clone());
    }
    text["model_type"] = format!("{}_text", text["model_type"].as_str().unwrap_or_default()).into();
    text["architectures"] = Value::Null;
    if text["rope_scaling"].is_null() {
        text["rope_scaling"] = json!({"rope_type": "default", "type": "default"});
    }
    text["rope_scaling"]["mrope_section"] = json!(vision.rope_sections);
    if vision.rope_is_interleaved {
        text["rope_scaling"]["mrope_interleaved"] = true.into();
    }
    outer.insert("text_config".to_owned(), text);
    outer.insert("vision_config".to_owned(), vision.document.clone());
    let tokens = [
        ("image_token_id", vision.image_token),
        ("video_token_id", vision.video_token),
        ("vision_start_token_id", vision.vision_start_token),
        ("vision_end_token_id", vision.vision_end_token),
    ];
    outer.extend(tokens.map(|(name, id)| (name.to_owned(), id.into())));
    *document = outer.into();
}
