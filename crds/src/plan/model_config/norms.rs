//! What the norms of a decoder layer compute, where they stand, and what they are called in a checkpoint.

/// What a norm computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// `x / sqrt(mean(x^2) + eps)` times the weight.
    Rms,
    /// `(x - mean(x)) / sqrt(var(x) + eps)` times the weight; no bias.
    Layer,
}

/// The norms of a layer's residual stream by their place, each with its module name inside the layer. A place
/// without a name has no norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockNorms {
    /// What attention reads.
    pub before_attention: Option<&'static str>,
    /// What attention gives, before the residual sum.
    pub after_attention: Option<&'static str>,
    /// What the feed-forward block reads.
    pub before_mlp: Option<&'static str>,
    /// What the feed-forward block gives, before the residual sum.
    pub after_mlp: Option<&'static str>,
}

impl BlockNorms {
    /// Llama's: one before each block.
    pub const BEFORE: Self = Self {
        before_attention: Some("input_layernorm"),
        after_attention: None,
        before_mlp: Some("post_attention_layernorm"),
        after_mlp: None,
    };
    /// OLMo 2's: one behind each block, none before.
    pub const AFTER: Self = Self {
        before_attention: None,
        after_attention: Some("post_attention_layernorm"),
        before_mlp: None,
        after_mlp: Some("post_feedforward_layernorm"),
    };

    /// Cohere's: one before both blocks, which stand side by side.
    pub const ONE: Self = Self {
        before_attention: Some("input_layernorm"),
        after_attention: None,
        before_mlp: None,
        after_mlp: None,
    };
    /// Gemma's from its second version on: one before each block, and one behind.
    pub const AROUND: Self = Self {
        before_attention: Some("input_layernorm"),
        after_attention: Some("post_attention_layernorm"),
        before_mlp: Some("pre_feedforward_layernorm"),
        after_mlp: Some("post_feedforward_layernorm"),
    };

    /// The names of all norms, in the order in which a token passes them.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + use<> {
        [self.before_attention, self.after_attention, self.before_mlp, self.after_mlp].into_iter().flatten()
    }

    /// How many of the norms stand before a block, and how many behind.
    pub fn counts(&self) -> (u64, u64) {
        let count = |norms: [Option<&str>; 2]| norms.into_iter().flatten().count() as u64;
        (count([self.before_attention, self.before_mlp]), count([self.after_attention, self.after_mlp]))
    }
}

/// The norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// None.
    None,
    /// Each head by itself, one weight of `head_dim` for all.
    Head,
    /// Each head by itself, with a weight `[heads, head_dim]`.
    EachHead,
    /// All heads of a token together, one weight as wide as they are.
    AllHeads,
}
