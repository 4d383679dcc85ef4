//! `spec.model`: where the weights, the tokenizer, the chat template and the adapter come from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{LoraSpec, QuantizationSpec, model_families};

/// Model to train. Exactly one of `path`, `hub` and `architecture` is the source of its weights.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ModelSpec {
    /// Hugging Face folder (config.json, safetensors, tokenizer.json) on a mounted or local file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// Model of the Hugging Face hub, downloaded once and recorded by commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hub: Option<HubSpec>,
    /// New model with random weights; its vocabulary size follows from the tokenizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<ArchitectureSpec>,
    /// Tokenizer, if it is not the one in the model's own folder. Required with `architecture`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<TokenizerSpec>,
    /// Jinja chat template that replaces the tokenizer's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 65536))]
    pub chat_template: Option<String>,
    /// Whether the vision tower of a vision-language model, with its mergers, is trained with all other
    /// weights. Adapters of the tower are set by `lora.vlmLora`.
    #[serde(default)]
    pub vision_tower: VisionTraining,
    /// Folders of PEFT adapters that are merged into the weights while these are read: every role that starts
    /// from the model starts from the merged weights, the reference policy too. These adapters are not
    /// trained; what is trained comes on top.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 4096)))]
    pub adapters: Vec<String>,
    /// Low-rank adapters to train on frozen weights, instead of all weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSpec>,
    /// Quantization of the frozen weights below an adapter to 4 or 8 bits (QLoRA). A checkpoint that
    /// bitsandbytes has quantized is read as it is, also without this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quantization: Option<QuantizationSpec>,
}

/// Training of the weights of a vision tower.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VisionTraining {
    /// The weights do not change.
    #[default]
    Frozen,
    /// The weights are trained like all others.
    Trained,
}

/// Model of the Hugging Face hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HubSpec {
    /// Owner and name of the repository, such as `Qwen/Qwen2.5-0.5B`.
    #[schemars(length(min = 1, max = 256))]
    pub repo: String,
    /// Branch, tag or commit; the commit to which it resolves is recorded with the run.
    #[serde(default = "HubSpec::default_revision")]
    #[schemars(length(min = 1, max = 256))]
    pub revision: String,
    /// URL of a mirror; by default that of the public hub, or `HF_ENDPOINT` where that is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    pub endpoint: Option<String>,
}

impl HubSpec {
    fn default_revision() -> String {
        "main".into()
    }
}

