//! Collectives: how ranks exchange tensors. One trait, [`Collectives`], with three implementations: a group
//! of one rank, which moves nothing, c10d's Gloo for tensors on CPUs, and NCCL for tensors on GPUs. A group
//! has both transports and selects by the tensor's device. Which tensors a training step exchanges, and how
//! ranks are laid out on a mesh, is not known here.
//!
//! ```text
//! Rendezvous::join (store, attempt, rank) -> Rendezvous::group (name, members) -> Box<dyn Collectives>
//!     -> all_gather(..) -> Pending -> wait
//! ```
//! All members of a group call the same operations in the same order. Every operation is asynchronous: it
//! returns a [`Pending`] that keeps its tensors and must be waited for before they are read or written. Those
//! of a [`StreamGroup`] are work of a GPU's stream like any kernel.

mod alone;
mod border;
mod by_device;
mod error;
mod gloo;
mod nccl;
mod pending;
mod pulse;
mod rendezvous;
mod seat;
mod store;
mod traffic;

use std::fmt::Debug;

pub use alone::Alone;
pub use error::{CollectiveError, Diagnosis, RendezvousError};
pub use nccl::StreamGroup;
pub use pending::Pending;
pub use rendezvous::{Membership, Rendezvous, report_failure, serve_store};
pub use store::{Store, StoreError};
use tch::Tensor;
pub use traffic::Traffic;

/// How an all-reduce combines the ranks' values, element by element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

impl Reduction {
    /// Its number at the C border.
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

/// The operations of one group of ranks. Tensors are dense and contiguous; `output` is overwritten.
pub trait Collectives: Send + Debug {
    /// The group's name, as errors give it.
    fn name(&self) -> &str;

    /// This rank's place in the group.
    fn rank(&self) -> usize;

    /// Ranks of the group.
    fn size(&self) -> usize;

    /// Replaces `tensor` on every rank by the reduction of all. The result is the same bits everywhere.
    ///
    /// # Errors
    /// When the tensor is not contiguous, or the operation could not be started.
    fn all_reduce(&mut self, tensor: &Tensor, reduction: Reduction) -> Result<Pending, CollectiveError>;

    /// Sums `input` (`size` equal chunks along the first dim) over ranks; `output` becomes the chunk of this
    /// rank. Chunks of bf16 are added in fp32 and rounded once, in the order of ranks; others too on CPUs,
    /// and on GPUs in an order of NCCL's own. The result does not depend on timing.
    ///
    /// # Errors
    /// When `input` has not `size` times the elements of `output`, or the operation could not be started.
    fn reduce_scatter(&mut self, output: &Tensor, input: &Tensor) -> Result<Pending, CollectiveError>;

    /// Lays `input` of every rank end to end in `output`, in the order of ranks.
    ///
    /// # Errors
    /// When `output` has not `size` times the elements of `input`, or the operation could not be started.
    fn all_gather(&mut self, output: &Tensor, input: &Tensor) -> Result<Pending, CollectiveError>;

    /// Sends `input_splits[r]` rows of `input` to rank `r` and receives `output_splits[r]` rows from it, both
    /// in the order of ranks along the first dim.
    ///
    /// # Errors
    /// When splits do not add up to the rows of their tensors, or the operation could not be started.
    fn all_to_all(
        &mut self,
        output: &Tensor,
        input: &Tensor,
        output_splits: &[i64],
        input_splits: &[i64],
    ) -> Result<Pending, CollectiveError>;

    /// Replaces `tensor` on every rank by that of `root`.
    ///
    /// # Errors
    /// When `root` is no rank of the group, or the operation could not be started.
    fn broadcast(&mut self, tensor: &Tensor, root: usize) -> Result<Pending, CollectiveError>;

    /// The same ranks for operations in the order of libtorch's current stream on GPU `device_idx`. All
    /// members ask for it alike.
    ///
    /// # Errors
    /// When the group exchanges nothing between GPUs, or is on another one, or they could not be connected.
    fn in_stream(&mut self, device_idx: usize) -> Result<StreamGroup, CollectiveError> {
        Err(no_stream(self.name(), device_idx))
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// When a rank is lost or too late.
    fn barrier(&mut self) -> Result<(), CollectiveError>;
}
