//! A group over c10d's Gloo, for tensors on CPUs. The members of a group are chosen in `rendezvous`.

use std::ffi::{CString, c_void};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tch::Tensor;

use super::ffi;
use super::member::{GroupMember, add_chunks, check_sizes, check_splits};
use super::pending::{Finish, Work};
use super::store::Store;
use super::{CollectiveError, Collectives, Pending, Reduction, RendezvousError};
use crate::ffi::{Outcome, check, raw};

/// Largest number of bytes that a rank receives at once in a reduce-scatter before it adds them. The receive
/// buffer is needed in addition to the full gradient. A layer of a small model is shorter, so that its
/// communication overlaps with computation.
const RECEIVED_BYTES: i64 = 16 << 20;

/// A connected group of ranks on CPUs.
pub(super) struct GlooGroup {
    pointer: *mut c_void,
    member: Arc<GroupMember>,
    num_started: u64,
}

// SAFETY: c10d guards the group's queue by a mutex; the group belongs to no thread.
unsafe impl Send for GlooGroup {}

impl fmt::Debug for GlooGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GlooGroup")
            .field("member", &self.member)
            .field("num_started", &self.num_started)
            .finish()
    }
}

impl GlooGroup {
    /// Connects to the other members over the network interface that has `address`.
    pub(super) fn join(
        store: &Store,
        member: Arc<GroupMember>,
        address: IpAddr,
    ) -> Result<Self, RendezvousError> {
        let name = text("name of a group", format!("group/{}", member.name))?;
        let text_address = text("address", address.to_string())?;
        let (rank, size) = (member.place as i32, member.size() as i32);
        let mut pointer = std::ptr::null_mut();
        // SAFETY: a live store, NUL-terminated texts and a place for the result.
        let outcome = unsafe {
            ffi::rlt_group_join(
                store.handle(),
                name.as_ptr(),
                rank,
                size,
                text_address.as_ptr(),
                milliseconds(member.timeout),
                &mut pointer,
            )
        };
        check("connecting a group", outcome)
            .map_err(|source| RendezvousError::Connect { group: member.name.clone(), source })?;
        Ok(Self { pointer, member, num_started: 0 })
    }

    fn start(
        &mut self,
        operation: &'static str,
        keeps: Vec<Tensor>,
        call: impl FnOnce(*mut c_void, *mut *mut c_void) -> Outcome,
    ) -> Result<Box<dyn Work>, CollectiveError> {
        self.num_started += 1;
        self.member.started(self.num_started);
        let mut pointer = std::ptr::null_mut();
        let outcome = call(self.pointer, &mut pointer);
        let member = Arc::clone(&self.member);
        let work = GlooWork { pointer, operation, sequence: self.num_started, member, _keeps: keeps };
        work.check(outcome)?;
        Ok(Box::new(work))
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
        let work = self.start(operation, keeps, |group, out| {
            // SAFETY: a live group, borrowed tensors, one split for each rank (checked) and a place for the
            // result.
            unsafe {
                ffi::rlt_all_to_all(
                    group,
                    raw(&output),
                    raw(&input),
                    output_splits.as_ptr(),
                    input_splits.as_ptr(),
                    out,
                )
            }
        })?;
        Ok(Pending::of(work, finish))
    }
}

impl GlooGroup {
    /// Writes to `output` the sum over all ranks of their row of `chunks` for this rank.
    fn reduce_piece(&mut self, output: Tensor, chunks: &Tensor) -> Result<Pending, CollectiveError> {
        let input = chunks.contiguous();
        let received = input.empty_like();
        let chunks = received.shallow_clone();
        let finish = move || add_chunks(&output, &chunks);
        let splits = vec![1; self.size()];
        self.exchange("reduce-scatter", received, &splits, input, &splits, Some(Box::new(finish)))
    }
}

