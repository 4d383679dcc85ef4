//! CUDA in a binary that is linked without it: run-time detection, bindings to the driver, streams, graphs,
//! and the launchers of our own kernels (`csrc/cuda/`).

mod activation;
mod adamw;
mod attention;
mod decode_state;
mod digest;
mod dropout;
mod experts;
mod grouped;
mod head;
mod kernels;
mod launch_checks;
mod norm;
mod quantized;
mod rope;
mod rows;
mod runtime;
mod sampling;
mod squares;
mod state_updates;

pub use activation::SwiGlu;
pub use adamw::{AdamWTable, AdamWTensor, FusedAdamW};
pub use attention::{PagedDecodeAttention, attention_splits, attention_workspace_bytes};
pub use decode_state::{Advance, EmbedGather, MarkSeen};
pub(crate) use detect::gpu_memory;
pub use detect::{CudaStatus, CudaVersion, Gpu, GpuLink, detect_cuda, gpus, link_between};
pub use digest::DeviceDigest;
pub use driver::Driver;
pub use dropout::DropoutMask;
pub use experts::{CombineRows, ExpertScores, RouteExperts, RouteRule, SortRows};
pub use graph::Graph;
pub use grouped::{GroupedLinear, GroupedLinearDw, GroupedLinearDx};
pub use head::{HeadBackward, HeadForward};
pub use kernels::{BUILT_FOR, Kernels};
pub use libraries::{CudaLibrary, cuda_libraries};
pub use norm::RmsNormResidual;
pub use quantized::{Dequantize, QUANTIZED_FEW_ROWS, QUANTIZED_PARTS, QuantizedLinear, QuantizedRows};
pub use rope::RopeAndWriteKv;
pub use rows::{GatedRows, NormRows, RopeRows};
pub use runtime::driver;
use runtime::{detect, graph, libraries, module, stream};
pub use sampling::{SAMPLING_ROW_WORDS, Sample, SamplingRow, sampling_workspace_bytes};
pub use squares::{NormOfSquares, SquaresTable, SumsOfSquares};
pub use state_updates::{ApplyUpdates, pinned};
pub use stream::{Event, Stream, StreamScope};

use crate::Error;
use crate::ffi::{check, owned_text, rlt_load_cuda};

/// Loads the driver and libtorch's CUDA library, if present, and returns whether CUDA can be used. Without a
/// driver nothing else is loaded, so a CPU machine needs none of CUDA's libraries. Call it before the first
/// use of a device.
///
/// # Errors
/// When libtorch fails while it registers its devices.
pub fn load_cuda() -> Result<bool, Error> {
    Ok(missing_cuda()?.is_none())
}

/// Loads CUDA like [`load_cuda`] and returns the dynamic linker's message if CUDA cannot be used.
///
/// # Errors
/// When libtorch fails while it registers its devices.
pub fn missing_cuda() -> Result<Option<String>, Error> {
    let mut missing = std::ptr::null_mut();
    // SAFETY: a place for the answer.
    check("loading CUDA", unsafe { rlt_load_cuda(&mut missing) })?;
    if missing.is_null() {
        let none = (!tch::Cuda::is_available()).then(|| "libtorch sees no CUDA device".to_owned());
        return Ok(none);
    }
    // SAFETY: a text of `strdup` with no other reference.
    Ok(Some(unsafe { owned_text(missing) }))
}
