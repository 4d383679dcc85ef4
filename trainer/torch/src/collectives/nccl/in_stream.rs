//! Collectives on the compute stream, like kernels: no events order them, no thread waits for them, and a
//! CUDA graph can capture them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tch::Tensor;

use super::link::{Link, await_until};
use super::{ffi, started};
use crate::collectives::member::GroupMember;
use crate::collectives::{CollectiveError, Reduction, Traffic};
use crate::cuda::Event;
use crate::ffi::{Outcome, raw};

/// Ranks with one GPU each, whose operations are ordered by libtorch's current stream. All of them enqueue
/// the same operations in the same order, and none may be in flight when the group is dropped.
///
/// During stream capture, operations become part of the graph, and each launch executes them. Execute each
/// one once before capturing, so that NCCL is connected.
pub struct StreamGroup {
    link: Arc<Link>,
    member: Arc<GroupMember>,
    num_started: Arc<AtomicU64>,
}

impl fmt::Debug for StreamGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamGroup").field("member", &self.member).finish()
    }
}

impl StreamGroup {
    pub(super) fn new(link: Arc<Link>, member: Arc<GroupMember>, num_started: Arc<AtomicU64>) -> Self {
        Self { link, member, num_started }
    }

    /// Records that this rank begins a series of operations, so that other ranks can see its progress.
    /// Returns the sequence number of the series.
    pub fn begin(&self) -> u64 {
        started(&self.member, &self.num_started)
    }

    /// Replaces `tensor` on every rank by the reduction over all ranks, bitwise equal everywhere.
    ///
    /// # Errors
    /// When the tensor is not contiguous, or NCCL fails.
    pub fn all_reduce(&self, tensor: &Tensor, reduction: Reduction) -> Result<(), CollectiveError> {
        self.member.admit_all_reduce(tensor)?;
        self.put("all-reduce", |link| {
            // SAFETY: a live communicator and a borrowed tensor, whose memory lives as long as the work of
            // the stream.
            unsafe { ffi::rlt_nccl_all_reduce(link, raw(tensor), reduction.code(), true) }
        })
    }

    /// Concatenates the `input` of all ranks in `output`, in the order of ranks.
    ///
    /// # Errors
    /// When `output` does not have the elements of `input` once per rank, or NCCL fails.
    pub fn all_gather(&self, output: &Tensor, input: &Tensor) -> Result<(), CollectiveError> {
        self.member.admit_all_gather(output, input)?;
        self.put("all-gather", |link| {
            // SAFETY: as above.
            unsafe { ffi::rlt_nccl_all_gather(link, raw(output), raw(input), true) }
        })
    }

    fn put(
        &self,
        operation: &'static str,
        call: impl FnOnce(*mut std::ffi::c_void) -> Outcome,
    ) -> Result<(), CollectiveError> {
        let deadline = Instant::now() + self.member.timeout;
        let put = || {
            self.link.call(operation, call)?;
            // NCCL enqueues the operation from another thread. Later work of the stream must follow it, so
            // this thread waits until it is enqueued.
            await_until(deadline, || self.link.is_settled())
        };
        put().map_err(|message| self.failed(operation, self.num_started.load(Ordering::Relaxed), message))
    }

    /// Blocks this thread until `event`, recorded after the series `sequence`, has happened.
    ///
    /// # Errors
    /// When a rank is lost or times out. The error names it, and operations in flight on this rank are
    /// aborted.
    pub fn wait(&self, operation: &'static str, sequence: u64, event: &Event) -> Result<(), CollectiveError> {
        let deadline = Instant::now() + self.member.timeout;
        let is_done = || {
            let happened = event.has_happened().map_err(|error| error.to_string())?;
            Ok(self.link.is_settled()? && happened)
        };
        await_until(deadline, is_done).map_err(|message| self.failed(operation, sequence, message))
    }

    fn failed(&self, operation: &'static str, sequence: u64, message: String) -> CollectiveError {
        self.link.give_up();
        self.member.failed(operation, sequence, message)
    }

    /// Returns the number of bytes that this rank has exchanged so far, in all of its groups.
    pub fn traffic(&self) -> Traffic {
        self.member.meter.total()
    }

    /// Counts the bytes that one launch of a captured graph exchanges. Capturing counted the first launch, so
    /// call this for each later one.
    pub fn count_again(&self, traffic: Traffic) {
        self.member.meter.count(traffic);
    }
}
