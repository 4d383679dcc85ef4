//! The vision tower of a vision-language model as `config.json` describes it, in both layouts that there are:
//! fields of the text model beside `vision_config` (Qwen2-VL as published), or in `text_config` (what
//! transformers has written since 4.52). Never here: pixels, tensors.

use serde_json::{Map, Value, json};

use super::fields::Fields;
use super::{Family, ModelConfig, ModelConfigError, TensorShape};

/// Before the names of the tower's tensors, in memory and on disk.
pub const TOWER: &str = "visual.";

/// What the blocks of a tower are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisionBlocks {
    /// Qwen2-VL: layer norms, two linear layers with the quick GELU between them.
    Plain,
    /// Qwen2.5-VL: RMS norms, and a feed-forward block behind a gate.
    Gated,
}

/// Everything that decides which numbers a tower computes, besides its weights, and how a prompt names
/// images.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    /// Height and width of a patch in pixels.
    pub patch_size: usize,
    /// Frames of a patch; a still image is repeated so often.
    pub temporal_patch_size: usize,
    /// So many patches in each direction become one token.
    pub spatial_merge_size: usize,
    /// Colours of a pixel.
    pub in_channels: usize,
    /// Width of the tower's residual stream.
    pub hidden_size: usize,
    /// Number of blocks.
    pub depth: usize,
    /// Number of heads.
    pub num_heads: usize,
    /// Width inside the feed-forward blocks.
    pub intermediate_size: usize,
    /// What the blocks are made of.
    pub blocks: VisionBlocks,
    /// Height and width, in pixels, of the windows that attention stays in; `None`: it sees the whole frame.
    pub window_size: Option<usize>,
    /// The blocks that see the whole frame all the same.
    pub full_attention_blocks: Vec<usize>,
    /// How many pairs of a head's dims are turned by time, height and width (`mrope_section`).
    pub rope_sections: [usize; 3],
    /// The token that stands for a piece of an image in a prompt.
    pub image_token: u32,
    /// The token that stands for a piece of a video.
    pub video_token: u32,
    /// The token before an image or a video.
    pub vision_start_token: u32,
    /// The token behind it.
    pub vision_end_token: u32,
    /// `vision_config` as it was read; exports hold it unchanged.
    pub document: Value,
}

impl VisionConfig {
    /// Width of a row of pixels that makes one patch.
    pub fn patch_width(&self) -> usize {
        self.in_channels * self.temporal_patch_size * self.patch_size * self.patch_size
    }

    /// Width of the patches of one token, side by side.
    pub fn merged_width(&self) -> usize {
        self.hidden_size * self.spatial_merge_size * self.spatial_merge_size
    }

    /// Rows and columns of tokens in a window of attention.
    pub fn window_tokens(&self) -> Option<usize> {
        self.window_size.map(|pixels| (pixels / self.spatial_merge_size / self.patch_size).max(1))
    }

    /// Whether the attention of a block sees the whole frame.
    pub fn sees_all(&self, block_idx: usize) -> bool {
        self.window_size.is_none() || self.full_attention_blocks.contains(&block_idx)
    }

    /// Every tensor of the tower, by its name on disk, for a text model of width `text_size`.
    pub fn tensors(&self, text_size: usize) -> Vec<TensorShape> {
        let patch = [self.in_channels, self.temporal_patch_size, self.patch_size, self.patch_size];
        let patch_embedding = [[self.hidden_size].as_slice(), &patch].concat();
        let mut tensors = vec![tensor("patch_embed.proj.weight", &patch_embedding)];
        for block_idx in 0..self.depth {
            self.push_block(&format!("blocks.{block_idx}"), &mut tensors);
        }
        let merged = self.merged_width();
        self.push_norm("merger.ln_q", &mut tensors);
        push_linear("merger.mlp.0", [merged, merged], &mut tensors);
        push_linear("merger.mlp.2", [text_size, merged], &mut tensors);
        tensors
    }

