//! Placement of tensors, and of work, on ranks.

pub mod mesh;
pub mod partition;
pub mod tensor_cut;
pub mod tensor_parallel;
pub mod tensor_shard;
