//! A group over c10d's Gloo, and what it has pending. Who is in a group is decided in `rendezvous`.

use std::ffi::{CString, c_void};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tch::{Kind, Tensor, no_grad};

use super::border;
use super::pulse::Pulse;
use super::store::Store;
use super::{CollectiveError, Collectives, Reduction, RendezvousError};
use crate::border::{Outcome, check, raw};

/// What a group needs to join: its name, its members' global ranks, and this rank's place among them.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    pub(super) name: String,
    pub(super) members: Vec<usize>,
    pub(super) place: usize,
}

/// A connected group of ranks on CPUs.
pub struct GlooGroup {
    pointer: *mut c_void,
    seat: Arc<Seat>,
    pulse: Arc<Pulse>,
    num_started: u64,
}

// SAFETY: c10d guards the group's queue by a mutex; the group belongs to no thread.
unsafe impl Send for GlooGroup {}

impl fmt::Debug for GlooGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GlooGroup").field("seat", &self.seat).field("num_started", &self.num_started).finish()
    }
}

impl GlooGroup {
    /// Connects to the other members over the interface that holds `address`.
    pub(super) fn join(
        store: &Store,
        seat: Seat,
        address: IpAddr,
        timeout: Duration,
        pulse: Arc<Pulse>,
    ) -> Result<Self, RendezvousError> {
        let name = text("name of a group", format!("group/{}", seat.name))?;
        let text_address = text("address", address.to_string())?;
        let (rank, size) = (seat.place as i32, seat.members.len() as i32);
        let mut pointer = std::ptr::null_mut();
        // SAFETY: a live store, NUL-terminated texts and a place for the result.
        let outcome = unsafe {
            border::rlt_group_join(
                store.lend(),
                name.as_ptr(),
                rank,
                size,
                text_address.as_ptr(),
                milliseconds(timeout),
                &mut pointer,
            )
        };
        check("connecting a group", outcome)
            .map_err(|source| RendezvousError::Connect { group: seat.name.clone(), source })?;
        Ok(Self { pointer, seat: Arc::new(seat), pulse, num_started: 0 })
    }

    fn start(
        &mut self,
        operation: &'static str,
        keeps: Vec<Tensor>,
        finish: Option<Finish>,
        call: impl FnOnce(*mut c_void, *mut *mut c_void) -> Outcome,
    ) -> Result<Pending, CollectiveError> {
        self.num_started += 1;
        self.pulse.started(&self.seat.name, self.num_started);
        let mut pointer = std::ptr::null_mut();
        let outcome = call(self.pointer, &mut pointer);
        let mut work = Work {
            pointer,
            operation,
            sequence: self.num_started,
            seat: Arc::clone(&self.seat),
            pulse: Arc::clone(&self.pulse),
            _keeps: keeps,
        };
        work.check(outcome)?;
        Ok(Pending { work: Some(work), finish })
    }

    fn argument(&self, operation: &'static str, expected: &str, got: String) -> CollectiveError {
        CollectiveError::Argument { operation, group: self.seat.name.clone(), expected: expected.into(), got }
    }

    fn exchange(
        &mut self,
        operation: &'static str,
        (output, output_splits): (Tensor, &[i64]),
        (input, input_splits): (Tensor, &[i64]),
        finish: Option<Finish>,
    ) -> Result<Pending, CollectiveError> {
        let keeps = vec![output.shallow_clone(), input.shallow_clone()];
        self.start(operation, keeps, finish, |group, out| {
            // SAFETY: a live group, borrowed tensors, one split for each rank (checked) and a place for the result.
            unsafe {
                border::rlt_all_to_all(
                    group,
                    raw(&output),
                    raw(&input),
                    output_splits.as_ptr(),
                    input_splits.as_ptr(),
                    out,
                )
            }
        })
    }
}

impl Collectives for GlooGroup {
    fn name(&self) -> &str {
        &self.seat.name
    }

    fn rank(&self) -> usize {
        self.seat.place
    }

    fn size(&self) -> usize {
        self.seat.members.len()
    }

