//! A flat buffer whose memory can be freed while its views stay (as FSDP resizes storage): views can be
//! leaves of a model and be saved in autograd graphs while the memory is freed. The caller decides when.

use crate::Error;
use crate::border::{check, raw, rlt_resize_storage};
use tch::{Device, Kind, Tensor};

/// A flat buffer and all tensors that are views of it.
#[derive(Debug)]
pub struct FlatBuffer {
    flat: Tensor,
}

impl FlatBuffer {
    /// A buffer of `len` elements with memory, in which is anything.
    ///
    /// # Errors
    /// When there is not enough.
    pub fn new(len: usize, (kind, device): (Kind, Device)) -> Result<Self, Error> {
        let flat = Tensor::f_empty([len as i64], (kind, device))
            .map_err(|source| Error::Libtorch { act: "making a flat buffer", message: source.to_string() })?;
        Ok(Self { flat })
    }

    /// Gives the buffer memory again; what is in it is anything.
    ///
    /// # Errors
    /// When there is not enough.
    pub fn take(&self) -> Result<(), Error> {
        self.resize(self.flat.numel() * self.flat.kind().elt_size_in_bytes())
    }

    /// Frees the memory. Until the next [`Self::take`] no view may be read or written: the process would
    /// fault.
    ///
    /// # Errors
    /// When the memory is not libtorch's, which it is from [`Self::new`] on.
    pub fn release(&self) -> Result<(), Error> {
        self.resize(0)
    }

    /// All elements, `[len]`; empty of memory while the buffer is.
    pub fn tensor(&self) -> &Tensor {
        &self.flat
    }

    /// The elements from `start` on in the given size; libtorch makes views only of what has memory.
    ///
    /// # Panics
    /// When they are beyond the end, or the memory was released.
    pub fn view(&self, start: usize, size: &[i64]) -> Tensor {
        self.flat.narrow(0, start as i64, size.iter().product()).view(size)
    }

    fn resize(&self, num_bytes: usize) -> Result<(), Error> {
        // SAFETY: a borrowed tensor; its storage is libtorch's own and keeps its identity.
        check("resizing a flat buffer", unsafe { rlt_resize_storage(raw(&self.flat), num_bytes) })
    }
}

/// Frees the values of `tensor`, which libtorch allocated and which is not read any more, and of everything
/// that shares memory with it: for the end of a graph whose values have been copied elsewhere. Its size
/// stays, and so does the graph behind it.
///
/// # Errors
/// When the memory is not libtorch's own.
pub fn forget_values(tensor: &Tensor) -> Result<(), Error> {
    // SAFETY: a borrowed tensor; its storage keeps its identity.
    check("freeing the values of a tensor", unsafe { rlt_resize_storage(raw(tensor), 0) })
}
