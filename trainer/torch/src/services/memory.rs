//! The process's memory: what it uses, its peak on host and device, and how the allocator treats large
//! buffers.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Error;
use crate::border::{
    check, rlt_peak_cuda_bytes, rlt_release_free_memory, rlt_reset_peak_cuda_bytes, rlt_reuse_large_buffers,
};
use crate::cuda::gpu_memory;
use tch::Device;

const STATUS: &str = "/proc/self/status";
const MEMINFO: &str = "/proc/meminfo";
const CLEAR_REFS: &str = "/proc/self/clear_refs";

/// Shapes of products whose code stays, of oneDNN and of what is between it and libtorch; both begin with
/// 1024. An update of an adapter has 25, each 0.7 MiB of code with AVX-512; batches of other lengths have
/// others, so that more are seldom of use again.
const KEPT_SHAPES: &str = "32";
const KEPT_SHAPES_VARIABLES: [&str; 2] = ["ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"];

fn status_bytes(field: &str) -> Result<u64, Error> {
    field_bytes(STATUS, field)
}

/// The number of a line `field: number kB` of a file.
fn field_bytes(path: &'static str, field: &str) -> Result<u64, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Process {
        act: "reading memory use",
        path,
        source,
    })?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib * 1024).ok_or_else(|| Error::Argument {
        act: "reading memory use",
        expected: format!("a line `{field}` in {path}"),
        got: "none".into(),
    })
}

/// Peaks since the last [`reset_peak_rss`], up to the last [`settle_peak_memory`].
static SETTLED: Mutex<Settled> = Mutex::new(Settled { rss: 0, own: 0, file: 0 });

/// Peak memory of this process up to some time, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settled {
    /// Peak resident memory.
    rss: u64,
    /// Peak resident memory without file-backed pages, which are those of program and libraries.
    own: u64,
    /// File-backed pages at that time.
    file: u64,
}

impl Settled {
    /// Brings the peaks up to now.
    fn up_to_now(self) -> Result<Self, Error> {
        let file = status_bytes("RssFile")?;
        let (peak, present) = (status_bytes("VmHWM")?, status_bytes("VmRSS")?);
        let own = peak.saturating_sub(file.max(self.file)).max(present.saturating_sub(file));
        Ok(Self { rss: self.rss.max(peak), own: self.own.max(own), file })
    }
}

fn settled() -> MutexGuard<'static, Settled> {
    SETTLED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The highest resident memory of this process since its start or the last [`reset_peak_rss`], in bytes.
///
/// # Errors
/// When /proc cannot be read.
pub fn peak_rss_bytes() -> Result<u64, Error> {
    Ok(settled().up_to_now()?.rss)
}

/// The highest memory of this process's own since its start or the last [`reset_peak_rss`], in bytes:
/// resident memory without the pages of program and libraries, whose number depends on the machine's spare
/// memory.
///
/// The kernel keeps a peak of all resident memory, but only the present number of file-backed pages, and it
/// reclaims such pages when memory is scarce. Between two calls of [`settle_peak_memory`] the peak is taken
/// to have as many of them as the larger of the numbers at both calls, so it is too low by at most their
/// change.
///
/// # Errors
/// When /proc cannot be read.
pub fn peak_own_bytes() -> Result<u64, Error> {
    Ok(settled().up_to_now()?.own)
}

/// Records the peaks of this process's memory so far and restarts the kernel's counter at the present use.
///
/// # Errors
/// When /proc cannot be read or the kernel does not allow a reset.
pub fn settle_peak_memory() -> Result<(), Error> {
    let mut settled = settled();
    *settled = settled.up_to_now()?;
    reset_kernel_peak()
}

/// The resident memory of this process now, in bytes (`VmRSS`).
///
/// # Errors
/// When /proc cannot be read.
pub fn rss_bytes() -> Result<u64, Error> {
    status_bytes("VmRSS")
}

/// The most bytes that tensors have held on a GPU at once, as `torch.cuda.max_memory_allocated` counts them;
/// `None` for the CPU, whose tensors are in [`peak_own_bytes`].
///
/// # Errors
/// When CUDA was not loaded.
pub fn peak_device_bytes(device: Device) -> Result<Option<u64>, Error> {
    Ok(peaks(device)?.map(|[allocated, _]| allocated))
}

