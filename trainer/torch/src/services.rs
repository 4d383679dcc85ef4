//! Services of libtorch and of the process that `tch` does not offer: memory, files, threads and precision.

pub(super) mod flat;
pub(super) mod host_callbacks;
pub(super) mod memory;
pub(super) mod offload;
pub(super) mod precision;
pub(super) mod process_end;
pub(super) mod profiler;
pub(super) mod signals;
pub(super) mod tensor_data;
pub(super) mod upload;
pub(super) mod weight_arena;