    fn all_reduce(&mut self, tensor: &Tensor, reduction: Reduction) -> Result<Pending, CollectiveError> {
        check_sizes("all-reduce", &self.seat.name, (tensor, 1), (tensor, 1))?;
        let code = match reduction {
            Reduction::Sum => 0,
            Reduction::Max => 1,
            Reduction::Min => 2,
        };
        self.start("all-reduce", vec![tensor.shallow_clone()], None, |group, out| {
            // SAFETY: a live group, a borrowed tensor and a place for the result.
            unsafe { border::rlt_all_reduce(group, raw(tensor), code, out) }
        })
    }

    /// Gloo's own reduce-scatter is an all-reduce of which most is thrown away, twice the bytes. Every rank sends every
    /// other the chunk it needs, once, and adds what it received.
    fn reduce_scatter(&mut self, output: &Tensor, input: &Tensor) -> Result<Pending, CollectiveError> {
        let size = self.size();
        check_sizes("reduce-scatter", &self.seat.name, (output, size as i64), (input, 1))?;
        let input = input.detach().view([size as i64, -1]);
        let received = input.empty_like();
        let (output, chunks) = (output.detach(), received.shallow_clone());
        let finish = move || add_chunks(&output, &chunks);
        let splits = vec![1; size];
        self.exchange("reduce-scatter", (received, &splits), (input, &splits), Some(Box::new(finish)))
    }

    fn all_gather(&mut self, output: &Tensor, input: &Tensor) -> Result<Pending, CollectiveError> {
        check_sizes("all-gather", &self.seat.name, (output, 1), (input, self.size() as i64))?;
        let keeps = vec![output.shallow_clone(), input.shallow_clone()];
        // c10d wants the output's first dim to be `size` times the input's.
        let (flat_output, flat_input) = (output.detach().view(-1), input.detach().view(-1));
        self.start("all-gather", keeps, None, |group, out| {
            // SAFETY: a live group, borrowed tensors and a place for the result.
            unsafe { border::rlt_all_gather(group, raw(&flat_output), raw(&flat_input), out) }
        })
    }

    fn all_to_all(
        &mut self,
        output: &Tensor,
        input: &Tensor,
        output_splits: &[i64],
        input_splits: &[i64],
    ) -> Result<Pending, CollectiveError> {
        check_splits(&self.seat.name, self.size(), (output, output_splits), (input, input_splits))?;
        self.exchange("all-to-all", (output.detach(), output_splits), (input.detach(), input_splits), None)
    }

    fn broadcast(&mut self, tensor: &Tensor, root: usize) -> Result<Pending, CollectiveError> {
        check_sizes("broadcast", &self.seat.name, (tensor, 1), (tensor, 1))?;
        if root >= self.size() {
            let expected = format!("a root below {}", self.size());
            return Err(self.argument("broadcast", &expected, root.to_string()));
        }
        self.start("broadcast", vec![tensor.shallow_clone()], None, |group, out| {
            // SAFETY: a live group, a borrowed tensor and a place for the result.
            unsafe { border::rlt_broadcast(group, raw(tensor), root as i64, out) }
        })
    }

    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.start("barrier", Vec::new(), None, |group, out| {
            // SAFETY: a live group and a place for the result.
            unsafe { border::rlt_barrier(group, out) }
        })?
        .wait()
    }
}

impl Drop for GlooGroup {
    fn drop(&mut self) {
        // SAFETY: the group was made by `rlt_group_join` and is freed once, here.
        unsafe { border::rlt_group_free(self.pointer) }
    }
}

/// `output` = the sum over the first dim of `chunks`, row after row, in fp32.
fn add_chunks(output: &Tensor, chunks: &Tensor) {
    no_grad(|| {
        let mut sum = chunks.get(0).to_kind(Kind::Float);
        for place in 1..chunks.size()[0] {
            sum += chunks.get(place);
        }
        let flat = output.view(-1);
        flat.shallow_clone().copy_(&sum);
    });
}

type Finish = Box<dyn FnOnce() + Send>;

/// An operation under way. Its tensors are kept, and must not be read or written before [`Pending::wait`] returns;
/// dropped unwaited, it waits and forgets what went wrong.
#[must_use = "the tensors of an operation can be used only after it was waited for"]
pub struct Pending {
    work: Option<Work>,
    finish: Option<Finish>,
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("operation", &self.work.as_ref().map(|work| work.operation)).finish()
    }
}

