//! Norms of a decoder layer: their formula, their positions, and their names in a checkpoint.

/// Formula of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps)` times the weight.
    Rms,
    /// `(x - mean(x)) / sqrt(var(x) + eps)` times the weight; no bias.
    Layer,
}

/// Norms of a layer's residual stream by position, each with its module name inside the layer; `None` where a
/// position has no norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockNorms {
    /// Norm of the attention's input.
    pub before_attention: Option<&'static str>,
    /// Norm of the attention's output, before the residual sum.
    pub after_attention: Option<&'static str>,
    /// Norm of the feed-forward block's input.
    pub before_mlp: Option<&'static str>,
    /// Norm of the feed-forward block's output, before the residual sum.
    pub after_mlp: Option<&'static str>,
}

impl BlockNorms {
    /// Llama's layout: one norm before each block.
    pub const BEFORE: Self = Self {
        before_attention: Some("input_layernorm"),
        after_attention: None,
        before_mlp: Some("post_attention_layernorm"),
        after_mlp: None,
    };
    /// OLMo 2's layout: one norm after each block, none before.
    pub const AFTER: Self = Self {
        before_attention: None,
        after_attention: Some("post_attention_layernorm"),
        before_mlp: None,
        after_mlp: Some("post_feedforward_layernorm"),
    };

    /// Cohere's layout: one norm before attention and feed-forward block, which run in parallel.
    pub const ONE: Self = Self {
        before_attention: Some("input_layernorm"),
        after_attention: None,
        before_mlp: None,
        after_mlp: None,
    };
    /// Layout of Gemma 2 and later: one norm before and one after each block.
    pub const AROUND: Self = Self {
        before_attention: Some("input_layernorm"),
        after_attention: Some("post_attention_layernorm"),
        before_mlp: Some("pre_feedforward_layernorm"),
        after_mlp: Some("post_feedforward_layernorm"),
    };

    /// Yields the names of all norms, in the order in which a token passes them.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        [self.before_attention, self.after_attention, self.before_mlp, self.after_mlp].into_iter().flatten()
    }

    /// Returns how many norms stand before a block, and how many after one.
    pub fn counts(&self) -> (u64, u64) {
        let count = |norms: [Option<&str>; 2]| norms.into_iter().flatten().count() as u64;
        (count([self.before_attention, self.before_mlp]), count([self.after_attention, self.after_mlp]))
    }
}

/// Norm of queries and keys before the rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Queries and keys are not normed.
    None,
    /// Each head is normed separately, with one weight of `head_dim` for all heads.
    Head,
    /// Each head is normed separately, with a weight `[heads, head_dim]`.
    EachHead,
    /// All heads of a token are normed together, with one weight of their total width.
    AllHeads,
}
