//! Detection of CUDA on this machine and, if it cannot be used, of the cause.
//!
//! The driver's number of GPUs and version are read before libtorch's CUDA libraries are loaded, so that
//! an old driver or a missing library is named instead of failing within libtorch.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::fmt;
use std::path::Path;
use std::sync::OnceLock;

use super::super::missing_cuda;
use super::driver::{Code, Context, Driver, Handle, open, symbol};
use super::missing_libraries::missing_for;
use crate::{DeviceMemory, Error};

/// Result code `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: Code = 100;
/// CUDA runtime version of the pinned libtorch, used if the loaded runtime does not report its own.
const PINNED_RUNTIME: CudaVersion = CudaVersion(13_000);
/// Files of the kernel module that exist if there is a GPU, without any libraries.
const TRACES_OF_GPUS: [&str; 2] = ["/dev/nvidia0", "/proc/driver/nvidia/gpus"];

/// libtorch's CUDA library, which loads all others.
const CUDA_HALF: &str = "libtorch_cuda.so";

/// A CUDA version in CUDA's encoding: 1000 * major + 10 * minor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudaVersion(pub i32);

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// Result of the detection of CUDA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CudaStatus {
    /// libtorch can compute on GPUs.
    Found {
        /// Number of GPUs, at least one.
        num_gpus: usize,
    },
    /// The driver's library `libcuda.so.1` does not load.
    NoDriver {
        /// Message of the dynamic linker.
        message: String,
        /// Whether the machine nevertheless has a GPU.
        has_gpu: bool,
    },
    /// The driver's library loads, but the driver does not start.
    DriverFailed {
        /// Error of the driver.
        message: String,
        /// Whether the machine nevertheless has a GPU.
        has_gpu: bool,
    },
    /// The driver works, but finds no GPU.
    NoGpu,
    /// The driver does not support libtorch's CUDA runtime.
    DriverTooOld {
        /// Newest CUDA version that the driver supports.
        driver: CudaVersion,
        /// CUDA version of libtorch's runtime.
        runtime: CudaVersion,
    },
    /// Driver and GPU exist, but libtorch's CUDA library does not load.
    LibraryMissing {
        /// All missing libraries, or the one that does not load.
        libraries: Vec<String>,
        /// Message of the dynamic linker.
        message: String,
    },
}

impl CudaStatus {
    /// Number of GPUs on which libtorch can compute.
    pub fn num_gpus(&self) -> usize {
        if let Self::Found { num_gpus } = self { *num_gpus } else { 0 }
    }

    /// Whether this machine has a GPU that cannot be used.
    pub fn has_unusable_gpu(&self) -> bool {
        match self {
            Self::Found { .. } | Self::NoGpu => false,
            Self::NoDriver { has_gpu, .. } | Self::DriverFailed { has_gpu, .. } => *has_gpu,
            Self::DriverTooOld { .. } | Self::LibraryMissing { .. } => true,
        }
    }
}

impl fmt::Display for CudaStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Found { num_gpus } => write!(f, "CUDA can be used on {num_gpus} GPU(s)"),
            Self::NoDriver { message, has_gpu: false } => {
                write!(f, "there is no NVIDIA driver ({message})")
            }
            Self::NoDriver { message, has_gpu: true } => {
                write!(f, "there is a GPU, but the driver's library does not load: {message}")
            }
            Self::DriverFailed { message, .. } => write!(f, "the NVIDIA driver does not start: {message}"),
            Self::NoGpu => write!(f, "the NVIDIA driver sees no GPU"),
            Self::DriverTooOld { driver, runtime } => write!(
                f,
                "the NVIDIA driver is too old: it serves CUDA up to {driver}, and libtorch is built with CUDA {runtime}; \
                 install a driver for CUDA {}.0 or newer",
                runtime.0 / 1000
            ),
            Self::LibraryMissing { libraries, message } => {
                let verb = if libraries.len() == 1 { "does" } else { "do" };
                write!(f, "there is a GPU, but {} {verb} not load: {message}", libraries.join(", "))
            }
        }
    }
}

/// Detects CUDA once per process, and loads it if it can be used.
pub fn detect_cuda() -> &'static CudaStatus {
    static SEARCH: OnceLock<CudaStatus> = OnceLock::new();
    SEARCH.get_or_init(look)
}

