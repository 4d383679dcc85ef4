//! Checks of a launcher's tensors before their addresses are passed to a device: dtype, shape, device,
//! contiguity.

use crate::Error;
use std::ffi::c_void;
use tch::{Device, Kind, Tensor};

/// Index of a CUDA device; `None` for other devices.
pub(super) fn cuda_index(device: Device) -> Option<usize> {
    if let Device::Cuda(index) = device { Some(index) } else { None }
}

/// Checks of the operands of one launch.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    pub(super) act: &'static str,
    pub(super) device: Device,
}

impl Operands {
    /// Returns the address of `tensor`, which must be a dense tensor of `kind` and `shape` on the device.
    pub(super) fn address(
        &self,
        name: &str,
        tensor: &Tensor,
        kind: Kind,
        shape: &[i64],
    ) -> Result<*mut c_void, Error> {
        let fits = tensor.kind() == kind && tensor.size() == shape && tensor.device() == self.device;
        if fits && tensor.is_contiguous() {
            return Ok(tensor.data_ptr());
        }
        Err(Error::Argument {
            act: self.act,
            expected: format!("{name} as dense {kind:?} {shape:?} on {:?}", self.device),
            got: format!(
                "{:?} {:?} with strides {:?} on {:?}",
                tensor.kind(),
                tensor.size(),
                tensor.stride(),
                tensor.device()
            ),
        })
    }

    /// Like [`Self::address`]; null for `None`.
    pub(super) fn address_or_null(
        &self,
        name: &str,
        tensor: Option<&Tensor>,
        kind: Kind,
        shape: &[i64],
    ) -> Result<*mut c_void, Error> {
        tensor.map_or(Ok(std::ptr::null_mut()), |tensor| self.address(name, tensor, kind, shape))
    }

    /// Returns the sizes of a tensor, which must have `N` dimensions.
    pub(super) fn sizes<const N: usize>(&self, name: &str, tensor: &Tensor) -> Result<[i64; N], Error> {
        tensor.size().try_into().map_err(|size: Vec<i64>| Error::Argument {
            act: self.act,
            expected: format!("{name} with {N} dims"),
            got: format!("{size:?}"),
        })
    }

    /// Fails unless `fits`, with the expected and the given value.
    pub(super) fn require(
        &self,
        fits: bool,
        expected: &str,
        got: impl std::fmt::Display,
    ) -> Result<(), Error> {
        if fits {
            return Ok(());
        }
        Err(Error::Argument { act: self.act, expected: expected.into(), got: got.to_string() })
    }

    /// Returns the name of a family's kernel for the dtype `kind`.
    pub(super) fn kernel(&self, family: &str, kind: Kind) -> Result<String, Error> {
        let suffix = match kind {
            Kind::Float => "f32",
            Kind::BFloat16 => "bf16",
            Kind::Half => "f16",
            _ => {
                return Err(Error::Argument {
                    act: self.act,
                    expected: "numbers of Float, BFloat16 or Half".into(),
                    got: format!("{kind:?}"),
                });
            }
        };
        Ok(format!("{family}_{suffix}"))
    }
}
