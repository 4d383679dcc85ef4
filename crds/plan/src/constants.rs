//! Sizes of the loss head and the KV cache, which the trainer takes from the plan.

/// Number of tokens whose logits exist at the same time in the loss head.
pub const HEAD_CHUNK_TOKENS: u32 = 256;
/// Number of tokens in one block of the KV cache.
pub const KV_BLOCK_TOKENS: u32 = 16;
