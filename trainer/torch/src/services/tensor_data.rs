//! Tensor memory as Rust slices, and Rust memory as tensors, without copies.

use crate::Error;
use crate::ffi::{rlt_tensor_from_owner, tensor_from};
use std::ffi::c_void;
use std::sync::Arc;
use tch::{Device, Kind, Tensor};

/// Returns the start and the number of elements of a contiguous CPU tensor, after checking its dtype.
fn elements<T>(act: &'static str, tensor: &Tensor, kind: Kind) -> Result<(*mut T, usize), Error> {
    if tensor.device() != Device::Cpu || tensor.kind() != kind || !tensor.is_contiguous() {
        return Err(Error::Argument {
            act,
            expected: format!("a contiguous CPU tensor of {kind:?}"),
            got: format!("{:?} of {:?} on {:?}", tensor.size(), tensor.kind(), tensor.device()),
        });
    }
    Ok((tensor.data_ptr().cast(), tensor.numel()))
}

fn shared<'a, T>(act: &'static str, tensor: &'a Tensor, kind: Kind) -> Result<&'a [T], Error> {
    let (data, len) = elements(act, tensor, kind)?;
    // SAFETY: `elements` checked device, dtype and contiguity, and the storage lives as long as the borrowed
    // tensor. An empty tensor may have no storage.
    Ok(if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data, len) } })
}

/// Borrows the elements of a contiguous f32 tensor on the CPU. The tensor must not be changed through another
/// handle meanwhile.
///
/// # Errors
/// When the tensor is on another device, has another dtype or is not contiguous.
pub fn f32_slice(tensor: &Tensor) -> Result<&[f32], Error> {
    shared("reading f32 elements", tensor, Kind::Float)
}

/// Borrows the elements of a contiguous i64 tensor on the CPU; see [`f32_slice`].
///
/// # Errors
/// The errors of [`f32_slice`].
pub fn i64_slice(tensor: &Tensor) -> Result<&[i64], Error> {
    shared("reading i64 elements", tensor, Kind::Int64)
}

/// Borrows the elements of a contiguous i32 tensor on the CPU; see [`f32_slice`].
///
/// # Errors
/// The errors of [`f32_slice`].
pub fn i32_slice(tensor: &Tensor) -> Result<&[i32], Error> {
    shared("reading i32 elements", tensor, Kind::Int)
}

/// Mutably borrows the elements of a contiguous i32 tensor on the CPU; see [`f32_slice_mut`].
///
/// # Errors
/// The errors of [`f32_slice`].
pub fn i32_slice_mut(tensor: &mut Tensor) -> Result<&mut [i32], Error> {
    let (data, len) = elements::<i32>("writing i32 elements", tensor, Kind::Int)?;
    // SAFETY: as in `shared`; the handle is borrowed mutably.
    Ok(if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(data, len) } })
}

/// Mutably borrows the elements of a contiguous f32 tensor on the CPU. Writes are visible through other
/// handles of the same storage.
///
/// # Errors
/// The errors of [`f32_slice`].
pub fn f32_slice_mut(tensor: &mut Tensor) -> Result<&mut [f32], Error> {
    let (data, len) = elements::<f32>("writing f32 elements", tensor, Kind::Float)?;
    // SAFETY: as in `shared`; the handle is borrowed mutably.
    Ok(if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(data, len) } })
}

/// Mutably borrows the elements of a contiguous i64 tensor on the CPU; see [`f32_slice_mut`].
///
/// # Errors
/// The errors of [`f32_slice`].
pub(crate) fn i64_slice_mut(tensor: &mut Tensor) -> Result<&mut [i64], Error> {
    let (data, len) = elements::<i64>("writing i64 elements", tensor, Kind::Int64)?;
    // SAFETY: as in `shared`; the handle is borrowed mutably.
    Ok(if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(data, len) } })
}

/// Copies the elements of a tensor on any device to the host in one call, and waits for them. Reading them
/// one by one takes a call into libtorch for each, and on a GPU a wait.
///
/// # Panics
/// When the tensor has another dtype than `T`.
pub fn to_vec<T: tch::kind::Element>(tensor: &Tensor) -> Vec<T> {
    let mut values = vec![T::ZERO; tensor.numel()];
    let on_host = tensor.detach().to_device(Device::Cpu).contiguous();
    on_host.copy_data(&mut values, tensor.numel());
    values
}

/// Returns the start and the number of bytes of a contiguous CPU tensor.
fn place_of_bytes(act: &'static str, tensor: &Tensor) -> Result<(*mut u8, usize), Error> {
    let (data, len) = elements(act, tensor, tensor.kind())?;
    Ok((data, len * tensor.kind().elt_size_in_bytes()))
}

