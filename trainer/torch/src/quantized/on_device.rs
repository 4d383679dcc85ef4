//! Callbacks by which C++ dequantizes a weight on a GPU; they launch the kernels.

use std::ffi::c_char;

use tch::{Device, Kind, Tensor};
use torch_sys::C_tensor;

use super::{NestedScales, QuantFormat, QuantLayout, QuantizedMatrix};
use crate::Error;
use crate::cuda::{Dequantize, Kernels, QuantizedRows};
use crate::ffi::QuantizedParts;
use crate::tensor_data::scalar_type;

/// Dequantizes `weight` into `out` [out, in] on its GPU, on libtorch's current stream. Returns whether that
/// succeeded; if not, the NUL-terminated cause is written to `message`, which has `capacity` bytes.
///
/// # Safety
/// `weight` and `out` point to what `quantized.cpp` owns during the call, `message` to `capacity` bytes.
pub(super) unsafe extern "C" fn dequantize_on_device(
    weight: *const QuantizedParts,
    out: *mut C_tensor,
    message: *mut c_char,
    capacity: usize,
) -> bool {
    // SAFETY: promised by the caller.
    let (matrix, out) = unsafe { (borrowed(&*weight), Tensor::clone_from_ptr(out)) };
    let Err(error) = launch(&matrix, &out) else { return true };
    let text = error.to_string();
    let len = text.len().min(capacity - 1);
    // SAFETY: as many bytes as there is room for, and the NUL.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), message.cast(), len);
        *message.add(len) = 0;
    }
    false
}

fn launch(matrix: &QuantizedMatrix, out: &Tensor) -> Result<(), Error> {
    let Device::Cuda(index) = out.device() else {
        let (expected, got) = ("a GPU".into(), format!("{:?}", out.device()));
        return Err(Error::Argument { act: "dequantizing a weight on its device", expected, got });
    };
    let parts = [QuantizedRows { matrix, rows: None }];
    Dequantize { parts: &parts, out }.launch(&Kernels::load(index)?)
}

/// Makes a weight with its own references to the tensors of `parts`.
///
/// # Safety
/// The tensors of `parts` are alive.
unsafe fn borrowed(parts: &QuantizedParts) -> QuantizedMatrix {
    // SAFETY: promised by the caller.
    let own = |tensor: *mut C_tensor| unsafe { Tensor::clone_from_ptr(tensor) };
    let is_stored = |kind: &Kind| scalar_type(*kind).is_ok_and(|code| i64::from(code) == parts.stored);
    let layout = QuantLayout {
        format: match () {
            () if parts.format != 0 => QuantFormat::Int8,
            () if parts.table == QuantFormat::Fp4.table().as_ptr() => QuantFormat::Fp4,
            () => QuantFormat::Nf4,
        },
        block_size: parts.block as usize,
        nested: !parts.nested_scales.is_null(),
        stored: [Kind::BFloat16, Kind::Half].into_iter().find(is_stored).unwrap_or(Kind::Float),
    };
    let nested = layout
        .nested
        .then(|| NestedScales { absmax: own(parts.nested_scales), offset: own(parts.nested_offset) });
    let size = [parts.num_outputs, parts.num_inputs];
    QuantizedMatrix::new(size, layout, own(parts.codes), own(parts.scales), nested)
}