macro_rules! declare_families {
    ($($(#[$doc:meta])* $name:ident: $($definition:ident)::+,)*) => {
        /// Model family that the trainer supports.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        pub enum ModelFamily {
            $($(#[$doc])* $name,)*
        }

        impl ModelFamily {
            /// Yields all families, in the order in which errors list them.
            pub fn all() -> impl Iterator<Item = Self> {
                [$(Self::$name),*].into_iter()
            }
        }
    };
}

model_families!(declare_families);

impl ModelFamily {
    /// Whether models of the family have a vision tower.
    pub fn has_vision(self) -> bool {
        matches!(self, Self::Qwen2Vl | Self::Qwen25Vl | Self::Qwen3Vl)
    }
}

/// Shape of a model that is built from scratch, in the words of Hugging Face's config.json.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ArchitectureSpec {
    /// Model family whose layers are built.
    pub family: ModelFamily,
    /// Width of the residual stream.
    #[schemars(range(min = 8, max = 65536))]
    pub hidden_size: u32,
    /// Width of the feed-forward blocks, or of each expert and of a shared expert.
    #[schemars(range(min = 8, max = 262144))]
    pub intermediate_size: u32,
    /// Experts of each layer; for the families that have some, and only for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertsSpec>,
    /// Vision tower; for the families that have one, and only for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vision: Option<VisionSpec>,
    /// Number of decoder layers.
    #[schemars(range(min = 1, max = 512))]
    pub num_layers: u32,
    /// Number of query heads.
    #[schemars(range(min = 1, max = 1024))]
    pub num_heads: u32,
    /// Number of key and value heads, a divisor of `numHeads`; by default `numHeads`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub num_kv_heads: Option<u32>,
    /// Width of one head, an even number; by default `hiddenSize / numHeads`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 1024))]
    pub head_dim: Option<u32>,
    /// Maximum length of a sequence (prompt and completion) in tokens.
    #[serde(default = "ArchitectureSpec::default_max_position_embeddings")]
    #[schemars(range(min = 2, max = 16777216))]
    pub max_position_embeddings: u32,
    /// Base of the rotary position embedding.
    #[serde(default = "ArchitectureSpec::default_rope_theta")]
    #[schemars(range(min = 1.0, max = 1e12))]
    pub rope_theta: f64,
    /// Whether the output head shares the embedding's weights.
    #[serde(default = "ArchitectureSpec::default_tie_word_embeddings")]
    pub tie_word_embeddings: bool,
    /// Standard deviation of the initial weights.
    #[serde(default = "ArchitectureSpec::default_initializer_range")]
    #[schemars(range(min = 1e-6, max = 1.0))]
    pub initializer_range: f64,
}

/// Mixture of experts: feed-forward blocks of which a router chooses some for each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExpertsSpec {
    /// Number of experts per layer.
    #[schemars(range(min = 1, max = 4096))]
    pub count: u32,
    /// Number of experts that compute a token; at most `count`.
    #[schemars(range(min = 1, max = 4096))]
    pub per_token: u32,
}

/// Vision tower of a model that is built from scratch. Its weights are random; unless `visionTower: Trained`
/// they do not change, and the features of an image are a fixed random projection of its pixels. Images keep
/// their size up to 1,003,520 pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct VisionSpec {
    /// Width of the tower's residual stream; its feed-forward blocks are four times as wide.
    #[schemars(range(min = 4, max = 65536))]
    pub hidden_size: u32,
    /// Number of blocks of the tower.
    #[schemars(range(min = 1, max = 512))]
    pub num_layers: u32,
    /// Number of attention heads, each of a width that is a multiple of 4.
    #[schemars(range(min = 1, max = 1024))]
    pub num_heads: u32,
    /// Height and width of a patch in pixels.
    #[serde(default = "VisionSpec::default_patch_size")]
    #[schemars(range(min = 1, max = 1024))]
    pub patch_size: u32,
    /// Number of patches in each direction that are merged into one token.
    #[serde(default = "VisionSpec::default_merge_size")]
    #[schemars(range(min = 1, max = 64))]
    pub merge_size: u32,
}

impl VisionSpec {
    /// Area in pixels to which larger images are shrunk, as in published Qwen2-VL.
    pub const MAX_PIXELS: u32 = 1_003_520;
    /// Largest integer side whose square is within [`Self::MAX_PIXELS`].
    pub(crate) const MAX_SIDE: u32 = 1001;

    /// Number of tokens of a square image, by its side and that of a token in pixels. The tokens of a side
    /// are rounded, halves to even, to at least one, within [`Self::MAX_PIXELS`].
    pub fn tokens_of_square(side: u32, token_side: u32) -> u32 {
        let (halves, of_token) = (2 * side + token_side, 2 * token_side);
        let rounded = halves / of_token;
        let even = rounded - if halves.is_multiple_of(of_token) { rounded % 2 } else { 0 };
        even.min(Self::MAX_SIDE / token_side).max(1).pow(2)
    }

    /// Height and width of a token in pixels.
    pub(crate) fn token_side(&self) -> u32 {
        self.patch_size * self.merge_size
    }

    fn default_patch_size() -> u32 {
        14
    }
    fn default_merge_size() -> u32 {
        2
    }
}

impl ArchitectureSpec {
    fn default_max_position_embeddings() -> u32 {
        2048
    }
    fn default_rope_theta() -> f64 {
        10_000.0
    }
    fn default_tie_word_embeddings() -> bool {
        true
    }
    fn default_initializer_range() -> f64 {
        0.02
    }
}

/// Source of the tokenizer: exactly one of `path` and `characters`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenizerSpec {
    /// Folder with tokenizer.json and tokenizer_config.json.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub path: Option<String>,
    /// Alphabet of a character tokenizer: each character is one token; text outside the alphabet is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub characters: Option<String>,
}
