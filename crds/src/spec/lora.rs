//! `spec.model.lora`: low-rank adapters on frozen weights, in PEFT's words.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Initialization of the adapter's matrices A and B.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LoraInit {
    /// PEFT's default: A uniform within 1/sqrt(inputs), B zero.
    #[default]
    Peft,
    /// A normal with standard deviation 1/rank, B zero.
    Gaussian,
    /// A and B from orthogonal vectors, so that their product is zero up to rounding; needs an even rank.
    Orthogonal,
    /// Megatron's default: A normal with standard deviation sqrt(2 / (inputs + rank)), B zero.
    Xavier,
    /// LoftQ (<https://arxiv.org/abs/2310.08659>), one iteration: the scaled product is the best
    /// approximation of the quantization error, so that training starts nearer to the 16-bit model. The
    /// reference policy is the quantized base alone. Only where the job quantizes the weights; modules that
    /// stay in 16 bits, and a critic's adapter, start as with `Peft`.
    Loftq,
}

/// Position of the adapter's dropout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DropoutPosition {
    /// Dropout on the inputs of A, as in PEFT.
    #[default]
    Before,
    /// Dropout on the outputs of B.
    After,
}

/// Part of a vision-language model that gets adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VlmLora {
    /// The text model only.
    #[default]
    Text,
    /// The vision tower with its mergers.
    Vision,
    /// Text model and vision tower.
    Both,
}

impl VlmLora {
    /// Whether the text model gets adapters.
    pub fn adapts_text(self) -> bool {
        self != Self::Vision
    }

    /// Whether the vision tower gets adapters.
    pub fn adapts_vision(self) -> bool {
        self != Self::Text
    }
}

/// Low-rank adapter (<https://arxiv.org/abs/2106.09685>), with PEFT's names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LoraSpec {
    /// Rank of the weight update.
    #[schemars(range(min = 1, max = 4096))]
    pub rank: u32,
    /// Numerator of the update's scale: alpha / rank, or alpha / sqrt(rank) with `rankStabilized`.
    #[schemars(range(min = 1e-6, max = 65536.0))]
    pub alpha: f64,
    /// Whether the update is scaled by 1/sqrt(rank) instead of 1/rank (<https://arxiv.org/abs/2312.03732>).
    pub rank_stabilized: bool,
    /// Ranks of modules that differ from `rank`, by a regular expression for a module's full name or for its
    /// end after a dot (PEFT's `rank_pattern`). If several match, the first in alphabetical order applies.
    #[schemars(extend(
        "maxProperties" = 64,
        "additionalProperties" = {"type": "integer", "minimum": 1, "maximum": 4096}
    ))]
    pub rank_pattern: BTreeMap<String, u32>,
    /// Alphas of modules that differ from `alpha`, by patterns like those of `rankPattern` (PEFT's
    /// `alpha_pattern`).
    #[schemars(extend(
        "maxProperties" = 64,
        "additionalProperties" = {"type": "number", "minimum": 1e-6, "maximum": 65536.0}
    ))]
    pub alpha_pattern: BTreeMap<String, f64>,
    /// Whether the adapter is DoRA (<https://arxiv.org/abs/2402.09353>): a trained magnitude for each output
    /// scales the adapted weight, whose rows are divided by their norms.
    pub dora: bool,
    /// Ratio of the learning rate of B matrices and magnitudes to that of other weights (LoRA+,
    /// <https://arxiv.org/abs/2402.12354>).
    #[schemars(range(min = 1e-3, max = 1000.0))]
    pub learning_rate_ratio: f64,
    /// Part of a vision-language model that gets adapters; `targetModules` and the exclusions choose among
    /// its linear layers. Named after the option `vlm_lora` of scripts that fine-tune such models. The vision
    /// tower has linear layers in its blocks (such as `attn.qkv`) and in its mergers (such as
    /// `merger.mlp.0`).
    pub vlm_lora: VlmLora,
    /// Names of the linear layers that get an adapter, or only `all-linear`: every one but the output head.
    /// May be empty only with `targetParameters`. Megatron's names, such as `linear_qkv`, stand for their
    /// counterparts.
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub target_modules: Vec<String>,
    /// Regular expression for full module names, in place of `targetModules`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub target_pattern: Option<String>,
    /// Parameters of experts that get adapters (PEFT's `target_parameters`): `mlp.experts.gate_up_proj` and
    /// `mlp.experts.down_proj` with one adapter per expert, `mlp.gate.weight` of the router, or the ends of
    /// these names.
    #[schemars(length(max = 8), inner(length(min = 1, max = 256)))]
    pub target_parameters: Vec<String>,
    /// Names of linear layers that get no adapter although they match.
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub exclude_modules: Vec<String>,
    /// Regular expression for full names of modules that get no adapter, in place of `excludeModules`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub exclude_pattern: Option<String>,
    /// Modules that are trained in full, in fp32, and saved with the adapter (PEFT's `modules_to_save`):
    /// every embedding, head or norm whose name ends with an entry, such as `embed_tokens`, `lm_head` or
    /// `input_layernorm`. Tied weights are trained through `embed_tokens` and stay tied (PEFT's
    /// `ensure_weight_tying`). The reference policy has the frozen weights.
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub modules_to_save: Vec<String>,
    /// Dropout probability of the adapter. Above 0 the log-probs of rollout and update differ at random.
    #[schemars(range(min = 0.0, max = 0.99))]
    pub dropout: f64,
    /// Position of the dropout: before A, or after B as with Megatron's `dropout_position: post`.
    pub dropout_position: DropoutPosition,
    /// Initialization of A and B; not with `adapterPath`.
    pub init: LoraInit,
    /// PEFT adapter folder to start from, in place of `init`; its targets, `dora` and, unless it is resized,
    /// ranks and alphas must agree with this section. The reference policy is the base without this adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub adapter_path: Option<String>,
    /// Whether the adapter of `adapterPath` may have other ranks and alphas. At a larger rank its product
    /// stays the same; at a smaller rank it is the best approximation.
    pub resize_adapter: bool,
    /// Whether the rollout samples with the adapter merged into the weights (verl's `lora.merge`). With false
    /// the adapter stays unmerged: every rank keeps the packed base from step to step, and a weight sync
    /// transfers the adapter alone. Adapters are never merged into quantized weights. By default the plan
    /// chooses the cheaper way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub merge: Option<bool>,
}

