//! Experts of a layer: their number, form and names.

use super::routing::Routing;

/// The experts of a model; all layers with experts have the same number.
#[derive(Clone, Debug, PartialEq)]
pub struct Experts {
    /// Whether each layer has experts, one entry a layer; other layers have one feed-forward block.
    pub layers: Vec<bool>,
    /// Number of experts in a layer.
    pub num_experts: usize,
    /// Number of experts that compute each token.
    pub num_experts_per_token: usize,
    /// Activation of an expert, and the layout of its weights.
    pub form: ExpertForm,
    /// Width of one expert's feed-forward block.
    pub intermediate_size: usize,
    /// Whether the router's weights of a token's experts are divided by their sum.
    pub normalises_weights: bool,
    /// Whether the router's weights are rounded to the compute dtype before they scale expert outputs.
    pub rounds_weights: bool,
    /// Width of the shared expert, which computes every token; `None` without one.
    pub shared_intermediate_size: Option<usize>,
    /// Module names of the shared expert, and whether it has a gate.
    pub shared_block: SharedBlock,
    /// How the router chooses experts.
    pub routing: Routing,
    /// Names of an expert's tensors in a checkpoint.
    pub names: ExpertNames,
    /// `router_aux_loss_coef` of the configuration, which is only written back.
    pub router_aux_loss_coef: f64,
}

/// Function that an expert computes of gate and up, and the layout of its weights in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertForm {
    /// `act(gate) * up`, without biases. Layout: outputs before inputs, gate above up.
    Gated,
    /// GPT-OSS: `(up + 1) * gate * sigmoid(1.702 gate)` with gate at most 7 and up within [-7, 7]. Layout:
    /// inputs before outputs, gate and up of an output interleaved; both products and the router have biases.
    Clamped,
}

/// Module names of the shared expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBlock {
    /// Gate, up and down projections.
    pub projections: [&'static str; 3],
    /// Gate of the whole shared expert: its sigmoid scales the output.
    pub gate: Option<&'static str>,
}

impl SharedBlock {
    /// Qwen's shared expert, with a gate.
    pub const GATED: Self = Self {
        projections: [
            "mlp.shared_expert.gate_proj",
            "mlp.shared_expert.up_proj",
            "mlp.shared_expert.down_proj",
        ],
        gate: Some("mlp.shared_expert_gate"),
    };
    /// DeepSeek's shared experts, concatenated along their width, without a gate.
    pub const UNGATED: Self = Self {
        projections: [
            "mlp.shared_experts.gate_proj",
            "mlp.shared_experts.up_proj",
            "mlp.shared_experts.down_proj",
        ],
        gate: None,
    };
}

/// Names of the parts of a layer's experts in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertNames {
    /// Module inside the layer that holds router and experts.
    pub module: &'static str,
    /// Name of the router inside the module, in checkpoints and in memory.
    pub router: &'static str,
    /// Gate, up and down projections of an expert.
    pub projections: [&'static str; 3],
}

impl ExpertNames {
    /// Names of DeepSeek checkpoints.
    pub const DEEPSEEK: Self = Self::QWEN;
    /// Names of Qwen checkpoints.
    pub const QWEN: Self =
        Self { module: "mlp", router: "gate", projections: ["gate_proj", "up_proj", "down_proj"] };
    /// Names of GPT-OSS checkpoints, which have all experts in one tensor.
    pub const GPT_OSS: Self = Self { router: "router", ..Self::QWEN };
    /// Names of Mixtral checkpoints.
    pub const MIXTRAL: Self =
        Self { module: "block_sparse_moe", router: "gate", projections: ["w1", "w3", "w2"] };
}
