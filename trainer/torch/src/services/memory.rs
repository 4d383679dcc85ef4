//! Memory of this process: its use and peaks on host and device, and how the allocator treats large buffers.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Error;
use crate::cuda::gpu_memory;
use crate::ffi::{
    check, rlt_peak_cuda_bytes, rlt_release_free_memory, rlt_reset_peak_cuda_bytes, rlt_reuse_large_buffers,
};
use tch::Device;

const STATUS: &str = "/proc/self/status";
const MEMINFO: &str = "/proc/meminfo";
const CLEAR_REFS: &str = "/proc/self/clear_refs";

/// Number of shapes for which oneDNN and ideep keep the generated code of matrix products; their default is
/// 1024. An update of an adapter has 25 shapes, each with 0.7 MiB of code for AVX-512. Batches of other
/// lengths have other shapes, so a larger cache would mostly hold code that is not used again.
const KEPT_SHAPES: &str = "32";
const KEPT_SHAPES_VARIABLES: [&str; 2] = ["ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"];

fn status_bytes(field: &str) -> Result<u64, Error> {
    field_bytes(STATUS, field)
}

/// Reads the number in a line `field: number kB` of a file, in bytes.
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

/// Memory peaks of this process up to one point in time, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settled {
    /// Peak of resident memory.
    rss: u64,
    /// Peak of resident memory without file-backed pages, which belong to the program and its libraries.
    own: u64,
    /// Size of file-backed pages at that time.
    file: u64,
}

impl Settled {
    /// Returns the peaks up to now.
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

/// Peak resident memory of this process since its start or the last [`reset_peak_rss`], in bytes.
///
/// # Errors
/// When /proc cannot be read.
pub fn peak_rss_bytes() -> Result<u64, Error> {
    Ok(settled().up_to_now()?.rss)
}

/// Peak memory of this process since its start or the last [`reset_peak_rss`], in bytes, without file-backed
/// pages of program and libraries, whose number depends on the machine's free memory.
///
/// The kernel reports the peak of all resident memory, but only the present number of file-backed pages,
/// which it reclaims when memory is scarce. This function assumes that the peak between two calls of
/// [`settle_peak_memory`] had the larger number of file-backed pages of both calls, so its result is too low
/// by at most their difference.
///
/// # Errors
/// When /proc cannot be read.
pub fn peak_own_bytes() -> Result<u64, Error> {
    Ok(settled().up_to_now()?.own)
}

/// Records the memory peaks of this process so far, and resets the kernel's counter to the present use.
///
/// # Errors
/// When /proc cannot be read or the kernel does not allow a reset.
pub fn settle_peak_memory() -> Result<(), Error> {
    let mut settled = settled();
    *settled = settled.up_to_now()?;
    reset_kernel_peak()
}

/// Present resident memory of this process, in bytes (`VmRSS`).
///
/// # Errors
/// When /proc cannot be read.
pub fn rss_bytes() -> Result<u64, Error> {
    status_bytes("VmRSS")
}

/// Peak memory of tensors on a GPU in bytes, as counted by `torch.cuda.max_memory_allocated`; `None` for the
/// CPU, whose tensors are in [`peak_own_bytes`].
///
/// # Errors
/// When CUDA was not loaded.
pub fn peak_device_bytes(device: Device) -> Result<Option<u64>, Error> {
    Ok(peaks(device)?.map(|[allocated, _]| allocated))
}

/// [`peak_device_bytes`] including the freed blocks that libtorch's allocator caches, as counted by
/// `torch.cuda.max_memory_reserved`.
///
/// # Errors
/// When CUDA was not loaded.
pub fn peak_reserved_device_bytes(device: Device) -> Result<Option<u64>, Error> {
    Ok(peaks(device)?.map(|[_, reserved]| reserved))
}

/// Peaks of allocated and of reserved memory, in bytes.
fn peaks(device: Device) -> Result<Option<[u64; 2]>, Error> {
    let Device::Cuda(index) = device else { return Ok(None) };
    let (mut allocated, mut reserved) = (0, 0);
    // SAFETY: places for the answers.
    let outcome = unsafe { rlt_peak_cuda_bytes(index as i64, &mut allocated, &mut reserved) };
    check("reading the device's peak memory", outcome)?;
    Ok(Some([allocated, reserved].map(i64::unsigned_abs)))
}

/// Resets [`peak_device_bytes`] and [`peak_reserved_device_bytes`] to the present use; does nothing on the
/// CPU.
///
/// # Errors
/// When CUDA was not loaded.
pub fn reset_peak_device_bytes(device: Device) -> Result<(), Error> {
    let Device::Cuda(index) = device else { return Ok(()) };
    // SAFETY: takes a number.
    check("starting a new peak of the device's memory", unsafe { rlt_reset_peak_cuda_bytes(index as i64) })
}

/// Memory of a GPU, whichever processes use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Free memory of the GPU, in bytes.
    pub free_bytes: u64,
    /// Total memory of the GPU, in bytes.
    pub total_bytes: u64,
}

/// Memory of `device`, as reported by its driver; `None` for the CPU.
///
/// # Errors
/// When there is no driver or no such device.
pub fn device_memory(device: Device) -> Result<Option<DeviceMemory>, Error> {
    let Device::Cuda(index) = device else { return Ok(None) };
    gpu_memory(index).map(Some)
}

/// Total memory of this machine, in bytes (`MemTotal`).
///
/// # Errors
/// When /proc cannot be read.
pub fn machine_memory_bytes() -> Result<u64, Error> {
    field_bytes(MEMINFO, "MemTotal")
}

/// Resets the memory peaks of this process to the present use.
///
/// # Errors
/// When the kernel does not allow it, as in some sandboxes.
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
/// which would have to zero new pages at the next use (measured: 0.2 ms per MiB, against 0.04 ms for writing
/// it). Call it once, before the first tensor is created; [`release_free_memory`] returns the cached buffers.
///
/// Also limits the generated code of matrix products that oneDNN caches, one for each shape, to about the
/// number of shapes in a step.
pub fn reuse_large_buffers() {
    for variable in KEPT_SHAPES_VARIABLES.into_iter().filter(|name| std::env::var_os(name).is_none()) {
        // SAFETY: before the first tensor no other thread asks C for the environment.
        unsafe { std::env::set_var(variable, KEPT_SHAPES) }
    }
    // SAFETY: sets options of the C allocator and of tensors' memory.
    unsafe { rlt_reuse_large_buffers() }
}

/// Returns free pages of the heap to the kernel, and cached blocks of libtorch's allocator to their GPUs.
/// Call it between two phases with different memory needs: a cached block serves only the CUDA stream on
/// which it was allocated, so that otherwise the blocks of all phases add up.
pub fn release_free_memory() {
    // SAFETY: asks the C allocator to trim; live allocations stay where they are.
    unsafe { rlt_release_free_memory() }
}
