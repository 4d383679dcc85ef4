//! Our own kernels on one device. Each launcher writes into tensors that the caller gives, on libtorch's
//! current stream: it allocates nothing, copies nothing and waits for nothing, so that a stream capture can
//! hold it. Launchers take one structure each; its `launch` method says shapes and dtypes.

use super::module::{Module, Shape};
use super::operand::Operands;
use crate::Error;
use std::sync::{Arc, Mutex, PoisonError};
use tch::Device;

/// What `rlt-kernels.fatbin` holds machine code for; PTX serves newer architectures than the last.
pub const BUILT_FOR: [&str; 4] = ["sm_80", "sm_90", "sm_100", "compute_100 (PTX)"];

/// The kernels as loaded into one device.
#[derive(Clone)]
pub struct Kernels {
    device: Device,
    code: Arc<Code>,
}

enum Code {
    Device(Module),
    /// The same sources compiled for the CPU, on tensors of the CPU.
    #[cfg(test)]
    OnCpu(crate::tests::kernels::OnCpu),
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Kernels on {:?}", self.device)
    }
}

impl Kernels {
    /// The kernels of device `index`, loaded at the first call. The file is `rlt-kernels.fatbin`: the one
    /// that `RLT_KERNELS` names, else beside the executable, in `../lib` of it, or beside `libtorch_cuda.so`.
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

    /// The device whose tensors these kernels take.
    pub fn device(&self) -> Device {
        self.device
    }

    pub(super) fn operands(&self, act: &'static str) -> Operands {
        Operands { act, device: self.device }
    }

    /// Launches unless the grid is empty. `A` must have the layout of the kernel's parameter.
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
