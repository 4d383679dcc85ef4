//! Families of DeepSeek.

pub(super) mod deepseek_v2;
pub(super) mod deepseek_v3;