fn look() -> CudaStatus {
    let has_trace = || TRACES_OF_GPUS.iter().any(|path| Path::new(path).exists());
    let library = match open(c"libcuda.so.1") {
        Ok(library) => library,
        Err(Error::Library { message, .. }) => {
            return CudaStatus::NoDriver { message, has_gpu: has_trace() };
        }
        Err(error) => {
            return CudaStatus::NoDriver { message: error.to_string(), has_gpu: has_trace() };
        }
    };
    let (num_gpus, driver) = match count(library) {
        Ok(Ok(seen)) => seen,
        Ok(Err(NO_DEVICE)) => return CudaStatus::NoGpu,
        Ok(Err(code)) => {
            let message = format!("cuInit gave error {code}");
            return CudaStatus::DriverFailed { message, has_gpu: has_trace() };
        }
        Err(error) => {
            return CudaStatus::DriverFailed { message: error.to_string(), has_gpu: has_trace() };
        }
    };
    let runtime = runtime_version();
    // A runtime works with every driver of the same or a newer major version.
    match (num_gpus, driver.0 < runtime.0 / 1000 * 1000) {
        (0, _) => CudaStatus::NoGpu,
        (_, true) => CudaStatus::DriverTooOld { driver, runtime },
        (num_gpus, false) => load(num_gpus),
    }
}

/// Returns the number of GPUs and the version of an opened driver, or the code of the call that failed.
fn count(library: Handle) -> Result<Result<(usize, CudaVersion), Code>, Error> {
    let (mut num_gpus, mut version) = (0, 0);
    // SAFETY: the driver's header declares functions of these names with these arguments; places for the
    // answers.
    let codes = unsafe {
        let init: unsafe extern "C" fn(c_uint) -> Code = std::mem::transmute(symbol(library, c"cuInit")?);
        let get: unsafe extern "C" fn(*mut c_int) -> Code =
            std::mem::transmute(symbol(library, c"cuDriverGetVersion")?);
        let count: unsafe extern "C" fn(*mut c_int) -> Code =
            std::mem::transmute(symbol(library, c"cuDeviceGetCount")?);
        [init(0), get(&mut version), count(&mut num_gpus)]
    };
    let failed = codes.into_iter().find(|code| *code != 0);
    Ok(failed.map_or(Ok((num_gpus.max(0) as usize, CudaVersion(version))), Err))
}

/// Returns the version of the CUDA runtime in this process.
fn runtime_version() -> CudaVersion {
    let library = [c"libcudart.so.13", c"libcudart.so.12"].into_iter().find_map(|name| open(name).ok());
    let version = library.and_then(|library| {
        let mut version = 0;
        // SAFETY: the runtime's header declares a function of this name with this argument.
        let code = unsafe {
            let get: unsafe extern "C" fn(*mut c_int) -> c_int =
                std::mem::transmute(symbol(library, c"cudaRuntimeGetVersion").ok()?);
            get(&mut version)
        };
        (code == 0 && version > 0).then_some(CudaVersion(version))
    });
    version.unwrap_or(PINNED_RUNTIME)
}

fn load(num_gpus: usize) -> CudaStatus {
    let message = match missing_cuda() {
        Ok(None) => return CudaStatus::Found { num_gpus },
        Ok(Some(message)) => message,
        Err(error) => error.to_string(),
    };
    let mut libraries = missing_for(CUDA_HALF);
    if libraries.is_empty() {
        libraries.push(culprit(&message));
    }
    CudaStatus::LibraryMissing { libraries, message }
}

/// Extracts the library that the dynamic linker's message is about: Y in `X cannot be loaded: Y: cannot open
/// shared object file`.
fn culprit(message: &str) -> String {
    let cause = message.split_once("cannot be loaded: ").map_or(message, |(_, cause)| cause);
    let named = cause.split(": ").next().filter(|name| name.contains(".so"));
    let file = named.and_then(|name| Path::new(name).file_name()).map(|name| name.to_string_lossy());
    file.map_or_else(|| CUDA_HALF.to_owned(), |name| name.into_owned())
}

/// A GPU, as the driver describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Index of the GPU in this process.
    pub index: usize,
    /// Product name of the GPU.
    pub name: String,
    /// Major and minor number of the compute capability.
    pub compute_capability: (i32, i32),
    /// Total memory, in bytes.
    pub memory_bytes: usize,
    /// Free memory, in bytes.
    pub free_bytes: usize,
}

