//! Our own kernels on one device. Each launcher writes to tensors that the caller provides, on libtorch's
//! current stream: it allocates nothing, copies nothing and waits for nothing, so a stream capture may
//! contain it. Launchers are structures; their fields document shapes and dtypes.

use super::launch_checks::Operands;
use super::module::{Module, Shape};
use crate::Error;
use std::sync::{Arc, Mutex, PoisonError};
use tch::Device;

/// Architectures of the machine code in `rlt-kernels.fatbin`; PTX serves architectures newer than the last.
pub const BUILT_FOR: [&str; 4] = ["sm_80", "sm_90", "sm_100", "compute_100 (PTX)"];

/// Our kernels, loaded into one device.
#[derive(Clone)]
pub struct Kernels {
    device: Device,
    code: Arc<Code>,
}

enum Code {
    Device(Module),
    /// Our kernels compiled for the CPU, for tensors on the CPU.
    #[cfg(test)]
    OnCpu(crate::tests::kernels::OnCpu),
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernels on {:?}", self.device)
    }
}

impl Kernels {
    /// Returns the kernels of device `index`, loaded at the first call. The file is the one that
    /// `RLT_KERNELS` names, else `rlt-kernels.fatbin` next to the executable, in `../lib` of it, or next to
    /// `libtorch_cuda.so`.
    ///
    /// # Errors
    /// When the driver or the file is missing, or the file has no code for this device.
    pub fn load(index: usize) -> Result<Self, Error> {
        static LOADED: Mutex<Vec<(usize, Kernels)>> = Mutex::new(Vec::new());
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, kernels)) = loaded.iter().find(|(device, _)| *device == index) {
            return Ok(kernels.clone());
        }
        let code = Arc::new(Code::Device(Module::load(index)?));
        let kernels = Self { device: Device::Cuda(index), code };
        loaded.push((index, kernels.clone()));
        Ok(kernels)
    }

    #[cfg(test)]
    pub(crate) fn on_cpu(code: crate::tests::kernels::OnCpu) -> Self {
        Self { device: Device::Cpu, code: Arc::new(Code::OnCpu(code)) }
    }

    /// Device on which the kernels' tensors must be.
    pub fn device(&self) -> Device {
        self.device
    }

    pub(super) fn operands(&self, act: &'static str) -> Operands {
        Operands { act, device: self.device }
    }

    /// Launches a kernel, unless the grid is empty. `A` must have the layout of the kernel's parameter.
    pub(super) fn launch<A>(&self, name: &str, shape: Shape, arguments: &A) -> Result<(), Error> {
        if shape.grid.contains(&0) {
            return Ok(());
        }
        match &*self.code {
            Code::Device(module) => module.launch(name, shape, arguments),
            #[cfg(test)]
            Code::OnCpu(code) => {
                code.launch(name, shape.grid, [shape.threads, 1, 1], shape.shared_bytes, arguments)
            }
        }
    }
}
