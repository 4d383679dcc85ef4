//! `spec.model.lora`: low-rank adapters on frozen weights, in PEFT's words.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the adapter's matrices start.
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
    /// approximation of what quantization took from a weight, so that training starts nearer to the model in
    /// 16 bits. The reference policy is the quantized base alone. Only where the job quantizes the weights;
    /// modules that stay in 16 bits, and a critic's adapter, start as by `Peft`.
    Loftq,
}

/// Where an adapter's dropout is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DropoutPosition {
    /// Of inputs of A, as PEFT.
    #[default]
    Before,
    /// Of outputs of B.
    After,
}

/// Which part of a vision-language model gets adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum VlmLora {
    /// The text model.
    #[default]
    Text,
    /// The vision tower with its mergers.
    Vision,
    /// Both.
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

/// Low-rank adaptation (<https://arxiv.org/abs/2106.09685>) with PEFT's names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LoraSpec {
    /// Rank of the update.
    #[schemars(range(min = 1, max = 4096))]
    pub rank: u32,
    /// Scale of the update: alpha / rank, or alpha / sqrt(rank) with `rankStabilized`.
    #[schemars(range(min = 1e-6, max = 65536.0))]
    pub alpha: f64,
    /// Scale by 1/sqrt(rank) instead of 1/rank (<https://arxiv.org/abs/2312.03732>).
    pub rank_stabilized: bool,
    /// Ranks of modules that have another one, by a regular expression of a module's whole name or of its end
    /// after a dot, as PEFT's `rank_pattern`. Of several that match the first in the order of text counts.
    #[schemars(extend(
        "maxProperties" = 64,
        "additionalProperties" = {"type": "integer", "minimum": 1, "maximum": 4096}
    ))]
    pub rank_pattern: BTreeMap<String, u32>,
    /// The same of `alpha`, as PEFT's `alpha_pattern`.
    #[schemars(extend(
        "maxProperties" = 64,
        "additionalProperties" = {"type": "number", "minimum": 1e-6, "maximum": 65536.0}
    ))]
    pub alpha_pattern: BTreeMap<String, f64>,
    /// DoRA (<https://arxiv.org/abs/2402.09353>): a trained magnitude for each output scales the adapted
    /// weight, whose rows are divided by their norms.
    pub dora: bool,
    /// LoRA+ (<https://arxiv.org/abs/2402.12354>): B matrices and magnitudes learn at so many times the
    /// learning rate.
    #[schemars(range(min = 1e-3, max = 1000.0))]
    pub learning_rate_ratio: f64,
    /// Which part of a vision-language model gets adapters: of its linear layers `targetModules` and what
    /// excludes some choose. Named after the option `vlm_lora` of scripts that fine-tune such models. The
    /// vision tower has linear layers in its blocks (such as `attn.qkv`) and in its mergers (such as
    /// `merger.mlp.0`).
    pub vlm_lora: VlmLora,
    /// Names of the linear layers that get an adapter, or `all-linear` alone: every one but the output head.
    /// Empty only beside `targetParameters`. Megatron's names, such as `linear_qkv`, stand for theirs.
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub target_modules: Vec<String>,
    /// A regular expression over whole module names; replaces `targetModules`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub target_pattern: Option<String>,
    /// Parameters of experts that get adapters, as PEFT's `target_parameters`: `mlp.experts.gate_up_proj` and
    /// `mlp.experts.down_proj` one for each expert, `mlp.gate.weight` of the router, or the ends of these
    /// names.
    #[schemars(length(max = 8), inner(length(min = 1, max = 256)))]
    pub target_parameters: Vec<String>,
    /// Names of linear layers that get no adapter although they match.
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub exclude_modules: Vec<String>,
    /// A regular expression over whole module names that get no adapter; replaces `excludeModules`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub exclude_pattern: Option<String>,
    /// Modules that are trained whole, in fp32, and saved with the adapter, as PEFT's `modules_to_save`:
    /// every embedding, head or norm whose name ends so, such as `embed_tokens`, `lm_head` or
    /// `input_layernorm`. Tied weights are trained by `embed_tokens`, and stay tied (PEFT's
    /// `ensure_weight_tying`). The reference policy has the frozen ones.
    #[schemars(length(max = 64), inner(length(min = 1, max = 256)))]
    pub modules_to_save: Vec<String>,
    /// Dropout on the adapter's input. Above 0 the log-probs of rollout and update differ by chance.
    #[schemars(range(min = 0.0, max = 0.99))]
    pub dropout: f64,
    /// Where dropout is: before A, or after B as Megatron's `dropout_position: post`.
    pub dropout_position: DropoutPosition,
    /// How the matrices start; not beside `adapterPath`.
    pub init: LoraInit,
    /// A PEFT adapter folder to start from instead of `init`; targets, `dora` and, unless it is resized,
    /// ranks and alphas must agree with it. The reference policy is the base without this adapter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 4096))]
    pub adapter_path: Option<String>,
    /// Whether the adapter of `adapterPath` may have other ranks and alphas. At a larger rank its product
    /// stays the same; at a smaller rank it is the best approximation.
    pub resize_adapter: bool,
    /// Whether the rollout samples with the adapter folded into the weights, as verl's `lora.merge`. `false`:
    /// base and adapter stay apart, every rank keeps the packed base from step to step, and a weight sync
    /// brings the adapter alone. Quantized weights are never folded into. By default the plan chooses the
    /// cheaper one.
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
    /// Whether the adapter has parts that the rollout cannot use unmerged, on any device and with any model.
    pub fn must_merge(&self) -> bool {
        self.parts().contains(&true)
    }

    /// Whether the adapter is DoRA, adapts parameters that are not linear layers, and trains modules in full.
    pub fn parts(&self) -> [bool; 3] {
        [self.dora, !self.target_parameters.is_empty(), !self.modules_to_save.is_empty()]
    }

    /// Whether some modules have their own rank or alpha.
    pub fn has_patterns(&self) -> bool {
        !self.rank_pattern.is_empty() || !self.alpha_pattern.is_empty()
    }
}
