//! Placement of tensors, and of work, on ranks.

mod axis_place;
mod chunks;
pub mod local_tensor;
pub mod mesh;
pub mod parameter_layout;
pub mod partition;
pub mod tensor_parallel;
pub mod tensor_run;