impl Collectives for GlooGroup {
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
        let work = self.start("all-reduce", vec![tensor.shallow_clone()], |group, out| {
            // SAFETY: a live group, a borrowed tensor and a place for the result.
            unsafe { ffi::rlt_all_reduce(group, raw(tensor), reduction.code(), out) }
        })?;
        Ok(Pending::of(work, None))
    }

    /// Gloo's own reduce-scatter is an all-reduce whose result is mostly discarded, twice the bytes. Here
    /// every rank sends every other rank the chunk that it needs, once, and adds what it received. Chunks
    /// longer than [`RECEIVED_BYTES`] in total are sent piece by piece; only the last piece is asynchronous.
    fn reduce_scatter(&mut self, output: &Tensor, input: &Tensor) -> Result<Pending, CollectiveError> {
        let size = self.size() as i64;
        check_sizes("reduce-scatter", &self.member.name, output, size, input, 1)?;
        let (output, chunks) = (output.detach().view(-1), input.detach().view([size, -1]));
        let longest = (RECEIVED_BYTES / (size * chunks.kind().elt_size_in_bytes() as i64)).max(1);
        let mut start = 0;
        loop {
            let len = longest.min(output.numel() as i64 - start);
            let piece = (output.narrow(0, start, len), chunks.narrow(1, start, len));
            let pending = self.reduce_piece(piece.0, &piece.1)?;
            start += len;
            if start == output.numel() as i64 {
                return Ok(pending);
            }
            pending.wait()?;
        }
    }

    fn all_gather(&mut self, output: &Tensor, input: &Tensor) -> Result<Pending, CollectiveError> {
        self.member.admit_all_gather(output, input)?;
        let keeps = vec![output.shallow_clone(), input.shallow_clone()];
        // c10d wants the output's first dim to be `size` times the input's.
        let (flat_output, flat_input) = (output.detach().view(-1), input.detach().view(-1));
        let work = self.start("all-gather", keeps, |group, out| {
            // SAFETY: a live group, borrowed tensors and a place for the result.
            unsafe { ffi::rlt_all_gather(group, raw(&flat_output), raw(&flat_input), out) }
        })?;
        Ok(Pending::of(work, None))
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
        let work = self.start("broadcast", vec![tensor.shallow_clone()], |group, out| {
            // SAFETY: a live group, a borrowed tensor and a place for the result.
            unsafe { ffi::rlt_broadcast(group, raw(tensor), root as i64, out) }
        })?;
        Ok(Pending::of(work, None))
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        let work = self.start("barrier", Vec::new(), |group, out| {
            // SAFETY: a live group and a place for the result.
            unsafe { ffi::rlt_barrier(group, out) }
        })?;
        Pending::of(work, None).wait()
    }
}

impl Drop for GlooGroup {
    fn drop(&mut self) {
        // SAFETY: the group was made by `rlt_group_join` and is freed once, here.
        unsafe { ffi::rlt_group_free(self.pointer) }
    }
}

fn text(name: &'static str, text: String) -> Result<CString, RendezvousError> {
    CString::new(text).map_err(|error| RendezvousError::Argument {
        name,
        expected: "a text without NUL bytes".into(),
        got: format!("{:?}", String::from_utf8_lossy(&error.into_vec())),
    })
}

/// Returns whole milliseconds for C++, at least one.
fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 2).max(1)
}

/// A c10d work object, with what an error message needs.
struct GlooWork {
    pointer: *mut c_void,
    operation: &'static str,
    sequence: u64,
    member: Arc<GroupMember>,
    _keeps: Vec<Tensor>,
}

// SAFETY: a c10d work object may be waited for from any thread.
unsafe impl Send for GlooWork {}

impl GlooWork {
    fn check(&self, outcome: Outcome) -> Result<(), CollectiveError> {
        check(self.operation, outcome)
            .map_err(|error| self.member.failed(self.operation, self.sequence, error.into_message()))
    }
}

impl Work for GlooWork {
    fn operation(&self) -> &'static str {
        self.operation
    }

    fn wait(&mut self) -> Result<(), CollectiveError> {
        // SAFETY: a live work object.
        self.check(unsafe { ffi::rlt_work_wait(self.pointer) })
    }

    fn settle(&mut self) {
        // SAFETY: a live work object.
        drop(check(self.operation, unsafe { ffi::rlt_work_wait(self.pointer) }));
    }
}

impl Drop for GlooWork {
    fn drop(&mut self) {
        // SAFETY: null, or a work object that is freed once, here.
        unsafe { ffi::rlt_work_free(self.pointer) }
    }
}
