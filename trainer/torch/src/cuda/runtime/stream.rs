//! CUDA streams, with their copies, host functions and events. No function blocks the calling thread unless
//! its documentation says so.
//!
//! A device's default stream is null for the driver, which interprets it as that of the thread's current
//! context. So each call enters the context of its stream's device.

use super::super::launch_checks::cuda_index;
use super::driver::{Context, Driver, Handle};
use crate::Error;
use crate::ffi::{check, rlt_current_stream, rlt_exchange_stream, rlt_pool_stream};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};
use tch::Tensor;

/// A CUDA stream of one device, as known to libtorch and to the driver.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    device: usize,
    /// libtorch's id of the stream.
    id: i64,
    handle: Handle,
}

// SAFETY: the driver's functions take streams from any thread; libtorch's streams are never destroyed.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Returns the stream on which libtorch computes, for this thread and device.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn current(device: usize) -> Result<Self, Error> {
        let (mut id, mut handle) = (0, std::ptr::null_mut());
        // SAFETY: places for the answers.
        let outcome = unsafe { rlt_current_stream(device as i64, &mut id, &mut handle) };
        check("finding the current stream", outcome).map(|()| Self { device, id, handle })
    }

    /// Returns another stream of the device, from libtorch's pool. Graphs are captured on such a stream,
    /// since the default stream cannot be captured.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn from_pool(device: usize) -> Result<Self, Error> {
        let (mut id, mut handle) = (0, std::ptr::null_mut());
        // SAFETY: places for the answers.
        let outcome = unsafe { rlt_pool_stream(device as i64, &mut id, &mut handle) };
        check("finding a stream", outcome).map(|()| Self { device, id, handle })
    }

    /// Returns the stream on which this process decodes, always the same one. libtorch's allocator reuses a
    /// freed block only on the stream on which it was allocated, and cuBLAS has a workspace per stream, so
    /// another stream for each rollout would hold another set of blocks.
    ///
    /// # Errors
    /// When there is no such device.
    pub fn for_decoding(device: usize) -> Result<Self, Error> {
        static STREAMS: Mutex<BTreeMap<usize, Stream>> = Mutex::new(BTreeMap::new());
        let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stream) = streams.get(&device) {
            return Ok(*stream);
        }
        let stream = Self::from_pool(device)?;
        streams.insert(device, stream);
        Ok(stream)
    }

    /// Makes libtorch compute on this stream, on this thread, until the scope is dropped.
    ///
    /// # Errors
    /// When libtorch fails.
    pub fn enter(self) -> Result<StreamScope, Error> {
        let mut before = 0;
        // SAFETY: a place for the number of the stream before.
        let outcome = unsafe { rlt_exchange_stream(self.device as i64, self.id, &mut before) };
        check("changing the stream", outcome).map(|()| StreamScope {
            device: self.device,
            before,
            of_this_thread: PhantomData,
        })
    }

    /// Index of the stream's device.
    pub fn device(&self) -> usize {
        self.device
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// Enqueues a copy of a device's tensor to pinned memory of the host. Wait for an event recorded after it
    /// before you read `to`; both tensors must live until then.
    ///
    /// # Errors
    /// When dtypes or sizes differ, a tensor is not contiguous or on the wrong side, or the driver fails.
    pub fn copy_to_host(&self, to: &Tensor, from: &Tensor) -> Result<(), Error> {
        let num_bytes = self.copied_bytes("a copy to the host", to, from)?;
        let driver = Driver::get()?;
        let _context = Context::enter(driver, self.device)?;
        // SAFETY: both sides have that many bytes; the caller guarantees their lifetime, as documented.
        driver.check("a copy to the host", unsafe {
            (driver.memcpy_dtoh_async)(to.data_ptr(), from.data_ptr() as u64, num_bytes, self.handle)
        })
    }

    /// Enqueues a copy from pinned memory of the host to a device's tensor; see [`Self::copy_to_host`].
    ///
    /// # Errors
    /// The errors of [`Self::copy_to_host`].
    pub fn copy_to_device(&self, to: &Tensor, from: &Tensor) -> Result<(), Error> {
        let num_bytes = self.copied_bytes("a copy to the device", from, to)?;
        let driver = Driver::get()?;
        let _context = Context::enter(driver, self.device)?;
        // SAFETY: as in `copy_to_host`.
        driver.check("a copy to the device", unsafe {
            (driver.memcpy_htod_async)(to.data_ptr() as u64, from.data_ptr(), num_bytes, self.handle)
        })
    }

    fn copied_bytes(&self, act: &'static str, host: &Tensor, device: &Tensor) -> Result<usize, Error> {
        let fits = host.kind() == device.kind() && host.numel() == device.numel();
        let dense = host.is_contiguous() && device.is_contiguous();
        let sides = host.device() == tch::Device::Cpu && cuda_index(device.device()) == Some(self.device);
        if fits && dense && sides {
            return Ok(host.numel() * host.kind().elt_size_in_bytes());
        }
        let say = |t: &Tensor| format!("{:?} of {:?} on {:?}", t.size(), t.kind(), t.device());
        Err(Error::Argument {
            act,
            expected: format!(
                "dense tensors of one kind and size, on the host and on device {}",
                self.device
            ),
            got: format!("{} and {}", say(host), say(device)),
        })
    }

    /// Enqueues a call of `call` on a thread of the driver; later work of the stream waits for its end.
    /// `call` must not call CUDA or libtorch on a device, must not panic (a panic is caught and ignored), and
    /// runs once: a capturing stream accepts it, but would call it only at the first launch.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn call(&self, call: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let driver = Driver::get()?;
        let _context = Context::enter(driver, self.device)?;
        let boxed: Box<Box<dyn FnOnce() + Send>> = Box::new(Box::new(call));
        let data = Box::into_raw(boxed);
        // SAFETY: `run_once` takes the box back, once.
        let code = unsafe { (driver.launch_host_func)(self.handle, run_once, data.cast()) };
        if code != 0 {
            // SAFETY: the driver refused and will never call with it.
            drop(unsafe { Box::from_raw(data) });
        }
        driver.check("calling the host in stream order", code)
    }

    /// Makes later work of this stream wait for `event`, without blocking the thread.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn wait_for(&self, event: &Event) -> Result<(), Error> {
        let driver = Driver::get()?;
        let _context = Context::enter(driver, self.device)?;
        // SAFETY: a live event.
        driver.check("ordering streams", unsafe { (driver.stream_wait_event)(self.handle, event.0, 0) })
    }

    /// Blocks this thread until all work of the stream is done.
    ///
    /// # Errors
    /// An error of the stream's work since the last wait.
    pub fn synchronize(&self) -> Result<(), Error> {
        let driver = Driver::get()?;
        let _context = Context::enter(driver, self.device)?;
        // SAFETY: a stream that is never destroyed.
        driver.check("waiting for a stream", unsafe { (driver.stream_synchronize)(self.handle) })
    }
}

