//! CUDA devices emulated in CPU memory, for machines without a GPU. Three libraries are built under the names
//! by which the product opens NVIDIA's and libtorch's, and processes find them through their environment.
//! They are only for tests.
//!
//! ```text
//! libcuda.so.1      the device: memory that the host cannot access, streams whose work is done when a thread
//!                   waits for it, events, pinned memory, graphs, and our own kernels run by fibers
//! libtorch_cuda.so  tensors on it: every operator of the CPU, and references for those that only CUDA has
//! libnccl.so.2      collectives between processes
//! ```
//!
//! | variable | meaning |
//! |---|---|
//! | `RLT_STAND_IN_DEVICES` | number of devices, 1 by default |
//! | `RLT_STAND_IN_MEMORY` | bytes of each device, 1 GiB by default |
//! | `RLT_STAND_IN_TAKEN` | bytes of each that another process has |
//! | `RLT_STAND_IN_ARCH` | compute capability, 90 by default |
//! | `RLT_STAND_IN_MULTIPROCESSORS` | multiprocessors of each device, 132 by default, an H100's |
//! | `RLT_STAND_IN_DRIVER` | version of the driver, 13000 by default |
//! | `RLT_STAND_IN_FAILURE` | `<launches>:<CUresult>`: what every call returns after so many launches |
//! | `RLT_STAND_IN_CAPTURE_FAILURE` | `<CUresult>`: result of every `cuStreamEndCapture` |
//! | `RLT_STAND_IN_CAPTURE_REFUSES` | prefix of operators that are errors in a capture, such as `aten::mm` |
//! | `RLT_STAND_IN_REPORT` | file for the counts, written at the end; `%p` in it is the process's number |
//! | `RLT_STAND_IN_KERNELS_SEED` | in which order the threads of a kernel's block run |

mod build;
mod counts;
pub mod driver;

use std::path::{Path, PathBuf};

pub use build::BuildError;
pub use counts::Counts;

/// Image of our kernels for the emulated device, which names every architecture that we build for.
const KERNELS: &str = "rlt-stand-in kernels sm_80 sm_90 sm_100\n";

/// Libraries of the emulated devices, which are built.
#[derive(Debug, Clone)]
pub struct StandIn {
    folder: PathBuf,
}

impl StandIn {
    /// Builds the libraries from the current sources; processes share the result.
    ///
    /// # Errors
    /// When there is no libtorch, or the compiler fails.
    pub fn build() -> Result<Self, BuildError> {
        Ok(Self { folder: build::libraries()? })
    }

    /// Returns the folder with the libraries.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the library of our kernels for the CPU, with the table of `csrc/on_cpu/table.h`. It needs no
    /// driver.
    pub fn kernels_on_cpu(&self) -> PathBuf {
        self.folder.join(build::KERNELS_ON_CPU)
    }

    /// Returns the program of `csrc/probe`, which shows how the fibers of a block execute faulty kernels.
    pub fn fibers_probe(&self) -> PathBuf {
        self.folder.join(build::FIBERS_PROBE)
    }

    /// Returns a folder with the driver and a `libtorch_cuda.so` that does not load, because
    /// `libcublas.so.13` and `libcusparse.so.12` are missing.
    pub fn incomplete_folder(&self) -> PathBuf {
        self.folder.join(build::INCOMPLETE)
    }

    /// Returns the variables of a process that finds one device; the crate's documentation lists further
    /// variables.
    pub fn env(&self) -> Vec<(String, String)> {
        let inherited = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
        let own = self.folder.display().to_string();
        let mut paths = vec![own.as_str()];
        paths.extend(inherited.split(':').filter(|path| !path.is_empty() && *path != own));
        vec![
            ("LD_LIBRARY_PATH".into(), paths.join(":")),
            ("RLT_KERNELS".into(), self.folder.join(build::KERNELS_FILE).display().to_string()),
        ]
    }

    /// Returns the variables of a process that finds `num_devices` devices.
    pub fn with_devices(&self, num_devices: usize) -> Vec<(String, String)> {
        let mut variables = self.env();
        variables.push(("RLT_STAND_IN_DEVICES".into(), num_devices.to_string()));
        variables
    }
}
