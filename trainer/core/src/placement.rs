//! Which rank has which part of the tensors, and of the work.

pub mod mesh;
pub mod partition;
pub mod tensor_cut;
pub mod tensor_parallel;
pub mod tensor_shard;
