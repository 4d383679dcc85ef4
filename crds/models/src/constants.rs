//! Sizes that decoder and plan share: chunks in which weights are read, and the cache of image features.

/// Most bytes of image features that a vision tower caches for later steps.
pub const KEPT_FEATURES_BYTES: u64 = 256 << 20;
/// Number of model parameters that are read or initialized at a time.
pub const READ_CHUNK_NUMBERS: u32 = 1 << 20;
