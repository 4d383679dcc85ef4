//! An NCCL communicator and events on its stream, safe to hold and to free, and the exchange of its unique
//! id. Errors are NCCL's messages, which the group wraps.

use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::super::ffi;
use super::super::store::Store;
use crate::Error;
use crate::ffi::{Outcome, check};

/// Size of the NCCL unique id by which members of a communicator find each other, in bytes.
const NAME_BYTES: usize = 128;
/// Duration for which a wait yields before it sleeps between polls.
const SPIN: Duration = Duration::from_millis(2);
const POLL: Duration = Duration::from_micros(200);
/// Timeout for sending the last bytes before a communicator is freed.
const FAREWELL: Duration = Duration::from_secs(10);

/// Returns the version of the loaded NCCL, such as 22809.
///
/// # Errors
/// When NCCL cannot be loaded.
pub(super) fn version() -> Result<i32, Error> {
    let mut version = 0;
    // SAFETY: a place for the answer.
    check("asking for NCCL's version", unsafe { ffi::rlt_nccl_version(&mut version) })?;
    Ok(version)
}

/// Polls until `is_done` is true, or fails at `deadline`.
pub(super) fn await_until(
    deadline: Instant,
    mut is_done: impl FnMut() -> Result<bool, String>,
) -> Result<(), String> {
    let started = Instant::now();
    while !is_done()? {
        let now = Instant::now();
        if now >= deadline {
            return Err(format!("not done after {:.1} s", (now - started).as_secs_f64()));
        }
        if now - started < SPIN { std::thread::yield_now() } else { sleep(POLL) }
    }
    Ok(())
}

/// Returns the unique id that member 0 drew and wrote to the store under `key`.
pub(super) fn agree_on_name(
    store: &Store,
    key: &str,
    place: usize,
    deadline: Instant,
) -> Result<[u8; NAME_BYTES], String> {
    let lost = |error: super::super::StoreError| error.to_string();
    if place == 0 {
        let mut name = [0; NAME_BYTES];
        // SAFETY: a place for as many bytes.
        checked("drawing a name", unsafe { ffi::rlt_nccl_name(name.as_mut_ptr()) })?;
        store.set(key, &to_text(&name)).map_err(lost)?;
        return Ok(name);
    }
    let mut text = None;
    await_until(deadline, || {
        text = store.get(key).map_err(lost)?;
        Ok(text.is_some())
    })?;
    from_text(&text.unwrap_or_default()).ok_or_else(|| format!("the store holds no name under {key}"))
}

