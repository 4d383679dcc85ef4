//! A flat buffer whose memory can be freed while its views exist (as FSDP resizes storage). So views can be
//! leaves of a model and be saved in autograd graphs while the memory is freed. The caller decides when.

use crate::Error;
use crate::ffi::{check, raw, rlt_resize_storage};
use tch::{Device, Kind, Tensor};

/// A flat buffer whose memory can be freed, with all its views.
#[derive(Debug)]
pub struct FlatBuffer {
    flat: Tensor,
}

impl FlatBuffer {
    /// Allocates a buffer of `len` uninitialised elements.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub fn new(len: usize, (kind, device): (Kind, Device)) -> Result<Self, Error> {
        let flat = Tensor::f_empty([len as i64], (kind, device))
            .map_err(|source| Error::Libtorch { act: "making a flat buffer", message: source.to_string() })?;
        Ok(Self { flat })
    }

    /// Allocates the buffer's memory again, uninitialised.
    ///
    /// # Errors
    /// When memory does not suffice.
    pub fn take(&self) -> Result<(), Error> {
        self.resize(self.flat.numel() * self.flat.kind().elt_size_in_bytes())
    }

    /// Frees the memory. Until the next [`Self::take`] no view may be read or written; otherwise the process
    /// would crash.
    ///
    /// # Errors
    /// When the memory is not libtorch's own, which it is after [`Self::new`].
    pub fn release(&self) -> Result<(), Error> {
        self.resize(0)
    }

    /// The tensor of all elements, `[len]`; it has no memory while the buffer has none.
    pub fn tensor(&self) -> &Tensor {
        &self.flat
    }

    /// Returns a view of the elements from `start` on, of the given size. The buffer must have memory.
    ///
    /// # Panics
    /// When the view extends beyond the end, or the memory is released.
    pub fn view(&self, start: usize, size: &[i64]) -> Tensor {
        self.flat.narrow(0, start as i64, size.iter().product()).view(size)
    }

    fn resize(&self, num_bytes: usize) -> Result<(), Error> {
        // SAFETY: a borrowed tensor; its storage is libtorch's own and keeps its identity.
        check("resizing a flat buffer", unsafe { rlt_resize_storage(raw(&self.flat), num_bytes) })
    }
}

/// Frees the values of `tensor`, which libtorch allocated and which is not read any more, and of everything
/// that shares memory with it. Used at the end of a graph whose values have been copied elsewhere. The tensor
/// keeps its size and its graph.
///
/// # Errors
/// When the memory is not libtorch's own.
pub fn forget_values(tensor: &Tensor) -> Result<(), Error> {
    // SAFETY: a borrowed tensor; its storage keeps its identity.
    check("freeing the values of a tensor", unsafe { rlt_resize_storage(raw(tensor), 0) })
}
