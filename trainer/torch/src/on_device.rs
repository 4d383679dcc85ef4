//! Operations on tensors of a GPU, composed of kernels of [`crate::cuda`].

pub(super) mod device_experts;
pub(super) mod device_head;
pub(super) mod device_rows;
pub(super) mod device_segments;
