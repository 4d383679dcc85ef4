//! A group over NCCL, for tensors on GPUs, whose operations run on a CUDA stream of the group. An operation
//! waits for work that was launched before it, and work launched after its wait waits for it. So a collective
//! that is started early overlaps with computation. `by_device` selects the transport of a tensor.
//!
//! A waiting thread polls the operation instead of blocking in CUDA. If a peer is lost or late, the
//! communicator is aborted on this rank, and the error names the peer.
//!
//! The bindings are our own (`csrc/nccl.cpp`). `cudarc` looks for `libnccl.so`, which only development
//! packages install, never for libtorch's `libnccl.so.2`, and panics if it finds none.

mod in_stream;
mod link;

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tch::{Kind, Tensor};

pub use self::in_stream::StreamGroup;
use self::link::{CudaEvent, Link, await_until};
use super::ffi;
use super::member::{GroupMember, add_chunks, check_sizes, check_splits};
use super::pending::{Finish, Work};
use super::store::Store;
use super::traffic::{all_gather, num_bytes};
use super::{CollectiveError, Collectives, Pending, Reduction};
use crate::ffi::{Outcome, raw};

/// A connected group of ranks with one GPU each.
pub(super) struct NcclGroup {
    link: Arc<Link>,
    member: Arc<GroupMember>,
    num_started: Arc<AtomicU64>,
}

impl fmt::Debug for NcclGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NcclGroup")
            .field("member", &self.member)
            .field("num_started", &self.num_started)
            .finish()
    }
}

/// Records that another operation begins, and returns its sequence number.
fn started(member: &GroupMember, num_started: &AtomicU64) -> u64 {
    let sequence = num_started.fetch_add(1, Ordering::Relaxed) + 1;
    member.started(sequence);
    sequence
}

/// Name of the connection of a group's GPUs, for errors.
const CONNECT: &str = "connecting GPUs";

impl NcclGroup {
    /// Connects GPU `device_idx` of this machine with those of the other members, by the NCCL unique id that
    /// the first member writes to the store of `attempt`.
    pub(super) fn join(
        store: &Store,
        attempt: u64,
        member: Arc<GroupMember>,
        device_idx: usize,
    ) -> Result<Self, CollectiveError> {
        link::version().map_err(|error| CollectiveError::NoNccl {
            group: member.name.clone(),
            message: error.into_message(),
        })?;
        let deadline = Instant::now() + member.timeout;
        member.started(1);
        let connect = || {
            let name = link::agree_on_name(
                store,
                &format!("nccl/{attempt}/{}", member.name),
                member.place,
                deadline,
            )?;
            let link = Link::join(&name, member.place, member.size(), device_idx)?;
            await_until(deadline, || link.is_settled())?;
            Ok(link)
        };
        let link = connect().map_err(|message| member.failed(CONNECT, 1, message))?;
        Ok(Self { link: Arc::new(link), member, num_started: Arc::new(AtomicU64::new(1)) })
    }

    fn start(
        &mut self,
        operation: &'static str,
        keeps: Vec<Tensor>,
        finish: Option<Finish>,
        call: impl FnOnce(*mut c_void) -> Outcome,
    ) -> Result<Pending, CollectiveError> {
        let sequence = started(&self.member, &self.num_started);
        let deadline = Instant::now() + self.member.timeout;
        let link = Arc::clone(&self.link);
        let enqueue = || {
            link.call(operation, call)?;
            await_until(deadline, || link.is_settled())?;
            link.mark()
        };
        let member = Arc::clone(&self.member);
        let mark = enqueue().map_err(|message| {
            link.give_up();
            member.failed(operation, sequence, message)
        })?;
        let work = NcclWork { mark, link, operation, sequence, member, deadline, _keeps: keeps };
        Ok(Pending::of(Box::new(work), finish))
    }

    fn exchange(
        &mut self,
        operation: &'static str,
        output: Tensor,
        output_splits: &[i64],
        input: Tensor,
        input_splits: &[i64],
        finish: Option<Finish>,
    ) -> Result<Pending, CollectiveError> {
        self.member.count_exchange(&output, output_splits, &input, input_splits);
        let keeps = vec![output.shallow_clone(), input.shallow_clone()];
        let size = self.member.size() as i32;
        let (into, from) = (output_splits.as_ptr(), input_splits.as_ptr());
        self.start(operation, keeps, finish, |link| {
            // SAFETY: a live communicator, borrowed tensors, and one split for each rank (checked).
            unsafe { ffi::rlt_nccl_all_to_all(link, raw(&output), raw(&input), into, from, size) }
        })
    }
}

impl Collectives for NcclGroup {
    fn name(&self) -> &str {
        &self.member.name
    }

