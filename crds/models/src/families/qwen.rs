//! Families of Qwen.

pub(super) mod qwen2;
pub(super) mod qwen2_moe;
pub(super) mod qwen2_vl;
pub(super) mod qwen3;
pub(super) mod qwen3_moe;
pub(super) mod qwen3_vl;