/// Borrows the bytes of a contiguous tensor on the CPU.
pub(crate) fn bytes<'a>(act: &'static str, tensor: &'a Tensor) -> Result<&'a [u8], Error> {
    let (data, len) = place_of_bytes(act, tensor)?;
    // SAFETY: as in `shared`.
    Ok(if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data, len) } })
}

/// Mutably borrows the bytes of a contiguous tensor on the CPU.
pub(crate) fn bytes_mut<'a>(act: &'static str, tensor: &'a mut Tensor) -> Result<&'a mut [u8], Error> {
    let (data, len) = place_of_bytes(act, tensor)?;
    // SAFETY: as in `shared`; the handle is borrowed mutably.
    Ok(if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(data, len) } })
}

unsafe extern "C" fn release<O>(owner: *mut c_void) {
    // SAFETY: the pointer is that of `Box::into_raw` in `from_owner`, and libtorch calls this once.
    drop(unsafe { Box::from_raw(owner.cast::<O>()) });
}

pub(crate) fn from_owner<O>(data: *mut c_void, owner: O, shape: &[i64], kind: Kind) -> Result<Tensor, Error> {
    let code = scalar_type(kind)?;
    let owner = Box::into_raw(Box::new(owner)).cast::<c_void>();
    let made = tensor_from("making a tensor of given memory", |out| {
        // SAFETY: `data` points into `owner`, which lives until `release`; the shape was checked by the
        // callers.
        unsafe { rlt_tensor_from_owner(data, shape.as_ptr(), shape.len(), code, owner, release::<O>, out) }
    });
    if made.is_err() {
        // SAFETY: without a tensor nothing else releases the owner.
        unsafe { release::<O>(owner) };
    }
    made
}

/// libtorch's number of a dtype (c10/core/ScalarType.h).
pub(crate) fn scalar_type(kind: Kind) -> Result<i8, Error> {
    match kind {
        Kind::Uint8 => Ok(0),
        Kind::Int8 => Ok(1),
        Kind::Int16 => Ok(2),
        Kind::Int => Ok(3),
        Kind::Int64 => Ok(4),
        Kind::Half => Ok(5),
        Kind::Float => Ok(6),
        Kind::Double => Ok(7),
        Kind::Bool => Ok(11),
        Kind::BFloat16 => Ok(15),
        other => Err(Error::Argument {
            act: "making a tensor of given memory",
            expected: "a dtype of plain numbers".into(),
            got: format!("{other:?}"),
        }),
    }
}

fn check_len(len: usize, unit: usize, shape: &[i64]) -> Result<(), Error> {
    let wanted =
        shape.iter().try_fold(unit as i64, |n, &dim| if dim < 0 { None } else { n.checked_mul(dim) });
    if wanted == i64::try_from(len).ok() {
        return Ok(());
    }
    Err(Error::Argument {
        act: "making a tensor of given memory",
        expected: format!("memory for the shape {shape:?} at {unit} bytes an element"),
        got: format!("{len} bytes"),
    })
}

/// Makes a tensor that owns the vector's memory, without a copy.
///
/// # Errors
/// When the shape has another number of elements than the vector.
pub fn tensor_from_vec<T: tch::kind::Element + 'static>(
    mut values: Vec<T>,
    shape: &[i64],
) -> Result<Tensor, Error> {
    check_len(size_of_val(values.as_slice()), size_of::<T>(), shape)?;
    let data = values.as_mut_ptr().cast();
    from_owner(data, values, shape, T::KIND)
}

/// Makes a tensor over shared bytes such as a mapped file, from `offset` on, without a copy; the bytes live
/// as long as the tensor. The tensor must not be written to, in place or otherwise. Copies instead if the
/// bytes are not aligned to the element's size.
///
/// # Errors
/// When there are fewer bytes than the shape needs.
pub fn tensor_from_bytes<B>(bytes: Arc<B>, offset: usize, shape: &[i64], kind: Kind) -> Result<Tensor, Error>
where
    B: AsRef<[u8]> + Send + Sync + ?Sized + 'static,
{
    let unit = kind.elt_size_in_bytes();
    let all: &[u8] = (*bytes).as_ref();
    let num = shape.iter().product::<i64>().max(0) as usize;
    let end = num.checked_mul(unit).and_then(|len| len.checked_add(offset)).unwrap_or(usize::MAX);
    let part = all.get(offset..end).unwrap_or(&[]);
    check_len(part.len(), unit, shape)?;
    if part.as_ptr().align_offset(unit) != 0 || part.is_empty() {
        return Ok(Tensor::from_data_size(part, shape, kind));
    }
    let data = part.as_ptr().cast_mut().cast();
    from_owner(data, bytes, shape, kind)
}
