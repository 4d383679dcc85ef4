//! Placement of tensors, and of work, on ranks.

mod axis_place;
pub mod local_tensor;
pub mod mesh;
pub mod partition;
mod regions;
pub mod tensor_parallel;
pub mod tensor_shard;
