//! Asynchronous uploads to a device through pinned memory.

use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::error::or_panic;
use crate::ffi::{raw, rlt_pinned_like, tensor_from};
use crate::tensor_data::{f32_slice_mut, i64_slice_mut};

/// Copies `arrays` to `device` as i64 tensors `[len]`. On a GPU all of them are views of one tensor, filled
/// in stream order by one copy from pinned memory.
///
/// # Panics
/// When memory on the device, or pinned memory on the host, does not suffice.
pub fn upload(arrays: &[&[i64]], device: Device) -> Vec<Tensor> {
    match device {
        Device::Cpu => arrays.iter().map(|array| Tensor::from_slice(array)).collect(),
        _ => or_panic(upload_at_once(arrays, device)),
    }
}

fn upload_at_once(arrays: &[&[i64]], device: Device) -> Result<Vec<Tensor>, Error> {
    let num_all = arrays.iter().map(|array| array.len()).sum::<usize>();
    let mut host = pinned(num_all, Kind::Int64)?;
    let mut rest = i64_slice_mut(&mut host)?;
    for array in arrays {
        let (place, behind) = rest.split_at_mut(array.len());
        place.copy_from_slice(array);
        rest = behind;
    }
    let all = sent(&host, device)?;
    let mut start = 0;
    let views = arrays.iter().map(|array| {
        let view = all.narrow(0, start, array.len() as i64);
        start += array.len() as i64;
        view
    });
    Ok(views.collect())
}

/// Copies `numbers` to `device` as f32 `[len]`, on a GPU in stream order.
///
/// # Panics
/// When memory on the device, or pinned memory on the host, does not suffice.
pub fn upload_f32(numbers: &[f32], device: Device) -> Tensor {
    if device == Device::Cpu {
        return Tensor::from_slice(numbers);
    }
    let uploaded = || {
        let mut host = pinned(numbers.len(), Kind::Float)?;
        f32_slice_mut(&mut host)?.copy_from_slice(numbers);
        sent(&host, device)
    };
    or_panic(uploaded())
}

/// Starts a copy of pinned memory to a device; libtorch keeps the memory until the copy is complete.
fn sent(host: &Tensor, device: Device) -> Result<Tensor, Error> {
    host.f_to_device_(device, host.kind(), true, false)
        .map_err(|source| Error::Libtorch { act: "copying numbers to a device", message: source.to_string() })
}

/// Allocates uninitialised pinned memory for `len` values.
pub(crate) fn pinned(len: usize, kind: Kind) -> Result<Tensor, Error> {
    // Only the shape and dtype of `like` are used, so one value expanded to `len` suffices.
    let like = Tensor::zeros([1], (kind, Device::Cpu)).expand([len as i64], false);
    tensor_from("reserving pinned memory", |out| {
        // SAFETY: a borrowed tensor and a place for the result.
        unsafe { rlt_pinned_like(raw(&like), out) }
    })
}