fn to_text(name: &[u8; NAME_BYTES]) -> String {
    name.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_text(text: &str) -> Option<[u8; NAME_BYTES]> {
    let bytes: Option<Vec<u8>> =
        (0..NAME_BYTES).map(|at| u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()).collect();
    bytes?.try_into().ok().filter(|_| text.len() == 2 * NAME_BYTES)
}

/// Converts a failure to the message of NCCL or libtorch.
fn checked(act: &'static str, outcome: Outcome) -> Result<(), String> {
    check(act, outcome).map_err(Error::into_message)
}

/// An NCCL communicator, freed on drop.
#[derive(Debug)]
pub(super) struct Link {
    pointer: Mutex<Pointer>,
    device_idx: usize,
}

#[derive(Debug)]
struct Pointer(*mut c_void);

// SAFETY: a communicator belongs to no thread; the mutex around it lets one in at a time.
unsafe impl Send for Pointer {}

impl Link {
    /// Begins to connect. The communicator is settled when all members have joined.
    pub(super) fn join(
        name: &[u8; NAME_BYTES],
        place: usize,
        size: usize,
        device_idx: usize,
    ) -> Result<Self, String> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: as many bytes as a name has, and a place for the result.
        let outcome = unsafe {
            ffi::rlt_nccl_join(name.as_ptr(), place as i32, size as i32, device_idx as i32, &mut pointer)
        };
        checked("connecting", outcome)?;
        Ok(Self { pointer: Mutex::new(Pointer(pointer)), device_idx })
    }

    /// Index of the GPU on this machine.
    pub(super) fn device_idx(&self) -> usize {
        self.device_idx
    }

    fn lock(&self) -> MutexGuard<'_, Pointer> {
        self.pointer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `call` with the communicator.
    pub(super) fn call(
        &self,
        act: &'static str,
        call: impl FnOnce(*mut c_void) -> Outcome,
    ) -> Result<(), String> {
        checked(act, call(self.lock().0))
    }

    /// Whether all operations requested so far have been enqueued on the stream.
    pub(super) fn is_settled(&self) -> Result<bool, String> {
        let mut is_settled = false;
        // SAFETY: a live communicator and a place for the answer.
        self.call("looking", |link| unsafe { ffi::rlt_nccl_is_settled(link, &mut is_settled) })?;
        Ok(is_settled)
    }

    /// Records an event after all work enqueued on the stream.
    pub(super) fn mark(&self) -> Result<CudaEvent, String> {
        let mut pointer = std::ptr::null_mut();
        // SAFETY: a live communicator and a place for the result.
        self.call("marking", |link| unsafe { ffi::rlt_nccl_mark(link, &mut pointer) })?;
        Ok(CudaEvent(Pointer(pointer)))
    }

    /// Aborts operations in flight on this rank; no other operation can be started.
    pub(super) fn give_up(&self) {
        // SAFETY: a live communicator.
        unsafe { ffi::rlt_nccl_give_up(self.lock().0) }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // SAFETY: a live communicator.
        let finalized = self.call("ending", |link| unsafe { ffi::rlt_nccl_finalize(link) });
        let left = finalized.and_then(|()| await_until(Instant::now() + FAREWELL, || self.is_settled()));
        if left.is_err() {
            self.give_up();
        }
        // SAFETY: made by `rlt_nccl_join` and freed once, here.
        unsafe { ffi::rlt_nccl_free(self.lock().0) }
    }
}

/// An event on a communicator's stream. The communicator must outlive it.
#[derive(Debug)]
pub(super) struct CudaEvent(Pointer);

impl CudaEvent {
    /// Whether the stream has passed the event.
    pub(super) fn is_past(&self) -> Result<bool, String> {
        let mut is_past = false;
        // SAFETY: a live mark and a place for the answer.
        checked("looking", unsafe { ffi::rlt_nccl_is_past(self.0.0, &mut is_past) })?;
        Ok(is_past)
    }

    /// Makes later work of the compute stream wait for the event.
    pub(super) fn compute_after(&self) -> Result<(), String> {
        // SAFETY: a live mark of a live communicator.
        checked("ordering streams", unsafe { ffi::rlt_nccl_compute_after(self.0.0) })
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        // SAFETY: made by `rlt_nccl_mark` and freed once, here.
        unsafe { ffi::rlt_nccl_mark_free(self.0.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_when_it_is_done_when_it_fails_and_at_its_deadline() {
        let soon = || Instant::now() + Duration::from_millis(20);
        let later = Instant::now() + Duration::from_secs(60);
        let mut looks = 0;
        let third = || {
            looks += 1;
            Ok(looks == 3)
        };
        assert_eq!(await_until(later, third), Ok(()));
        assert_eq!(await_until(later, || Err("a peer is gone".into())), Err("a peer is gone".into()));
        let late = await_until(soon(), || Ok(false)).unwrap_err();
        assert!(late.starts_with("not done after "), "{late}");
    }

    #[test]
    fn a_name_is_read_from_the_store_unchanged() {
        let name: [u8; NAME_BYTES] = std::array::from_fn(|at| (at * 7) as u8);
        assert_eq!(from_text(&to_text(&name)), Some(name));
        for text in ["", "00", &"zz".repeat(NAME_BYTES), &"00".repeat(NAME_BYTES + 1)] {
            assert_eq!(from_text(text), None, "{text}");
        }
    }
}