/// [`peak_device_bytes`] with the freed blocks that libtorch's allocator kept, as
/// `torch.cuda.max_memory_reserved` counts them.
///
/// # Errors
/// When CUDA was not loaded.
pub fn peak_reserved_device_bytes(device: Device) -> Result<Option<u64>, Error> {
    Ok(peaks(device)?.map(|[_, reserved]| reserved))
}

/// The most bytes that were allocated and that were reserved.
fn peaks(device: Device) -> Result<Option<[u64; 2]>, Error> {
    let Device::Cuda(index) = device else { return Ok(None) };
    let (mut allocated, mut reserved) = (0, 0);
    // SAFETY: places for the answers.
    let outcome = unsafe { rlt_peak_cuda_bytes(index as i64, &mut allocated, &mut reserved) };
    check("reading the device's peak memory", outcome)?;
    Ok(Some([allocated, reserved].map(i64::unsigned_abs)))
}

/// Starts new peaks of [`peak_device_bytes`] and [`peak_reserved_device_bytes`] from what is held now;
/// nothing on the CPU.
///
/// # Errors
/// When CUDA was not loaded.
pub fn reset_peak_device_bytes(device: Device) -> Result<(), Error> {
    let Device::Cuda(index) = device else { return Ok(()) };
    // SAFETY: takes a number.
    check("starting a new peak of the device's memory", unsafe { rlt_reset_peak_cuda_bytes(index as i64) })
}

/// The memory of a GPU, used by any process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Bytes that are free on the GPU.
    pub free_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// The memory of `device`, as its driver says; `None` for the CPU.
///
/// # Errors
/// When there is no driver or no such device.
pub fn device_memory(device: Device) -> Result<Option<DeviceMemory>, Error> {
    let Device::Cuda(index) = device else { return Ok(None) };
    gpu_memory(index).map(Some)
}

/// The memory of this machine, in bytes (`MemTotal`).
///
/// # Errors
/// When /proc cannot be read.
pub fn machine_memory_bytes() -> Result<u64, Error> {
    field_bytes(MEMINFO, "MemTotal")
}

/// Starts a new peak from the present use.
///
/// # Errors
/// When the kernel does not allow it (some sandboxes).
pub fn reset_peak_rss() -> Result<(), Error> {
    let mut settled = settled();
    *settled = Settled { rss: 0, own: 0, file: status_bytes("RssFile")? };
    reset_kernel_peak()
}

fn reset_kernel_peak() -> Result<(), Error> {
    // proc(5): writing 5 resets the peak resident set size.
    std::fs::write(CLEAR_REFS, "5").map_err(|source| Error::Process {
        act: "resetting peak memory",
        path: CLEAR_REFS,
        source,
    })
}

/// Makes the allocator keep and reuse freed buffers of up to 32 MiB instead of returning them to the kernel,
/// which would hand them back as fresh pages to be zeroed one by one at the next use (measured: 0.2 ms a MiB,
/// against 0.04 for writing it). Call once, before the first tensor; [`release_free_memory`] returns the kept
/// buffers.
///
/// The library of matrix products keeps, for every shape that it has met, the code it made for it: as many as
/// a step has shapes are enough, not as many as there are batches of different lengths.
pub fn reuse_large_buffers() {
    for variable in KEPT_SHAPES_VARIABLES.into_iter().filter(|name| std::env::var_os(name).is_none()) {
        // SAFETY: before the first tensor no other thread asks C for the environment.
        unsafe { std::env::set_var(variable, KEPT_SHAPES) }
    }
    // SAFETY: sets options of the C allocator and of tensors' memory.
    unsafe { rlt_reuse_large_buffers() }
}

/// Returns free pages inside the heap to the kernel, and the freed blocks that libtorch's allocator keeps to
/// their GPUs: for the moment between two phases of different memory need. A kept block serves only the CUDA
/// stream that it was allocated on, so that without it each phase adds its own to those of the others.
pub fn release_free_memory() {
    // SAFETY: asks the C allocator to trim; live allocations stay where they are.
    unsafe { rlt_release_free_memory() }
}
