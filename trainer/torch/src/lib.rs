//! All C++ and unsafe code of the trainer: fused kernels, attention over packed segments and paged caches,
//! the chunked vocabulary head, and services of libtorch that `tch` lacks. This crate has no reinforcement
//! learning.
//!
//! Every kernel is compiled for several instruction sets, one of which is selected at run time by the
//! features of the CPU. Every function also takes tensors on other devices, where it computes the same
//! formula by ATen's operations. The suffix of a tensor's name lists its dims: t tokens, d hidden width, h
//! query heads, k key/value heads, v vocabulary, b sequences; a head's width comes last.
//!
//! Operations inside of a model (`rms_norm`, `varlen_attention`, ...) panic on invalid shapes, like those of
//! tch; functions that take external data return [`Error`]. C++ exceptions are converted to errors.
//!
//! A binary that links this crate must find libtorch at run time; a build script's link arguments reach only
//! its own package, so each such package repeats the two lines of `trainer/build.rs`.

mod attention;
mod autograd;
mod cached_attention;
pub mod collectives;
pub mod cuda;
mod error;
mod experts;
mod ffi;
mod fused;
mod head;
mod linear;
mod on_device;
mod optim;
mod quantized;
mod services;
mod vocabulary_shard;

pub use attention::{AttentionScores, Segments, paged_attention, varlen_attention, write_kv};
pub use autograd::{backward, backward_many, set_grad};
pub use cached_attention::{CachedSegments, cached_attention};
pub use cuda::{load_cuda, missing_cuda};
pub use device_experts::DeviceRoutes;
pub use device_head::{ChunkLoss, DeviceHead};
pub use device_segments::{DeviceSegments, packed_attention};
pub use error::Error;
pub use experts::ExpertRows;
pub use flat::{FlatBuffer, forget_values};
pub use fused::{Activation, apply_rope, gated_activation, gated_activation_packed, rms_norm};
pub use head::{PerChunk, TokenDistribution, head_forward, head_forward_backward};
pub use host_callbacks::HostCallbacks;
pub use linear::{PackedLinear, has_one_order, linear};
pub use memory::{
    DeviceMemory, device_memory, machine_memory_bytes, peak_device_bytes, peak_own_bytes,
    peak_reserved_device_bytes, peak_rss_bytes, release_free_memory, reset_peak_device_bytes, reset_peak_rss,
    reuse_large_buffers, rss_bytes, settle_peak_memory,
};
pub use offload::{OffloadStorage, Offloaded, Prefetch};
use on_device::{device_experts, device_head, device_rows, device_segments};
pub use optim::{AdamWStep, adamw_step, global_norm};
pub use precision::{
    MatmulPrecision, cpu_has_amx, cuda_multiplies_in_tf32, is_deterministic, kernel_isa, set_deterministic,
    set_float32_matmul_precision, set_num_threads,
};
pub use process_end::skip_destructors_at_exit;
pub use profiler::Profile;
pub use quantized::{NESTED_BLOCK, NestedScales, QuantFormat, QuantLayout, QuantizedMatrix, dynamic_map};
use services::{
    flat, host_callbacks, memory, offload, precision, process_end, profiler, signals, tensor_data, upload,
    weight_arena,
};
pub use signals::{SIGNALS_THREAD, take_signals_apart};
pub use tensor_data::{
    f32_slice, f32_slice_mut, i32_slice, i32_slice_mut, i64_slice, tensor_from_bytes, tensor_from_vec, to_vec,
};
pub use upload::{upload, upload_f32};
pub use vocabulary_shard::{GatherStatistics, HeadWeight, VocabularyShard, sum_of_squares};
pub use weight_arena::{TensorFile, WeightArena};

#[cfg(test)]
mod tests;