impl Pending {
    /// An operation that is complete already.
    pub(super) fn done() -> Self {
        Self { work: None, finish: None }
    }

    /// Returns when the operation is complete on this rank.
    ///
    /// # Errors
    /// When a rank is lost or too late; the error names it.
    pub fn wait(mut self) -> Result<(), CollectiveError> {
        if let Some(mut work) = self.work.take() {
            // SAFETY: a live work object.
            let outcome = unsafe { border::rlt_work_wait(work.pointer) };
            work.check(outcome)?;
        }
        if let Some(finish) = self.finish.take() {
            finish();
        }
        Ok(())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(work) = &self.work {
            // SAFETY: a live work object.
            let outcome = unsafe { border::rlt_work_wait(work.pointer) };
            drop(check(work.operation, outcome));
        }
    }
}

fn text(name: &'static str, text: String) -> Result<CString, RendezvousError> {
    CString::new(text).map_err(|error| RendezvousError::Argument {
        name,
        expected: "a text without NUL bytes".into(),
        got: format!("{:?}", String::from_utf8_lossy(&error.into_vec())),
    })
}

/// For C++: whole milliseconds, at least one.
fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 2).max(1)
}

/// A work object of c10d with what an error message needs.
struct Work {
    pointer: *mut c_void,
    operation: &'static str,
    sequence: u64,
    seat: Arc<Seat>,
    pulse: Arc<Pulse>,
    _keeps: Vec<Tensor>,
}

// SAFETY: a c10d work object may be waited for from any thread.
unsafe impl Send for Work {}

impl Work {
    fn check(&mut self, outcome: Outcome) -> Result<(), CollectiveError> {
        check(self.operation, outcome).map_err(|error| {
            let message = match error {
                crate::Error::Libtorch { message, .. } => message,
                other => other.to_string(),
            };
            let diagnosis = Box::new(self.pulse.diagnose(&self.seat.name, self.sequence, &self.seat.members));
            let (operation, group) = (self.operation, self.seat.name.clone());
            CollectiveError::Failed { operation, group, sequence: self.sequence, diagnosis, message }
        })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // SAFETY: null, or a work object that is freed once, here.
        unsafe { border::rlt_work_free(self.pointer) }
    }
}

/// Contiguous tensors of one dtype whose numbers of elements, times their factors, are equal.
pub(super) fn check_sizes(
    operation: &'static str,
    group: &str,
    (output, output_factor): (&Tensor, i64),
    (input, input_factor): (&Tensor, i64),
) -> Result<(), CollectiveError> {
    let numbers = (output.numel() as i64 * output_factor, input.numel() as i64 * input_factor);
    let contiguous = output.is_contiguous() && input.is_contiguous();
    if numbers.0 == numbers.1 && output.kind() == input.kind() && contiguous {
        return Ok(());
    }
    Err(CollectiveError::Argument {
        operation,
        group: group.to_owned(),
        expected: format!(
            "contiguous tensors of one dtype, the output's elements times {output_factor} equal to the input's \
             times {input_factor}"
        ),
        got: format!(
            "output {:?} {:?}, input {:?} {:?}, contiguous: {contiguous}",
            output.size(),
            output.kind(),
            input.size(),
            input.kind()
        ),
    })
}

/// One split for each rank; together the rows of their tensor.
pub(super) fn check_splits(
    group: &str,
    size: usize,
    output: (&Tensor, &[i64]),
    input: (&Tensor, &[i64]),
) -> Result<(), CollectiveError> {
    for (tensor, splits) in [output, input] {
        let num_rows = tensor.size().first().copied().unwrap_or(0);
        let fits =
            splits.len() == size && splits.iter().all(|n| *n >= 0) && splits.iter().sum::<i64>() == num_rows;
        if !fits || !tensor.is_contiguous() || output.0.kind() != input.0.kind() {
            return Err(CollectiveError::Argument {
                operation: "all-to-all",
                group: group.to_owned(),
                expected: format!(
                    "contiguous tensors of one dtype and {size} splits that add up to the rows"
                ),
                got: format!("{:?} {:?} split by {splits:?}", tensor.size(), tensor.kind()),
            });
        }
    }
    Ok(())
}