/// Path by which two GPUs access each other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuLink {
    /// Direct access with atomic operations, as over NVLink.
    NvLink,
    /// Direct access without atomic operations, over PCIe.
    Pcie,
    /// Transfers through the host's memory.
    Host,
}

/// Lists the GPUs that are visible to this process. Reading the free memory creates a context on each device.
///
/// # Errors
/// When a driver call fails.
pub fn gpus() -> Result<Vec<Gpu>, Error> {
    let driver = Driver::get()?;
    let mut num_gpus = 0;
    // SAFETY: a place for the answer.
    driver.check("counting devices", unsafe { (driver.device_get_count)(&mut num_gpus) })?;
    (0..num_gpus.max(0) as usize).map(|index| describe(driver, index)).collect()
}

fn describe(driver: &'static Driver, index: usize) -> Result<Gpu, Error> {
    let mut name = [0 as c_char; 256];
    let mut handle = 0;
    // SAFETY: places for the answers; the driver ends the name with a NUL within its size.
    let name = unsafe {
        driver.check("finding a device", (driver.device_get)(&mut handle, index as c_int))?;
        let code = (driver.device_get_name)(name.as_mut_ptr(), name.len() as c_int, handle);
        driver.check("naming a device", code)?;
        CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
    };
    let DeviceMemory { free_bytes, total_bytes } = gpu_memory(index)?;
    let (free_bytes, memory_bytes) = (free_bytes as usize, total_bytes as usize);
    Ok(Gpu { index, name, compute_capability: driver.compute_capability(index)?, memory_bytes, free_bytes })
}

/// Returns the total and free memory of a GPU.
pub(crate) fn gpu_memory(index: usize) -> Result<DeviceMemory, Error> {
    let driver = Driver::get()?;
    let _context = Context::enter(driver, index)?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: places for the answers.
    driver.check("reading a device's memory", unsafe { (driver.mem_get_info)(&mut free, &mut total) })?;
    Ok(DeviceMemory { free_bytes: free as u64, total_bytes: total as u64 })
}

/// Returns the path by which two devices access each other's memory.
///
/// # Errors
/// When there is no such device, or the driver fails.
pub fn link_between(one: usize, other: usize) -> Result<GpuLink, Error> {
    /// Device attribute `CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED`.
    const NATIVE_ATOMICS: c_int = 3;
    let driver = Driver::get()?;
    let (mut handles, mut reaches, mut atomics) = ([0; 2], 0, 0);
    // SAFETY: places for the answers.
    unsafe {
        driver.check("finding a device", (driver.device_get)(&mut handles[0], one as c_int))?;
        driver.check("finding a device", (driver.device_get)(&mut handles[1], other as c_int))?;
        let code = (driver.device_can_access_peer)(&mut reaches, handles[0], handles[1]);
        driver.check("asking for a link", code)?;
        let code = (driver.device_get_p2p_attribute)(&mut atomics, NATIVE_ATOMICS, handles[0], handles[1]);
        driver.check("asking for a link's kind", code)?;
    }
    Ok(match (reaches, atomics) {
        (0, _) => GpuLink::Host,
        (_, 0) => GpuLink::Pcie,
        _ => GpuLink::NvLink,
    })
}

#[cfg(test)]
mod tests {
    use super::{CudaStatus, CudaVersion, culprit};

    #[test]
    fn the_library_that_is_missing_is_the_one_that_the_linker_names() {
        let missing = "cannot open shared object file: No such file or directory";
        for (message, library) in [
            (format!("libtorch_cuda.so cannot be loaded: libcudnn.so.9: {missing}"), "libcudnn.so.9"),
            (format!("libtorch_cuda.so cannot be loaded: libtorch_cuda.so: {missing}"), "libtorch_cuda.so"),
            (
                "libtorch_cuda.so cannot be loaded: /lib/libnccl.so.2: undefined symbol: x".to_owned(),
                "libnccl.so.2",
            ),
            ("libtorch sees no CUDA device".to_owned(), "libtorch_cuda.so"),
        ] {
            assert_eq!(culprit(&message), library, "{message}");
        }
    }

    #[test]
    fn an_old_driver_is_named_with_both_versions() {
        let search = CudaStatus::DriverTooOld { driver: CudaVersion(12_080), runtime: CudaVersion(13_000) };
        let text = search.to_string();
        assert!(text.contains("up to 12.8") && text.contains("with CUDA 13.0"), "{text}");
        assert!(search.has_unusable_gpu() && search.num_gpus() == 0);
    }
}
