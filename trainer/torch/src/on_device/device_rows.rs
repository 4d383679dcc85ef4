//! The row operations of a decoder layer on a GPU: the kernel launches that `csrc/fused_cuda.cpp` requests,
//! in the forward pass and from autograd.

use std::ffi::{c_char, c_int};

use tch::{Device, Tensor};
use torch_sys::C_tensor;

use crate::cuda::{GatedRows, Kernels, NormRows, RopeRows};
use crate::{Activation, Error};

/// Launches a kernel; autograd calls it from its own threads. An error is written as a NUL-terminated
/// message.
///
/// # Safety
/// There are as many tensors and numbers as stated; they are valid during the call, and so are
/// `message_bytes` bytes of `message`.
pub(crate) unsafe extern "C" fn launch(
    kernel: c_int,
    tensors: *const *mut C_tensor,
    num_tensors: usize,
    numbers: *const f64,
    num_numbers: usize,
    message: *mut c_char,
    message_bytes: usize,
) -> bool {
    // SAFETY: as many as said.
    let (tensors, numbers) = unsafe {
        (std::slice::from_raw_parts(tensors, num_tensors), std::slice::from_raw_parts(numbers, num_numbers))
    };
    // SAFETY: each becomes another reference to the same tensor, which is dropped here.
    let tensors: Vec<Tensor> =
        tensors.iter().map(|tensor| unsafe { Tensor::clone_from_ptr(*tensor) }).collect();
    let tensors: Vec<&Tensor> = tensors.iter().collect();
    let Err(error) = launched(kernel, &tensors, numbers) else { return true };
    // SAFETY: as this function's caller promises.
    unsafe { error.write_to(message, message_bytes) };
    false
}

/// Dispatches a kernel by its number, which is that of `RowKernel` in fused_cuda.cpp.
fn launched(kernel: c_int, tensors: &[&Tensor], numbers: &[f64]) -> Result<(), Error> {
    let device = tensors.first().map_or(Device::Cpu, |tensor| tensor.device());
    let refused = || Error::Argument {
        act: "a row operation on a device",
        expected: "a known kernel with its tensors and numbers, on a GPU".into(),
        got: format!("kernel {kernel} with {} and {} on {device:?}", tensors.len(), numbers.len()),
    };
    let Device::Cuda(index) = device else { return Err(refused()) };
    let kernels = &Kernels::load(index)?;
    match (kernel, tensors, numbers) {
        (0, &[x, weight, out, rstd], &[eps, offset]) => {
            NormRows { x, weight, offset, rstd, out }.launch(kernels, eps)
        }
        (1, &[x, weight, grad, out, rstd, partial], &[offset]) => {
            NormRows { x, weight, offset, rstd, out }.launch_backward(kernels, grad, partial)
        }
        (2, &[gate, up, out], &[code]) => {
            GatedRows { gate, up, activation: activation_of(code) }.launch(kernels, out)
        }
        (3, &[gate, up, grad, grad_gate, grad_up], &[code]) => {
            let rows = GatedRows { gate, up, activation: activation_of(code) };
            rows.launch_backward(kernels, grad, [grad_gate, grad_up])
        }
        (4, &[x, cos, sin, out], &[is_backward]) => {
            RopeRows { x, cos, sin, out }.launch(kernels, is_backward != 0.0)
        }
        _ => Err(refused()),
    }
}

/// Decodes an activation from its number in a row operation.
fn activation_of(code: f64) -> Activation {
    if code == 0.0 { Activation::Silu } else { Activation::GeluTanh }
}
