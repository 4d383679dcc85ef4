//! The choice of experts by a router.

/// Rule by which a router chooses and weights experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Function that turns the router's logits into scores.
    pub scores: RouterScores,
    /// Groups of experts, of which only the best are eligible; `None` without groups.
    pub groups: Option<ExpertGroups>,
    /// Whether a stored bias is added to scores, for the choice only. It is not trained here.
    pub has_choice_bias: bool,
    /// Factor of the weights of a token's experts.
    pub scale: f64,
    /// Whether the router's product is computed in fp32, whatever the compute dtype.
    pub in_fp32: bool,
}

/// Function that turns a router's logits into scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScores {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit.
    Sigmoid,
}

/// Groups of experts with consecutive indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups; divides the number of experts.
    pub count: usize,
    /// Number of groups from which a token's experts are chosen.
    pub chosen: usize,
    /// Number of best scores, 1 or 2, whose sum ranks a group.
    pub by_best: usize,
}

impl Routing {
    /// Softmax over all experts, then top-k.
    pub const SOFTMAX: Self = Self {
        scores: RouterScores::Softmax,
        groups: None,
        has_choice_bias: false,
        scale: 1.0,
        in_fp32: false,
    };
    /// Routing of DeepSeek-V2.
    pub const DEEPSEEK_V2: Self = Self { in_fp32: true, ..Self::SOFTMAX };
    /// Routing of DeepSeek-V3, initially with all experts in one group.
    pub const DEEPSEEK_V3: Self = Self {
        scores: RouterScores::Sigmoid,
        groups: Some(ExpertGroups { count: 1, chosen: 1, by_best: 2 }),
        has_choice_bias: true,
        in_fp32: true,
        ..Self::SOFTMAX
    };
}
