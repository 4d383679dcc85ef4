//! Sizes that the trainer works by, and on which the plan counts.

/// Number of tokens whose logits exist at the same time in the loss head.
pub const HEAD_CHUNK_TOKENS: u32 = 256;
/// Number of tokens in one block of the KV cache.
pub const KV_BLOCK_TOKENS: u32 = 16;
/// Most bytes of image features that a vision tower caches for later steps.
pub const KEPT_FEATURES_BYTES: u64 = 256 << 20;
/// Number of model parameters that are read or initialized at a time.
pub const READ_CHUNK_NUMBERS: u32 = 1 << 20;