impl Default for LoraSpec {
    fn default() -> Self {
        Self {
            rank: 16,
            alpha: 32.0,
            rank_stabilized: false,
            rank_pattern: BTreeMap::new(),
            alpha_pattern: BTreeMap::new(),
            dora: false,
            learning_rate_ratio: 1.0,
            vlm_lora: VlmLora::Text,
            target_modules: vec!["all-linear".into()],
            target_pattern: None,
            target_parameters: Vec::new(),
            exclude_modules: Vec::new(),
            exclude_pattern: None,
            modules_to_save: Vec::new(),
            dropout: 0.0,
            dropout_position: DropoutPosition::Before,
            init: LoraInit::Peft,
            adapter_path: None,
            resize_adapter: false,
            merge: None,
        }
    }
}

/// Returns the transformers names of the modules for which a Megatron name stands; a model has some of them.
/// Where Megatron fuses projections with one A, each projection has its own here.
pub fn modules_of_megatron(name: &str) -> &'static [&'static str] {
    match name {
        "linear_qkv" => &["q_proj", "k_proj", "v_proj", "qkv_proj"],
        "linear_q" | "linear_q_proj" => &["q_proj"],
        "linear_k" => &["k_proj"],
        "linear_v" => &["v_proj"],
        "linear_proj" => &["o_proj"],
        "linear_fc1" => &["gate_proj", "up_proj", "gate_up_proj"],
        "linear_fc1_gate" => &["gate_proj"],
        "linear_fc1_up" => &["up_proj"],
        "linear_fc2" => &["down_proj"],
        "linear_q_down_proj" => &["q_a_proj"],
        "linear_q_up_proj" => &["q_b_proj"],
        "linear_kv_down_proj" => &["kv_a_proj_with_mqa"],
        "linear_kv_up_proj" => &["kv_b_proj"],
        _ => &[],
    }
}

/// Whether `modulesToSave` selects the module of a parameter: a name matches a module's end, as in PEFT.
pub fn is_module_to_save(names: &[String], parameter: &str) -> bool {
    let module = parameter.strip_suffix(".weight").unwrap_or(parameter);
    names.iter().any(|name| module.ends_with(name.as_str()))
}

impl LoraSpec {
    /// Whether some modules have their own rank or alpha.
    pub fn has_patterns(&self) -> bool {
        !self.rank_pattern.is_empty() || !self.alpha_pattern.is_empty()
    }
}