    fn push_block(&self, block: &str, tensors: &mut Vec<TensorShape>) {
        let (width, inner) = (self.hidden_size, self.intermediate_size);
        self.push_norm(&format!("{block}.norm1"), tensors);
        self.push_norm(&format!("{block}.norm2"), tensors);
        push_linear(&format!("{block}.attn.qkv"), [3 * width, width], tensors);
        push_linear(&format!("{block}.attn.proj"), [width, width], tensors);
        let (inner_names, outer_name): (&[&str], &str) = match self.blocks {
            VisionBlocks::Plain => (&["fc1"], "fc2"),
            VisionBlocks::Gated => (&["gate_proj", "up_proj"], "down_proj"),
        };
        for name in inner_names {
            push_linear(&format!("{block}.mlp.{name}"), [inner, width], tensors);
        }
        push_linear(&format!("{block}.mlp.{outer_name}"), [width, inner], tensors);
    }

    fn push_norm(&self, name: &str, tensors: &mut Vec<TensorShape>) {
        tensors.push(tensor(&format!("{name}.weight"), &[self.hidden_size]));
        if self.blocks == VisionBlocks::Plain {
            tensors.push(tensor(&format!("{name}.bias"), &[self.hidden_size]));
        }
    }
}

fn push_linear(name: &str, shape: [usize; 2], tensors: &mut Vec<TensorShape>) {
    tensors.push(tensor(&format!("{name}.weight"), &shape));
    tensors.push(tensor(&format!("{name}.bias"), &shape[..1]));
}

fn tensor(name: &str, shape: &[usize]) -> TensorShape {
    TensorShape { name: format!("{TOWER}{name}"), shape: shape.to_vec() }
}

impl ModelConfig {
    /// Every tensor of the vision tower; none where the model has no tower.
    pub fn vision_tensors(&self) -> Vec<TensorShape> {
        self.vision.as_ref().map_or_else(Vec::new, |vision| vision.tensors(self.hidden_size))
    }

    /// Parameters of the vision tower, which [`Self::parameter_count`] does not count.
    pub fn num_vision_parameters(&self) -> u64 {
        let elements = |tensor: &TensorShape| tensor.shape.iter().product::<usize>() as u64;
        self.vision_tensors().iter().map(elements).sum()
    }
}