    fn rank(&self) -> usize {
        self.member.place
    }

    fn size(&self) -> usize {
        self.member.size()
    }

    fn all_reduce(&mut self, tensor: &Tensor, reduction: Reduction) -> Result<Pending, CollectiveError> {
        self.member.admit_all_reduce(tensor)?;
        self.start("all-reduce", vec![tensor.shallow_clone()], None, |link| {
            // SAFETY: a live communicator and a borrowed tensor.
            unsafe { ffi::rlt_nccl_all_reduce(link, raw(tensor), reduction.code(), false) }
        })
    }

    /// 16-bit values are sent to the ranks that add them in fp32, as the trait requires: NCCL would round
    /// each partial sum. Wider values are added by NCCL, in an order that depends only on sizes and machines.
    fn reduce_scatter(&mut self, output: &Tensor, input: &Tensor) -> Result<Pending, CollectiveError> {
        let size = self.size();
        check_sizes("reduce-scatter", &self.member.name, output, size as i64, input, 1)?;
        if matches!(input.kind(), Kind::BFloat16 | Kind::Half) {
            let input = input.detach().view([size as i64, -1]);
            let received = input.empty_like();
            let (output, chunks) = (output.detach(), received.shallow_clone());
            let finish = move || add_chunks(&output, &chunks);
            let splits = vec![1; size];
            let finish: Finish = Box::new(finish);
            return self.exchange("reduce-scatter", received, &splits, input, &splits, Some(finish));
        }
        self.member.meter.count(all_gather(size, num_bytes(output)));
        let keeps = vec![output.shallow_clone(), input.shallow_clone()];
        self.start("reduce-scatter", keeps, None, |link| {
            // SAFETY: a live communicator and borrowed tensors.
            unsafe { ffi::rlt_nccl_reduce_scatter(link, raw(output), raw(input)) }
        })
    }

    fn all_gather(&mut self, output: &Tensor, input: &Tensor) -> Result<Pending, CollectiveError> {
        self.member.admit_all_gather(output, input)?;
        let keeps = vec![output.shallow_clone(), input.shallow_clone()];
        self.start("all-gather", keeps, None, |link| {
            // SAFETY: a live communicator and borrowed tensors.
            unsafe { ffi::rlt_nccl_all_gather(link, raw(output), raw(input), false) }
        })
    }

    fn all_to_all(
        &mut self,
        output: &Tensor,
        input: &Tensor,
        output_splits: &[i64],
        input_splits: &[i64],
    ) -> Result<Pending, CollectiveError> {
        check_splits(&self.member.name, self.size(), output, output_splits, input, input_splits)?;
        self.exchange("all-to-all", output.detach(), output_splits, input.detach(), input_splits, None)
    }

    fn broadcast(&mut self, tensor: &Tensor, root: usize) -> Result<Pending, CollectiveError> {
        self.member.admit_broadcast(tensor, root)?;
        self.start("broadcast", vec![tensor.shallow_clone()], None, |link| {
            // SAFETY: a live communicator and a borrowed tensor.
            unsafe { ffi::rlt_nccl_broadcast(link, raw(tensor), root as i32) }
        })
    }

    fn in_stream(&mut self, device_idx: usize) -> Result<StreamGroup, CollectiveError> {
        if self.link.device_idx() != device_idx {
            return Err(super::no_stream(&self.member.name, device_idx));
        }
        let (link, member) = (Arc::clone(&self.link), Arc::clone(&self.member));
        Ok(StreamGroup::new(link, member, Arc::clone(&self.num_started)))
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        let device = tch::Device::Cuda(self.link.device_idx());
        self.all_reduce(&Tensor::zeros([1], (Kind::Float, device)), Reduction::Sum)?.wait()
    }
}

/// An operation on the group's stream, with what an error message needs.
struct NcclWork {
    mark: CudaEvent,
    link: Arc<Link>,
    operation: &'static str,
    sequence: u64,
    member: Arc<GroupMember>,
    deadline: Instant,
    _keeps: Vec<Tensor>,
}

impl NcclWork {
    fn finish(&self) -> Result<(), String> {
        await_until(self.deadline, || Ok(self.link.is_settled()? && self.mark.is_past()?))
            .and_then(|()| self.mark.compute_after())
            .inspect_err(|_| self.link.give_up())
    }
}

impl Work for NcclWork {
    fn operation(&self) -> &'static str {
        self.operation
    }

    fn wait(&mut self) -> Result<(), CollectiveError> {
        self.finish().map_err(|message| self.member.failed(self.operation, self.sequence, message))
    }

    fn settle(&mut self) {
        drop(self.finish());
    }
}

#[cfg(test)]
mod tests;