unsafe extern "C" fn run_once(data: *mut c_void) {
    // SAFETY: the box of `Stream::call`, handed over once.
    let call = unsafe { Box::from_raw(data.cast::<Box<dyn FnOnce() + Send>>()) };
    // The driver's thread cannot handle panics.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (*call)()));
}

/// Guard during which libtorch computes on the stream of [`Stream::enter`].
#[derive(Debug)]
#[must_use = "dropping it goes back to the stream before"]
pub struct StreamScope {
    device: usize,
    before: i64,
    of_this_thread: PhantomData<*const ()>,
}

impl Drop for StreamScope {
    fn drop(&mut self) {
        let mut ours = 0;
        // SAFETY: a place for the number of the stream that is left.
        let outcome = unsafe { rlt_exchange_stream(self.device as i64, self.before, &mut ours) };
        // The previous stream was accepted once and exists as long as the process.
        let _ = check("changing the stream", outcome);
    }
}

/// A CUDA event: a point in a stream's work.
#[derive(Debug)]
pub struct Event(Handle);

// SAFETY: the driver's functions take events from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// Makes an event that has not been recorded. It measures no time, which makes it cheaper.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn new(device: usize) -> Result<Self, Error> {
        const NO_TIMING: u32 = 2;
        Self::with_flags(device, NO_TIMING)
    }

    /// Makes an event that measures time, for [`Self::milliseconds_since`].
    ///
    /// # Errors
    /// When the driver fails.
    pub fn with_timing(device: usize) -> Result<Self, Error> {
        Self::with_flags(device, 0)
    }

    fn with_flags(device: usize, flags: u32) -> Result<Self, Error> {
        let driver = Driver::get()?;
        let _context = Context::enter(driver, device)?;
        let mut event = std::ptr::null_mut();
        // SAFETY: a place for the event.
        driver.check("creating an event", unsafe { (driver.event_create)(&mut event, flags) })?;
        Ok(Self(event))
    }

    /// Records the event: it happens when `stream` has completed all work enqueued so far.
    ///
    /// # Errors
    /// When the driver fails.
    pub fn record(&self, stream: &Stream) -> Result<(), Error> {
        let driver = Driver::get()?;
        let _context = Context::enter(driver, stream.device)?;
        // SAFETY: a live event and stream.
        driver.check("recording an event", unsafe { (driver.event_record)(self.0, stream.handle) })
    }

    /// Whether the event has happened; does not wait.
    ///
    /// # Errors
    /// An error of the stream's work before the event.
    pub fn has_happened(&self) -> Result<bool, Error> {
        let driver = Driver::get()?;
        // SAFETY: a live event.
        driver.is_done("asking for an event", unsafe { (driver.event_query)(self.0) })
    }

    /// Blocks this thread until the event has happened.
    ///
    /// # Errors
    /// An error of the stream's work before the event.
    pub fn synchronize(&self) -> Result<(), Error> {
        let driver = Driver::get()?;
        // SAFETY: a live event.
        driver.check("waiting for an event", unsafe { (driver.event_synchronize)(self.0) })
    }

    /// Returns the milliseconds on the device between two events that have happened.
    ///
    /// # Errors
    /// When an event has not happened, or does not measure time.
    pub fn milliseconds_since(&self, earlier: &Self) -> Result<f32, Error> {
        let (driver, mut milliseconds) = (Driver::get()?, 0.0);
        // SAFETY: live events and a place for the answer.
        let code = unsafe { (driver.event_elapsed_time)(&mut milliseconds, earlier.0, self.0) };
        driver.check("measuring between events", code).map(|()| milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Ok(driver) = Driver::get() {
            // SAFETY: the event was created by `with_flags` and is destroyed once; the driver keeps it until
            // it has happened.
            unsafe { (driver.event_destroy)(self.0) };
        }
    }
}