/// The document of a family with a tower in the layout of old: what `text_config` holds lies beside
/// `vision_config`. The name `mrope` of old for a rotary embedding of three axes becomes `default`, as in
/// transformers.
pub(super) fn flattened(document: &Value) -> Value {
    let mut flat = document.clone();
    if let Some(Value::Object(text)) = document.get("text_config") {
        // The whole model's class, and whether its head is tied, stand outside.
        let is_outer = |name: &str| matches!(name, "architectures" | "model_type" | "text_config");
        let outer_wins = |name: &str| name == "tie_word_embeddings" && document.get(name).is_some();
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

/// Reads tower and placeholder tokens of a Qwen2-VL or Qwen2.5-VL from its flat document.
pub(super) fn read(fields: &Fields<'_>, config: &mut ModelConfig) -> Result<(), ModelConfigError> {
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
    let rope_sections = rope_sections(fields, config.rotary_dim / 2)?;
    let tower = fields.object("vision_config")?;
    let document = fields.get("vision_config").cloned().ok_or_else(|| fields.missing("vision_config"))?;
    let blocks = if config.family == Family::Qwen2Vl { VisionBlocks::Plain } else { VisionBlocks::Gated };
    let size =
        |field: &str, default: usize| Ok::<usize, ModelConfigError>(tower.size(field)?.unwrap_or(default));
    let sizes = Sizes::read(&tower, blocks, config.hidden_size)?;
    let vision = VisionConfig {
        patch_size: size("patch_size", 14)?,
        temporal_patch_size: size("temporal_patch_size", 2)?,
        spatial_merge_size: size("spatial_merge_size", 2)?,
        in_channels: size("in_channels", 3)?,
        hidden_size: sizes.hidden,
        depth: tower.depth("depth")?.unwrap_or(32),
        num_heads: size("num_heads", 16)?,
        intermediate_size: sizes.intermediate,
        blocks,
        window_size: match blocks {
            VisionBlocks::Plain => None,
            VisionBlocks::Gated => Some(size("window_size", 112)?),
        },
        full_attention_blocks: full_attention_blocks(&tower)?,
        rope_sections,
        image_token: token("image_token_id", 151_655)?,
        video_token: token("video_token_id", 151_656)?,
        vision_start_token: token("vision_start_token_id", 151_652)?,
        vision_end_token: token("vision_end_token_id", 151_653)?,
        document,
    };
    let rope = tower.object("rope_parameters")?;
    if rope.number("rope_theta")?.is_some_and(|theta| theta != 10_000.0) {
        return Err(rope.unsupported("rope_theta", "10000 in vision_config"));
    }
    // Rows and columns turn a quarter of a head's dims each, in pairs.
    if !vision.hidden_size.is_multiple_of(4 * vision.num_heads) {
        return Err(
            tower.invalid("num_heads", "a divisor of the tower's width into heads of a multiple of 4")
        );
    }
    config.vision = Some(vision);
    Ok(())
}

/// The tower's widths.
struct Sizes {
    hidden: usize,
    intermediate: usize,
}

impl Sizes {
    fn read(tower: &Fields<'_>, blocks: VisionBlocks, text_size: usize) -> Result<Self, ModelConfigError> {
        let (activation, supported, output) = match blocks {
            VisionBlocks::Plain => ("hidden_act", "quick_gelu", "hidden_size"),
            VisionBlocks::Gated => ("hidden_act", "silu", "out_hidden_size"),
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
        })
    }
}

fn full_attention_blocks(tower: &Fields<'_>) -> Result<Vec<usize>, ModelConfigError> {
    let Some(list) = tower.list("fullatt_block_indexes")? else { return Ok(vec![7, 15, 23, 31]) };
    let idxs: Vec<usize> = list.iter().filter_map(Value::as_u64).map(|idx| idx as usize).collect();
    if idxs.len() == list.len() {
        Ok(idxs)
    } else {
        Err(tower.invalid("fullatt_block_indexes", "a list of block numbers"))
    }
}

/// `mrope_section`, which must add up to all of the `num_pairs` that a head turns.
fn rope_sections(fields: &Fields<'_>, num_pairs: usize) -> Result<[usize; 3], ModelConfigError> {
    const SECTION: &str = "mrope_section";
    let scaling = fields.object("rope_scaling")?;
    let parameters = fields.object("rope_parameters")?;
    let rope = if scaling.get(SECTION).is_some() { scaling } else { parameters };
    let list = rope.list(SECTION)?.ok_or_else(|| rope.missing(SECTION))?;
    let sections: Vec<usize> = list.iter().filter_map(Value::as_u64).map(|pairs| pairs as usize).collect();
    match <[usize; 3]>::try_from(sections) {
        Ok(sections) if sections.iter().sum::<usize>() == num_pairs => Ok(sections),
        _ => Err(rope.invalid(SECTION, &format!("three numbers that add up to {num_pairs}"))),
    }
}

/// Puts what describes the text model into `text_config`, and the tower beside it.
pub(super) fn write(config: &ModelConfig, document: &mut Value) {
    let Some(vision) = &config.vision else { return };
    let mut text = document.take();
    let mut outer = Map::new();
    for name in ["architectures", "model_type", "tie_word_embeddings", "torch_dtype"] {
        outer.insert(name.to_owned(), text[name].clone());
    }
    text["model_type"] = format!("{}_text", config.family.model_type()).into();
    text["architectures"] = Value::Null;
    if text["rope_scaling"].is_null() {
        text["rope_scaling"] = json!({"rope_type": "default", "type": "default"});
    }
    text["rope_scaling"]["mrope_section"] = json!(vision.rope_sections);
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
