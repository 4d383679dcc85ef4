//! Collectives, by which ranks exchange tensors. The trait [`Collectives`] has three implementations: a group
//! of one rank, which communicates nothing, c10d's Gloo for tensors on CPUs, and NCCL for tensors on GPUs. A
//! group has both transports and selects by the tensor's device. Which tensors a training step exchanges, and
//! how ranks are arranged in a mesh, is decided elsewhere.
//!
//! ```text
//! Rendezvous::join (store, attempt, rank) -> Rendezvous::group (name, members) -> Box<dyn Collectives>
//!     -> all_gather(..) -> Pending -> wait
//! ```
//! All members of a group call the same operations in the same order. Every operation is asynchronous: it
//! returns a [`Pending`] that keeps its tensors alive and must be waited for before they are read or written.
//! Operations of a [`StreamGroup`] are ordered by a CUDA stream, like kernels.

mod by_device;
mod error;
mod ffi;
mod gloo;
mod heartbeat;
mod member;
mod nccl;
mod pending;
mod rendezvous;
mod single_process;
mod store;
mod traffic;

use std::fmt::Debug;

pub use error::{CollectiveError, Diagnosis, RendezvousError};
pub use nccl::StreamGroup;
pub use pending::Pending;
pub use rendezvous::{Membership, Rendezvous, report_failure, serve_store, serve_store_with};
pub use single_process::SingleProcessGroup;
pub use store::{RendezvousKey, Store, StoreError, StoreSettings};
use tch::Tensor;
pub use traffic::Traffic;

/// Element-wise operation by which an all-reduce combines the ranks' values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Sum of the values.
    Sum,
    /// Largest of the values.
    Max,
    /// Smallest of the values.
    Min,
}

impl Reduction {
    /// Code of the reduction in the C API.
    fn code(self) -> i64 {
        match self {
            Self::Sum => 0,
            Self::Max => 1,
            Self::Min => 2,
        }
    }
}

fn no_stream(group: &str, device_idx: usize) -> CollectiveError {
    CollectiveError::Argument {
        operation: "collectives in a stream",
        group: group.to_owned(),
        expected: format!("ranks that are connected by GPUs, this one by GPU {device_idx}"),
        got: "others".into(),
    }
}

/// Collective operations of one group of ranks. Tensors are dense and contiguous; `output` is overwritten.
pub trait Collectives: Send + Debug {
    /// Name of the group, for error messages.
    fn name(&self) -> &str;

    /// Index of this rank in the group.
    fn rank(&self) -> usize;

    /// Number of ranks in the group.
    fn size(&self) -> usize;

    /// Replaces `tensor` on every rank by the reduction over all ranks. The result is bitwise equal
    /// everywhere.
    ///
    /// # Errors
    /// When the tensor is not contiguous, or the operation cannot be started.
    fn all_reduce(&mut self, tensor: &Tensor, reduction: Reduction) -> Result<Pending, CollectiveError>;

    /// Sums `input` (`size` equal chunks along the first dimension) over ranks and writes this rank's chunk
    /// to `output`. bf16 chunks are added in fp32 and rounded once, in the order of ranks. Other dtypes are
    /// added in the order of ranks, too, on CPUs, and in an order of NCCL's choice on GPUs. The result does
    /// not depend on timing.
    ///
    /// # Errors
    /// When `input` does not have `size` times the elements of `output`, or the operation cannot be started.
    fn reduce_scatter(&mut self, output: &Tensor, input: &Tensor) -> Result<Pending, CollectiveError>;

    /// Concatenates the `input` of all ranks in `output`, in the order of ranks.
    ///
    /// # Errors
    /// When `output` does not have `size` times the elements of `input`, or the operation cannot be started.
    fn all_gather(&mut self, output: &Tensor, input: &Tensor) -> Result<Pending, CollectiveError>;

    /// Sends `input_splits[r]` rows of `input` to rank `r` and receives `output_splits[r]` rows from it. Rows
    /// are slices along the first dimension, in the order of ranks.
    ///
    /// # Errors
    /// When splits do not add up to the rows of their tensors, or the operation cannot be started.
    fn all_to_all(
        &mut self,
        output: &Tensor,
        input: &Tensor,
        output_splits: &[i64],
        input_splits: &[i64],
    ) -> Result<Pending, CollectiveError>;

    /// Replaces `tensor` on every rank by that of rank `root`.
    ///
    /// # Errors
    /// When `root` is not a rank of the group, or the operation cannot be started.
    fn broadcast(&mut self, tensor: &Tensor, root: usize) -> Result<Pending, CollectiveError>;

    /// Makes a group of the same ranks whose operations are ordered by libtorch's current stream on GPU
    /// `device_idx`. All members must call it in the same order.
    ///
    /// # Errors
    /// When the group has no GPU transport or uses another GPU, or its GPUs cannot be connected.
    fn in_stream(&mut self, device_idx: usize) -> Result<StreamGroup, CollectiveError> {
        Err(no_stream(self.name(), device_idx))
    }

    /// Blocks until every rank has called it.
    ///
    /// # Errors
    /// When a rank is lost or times out.
    fn barrier(&mut self) -> Result<(), CollectiveError>;
}
