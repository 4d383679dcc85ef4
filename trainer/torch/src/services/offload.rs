//! Offload storage: tensors in pinned memory of the host or, for tensors on the CPU, in an unlinked file. The
//! caller decides what is offloaded and when it is prefetched.
//!
//! ```text
//! offload, write   device -> storage     a GPU computes meanwhile
//! prefetch         storage -> a tensor   a GPU computes meanwhile; on the CPU the kernel reads ahead
//! wait                                   the tensor has its values
//! ```
//! A GPU copies on a separate stream, in the order of calls.

use std::fs::File;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::MmapOptions;
use rustix::fs::{Advice, fadvise};
use tch::{Device, Kind, Tensor};

use crate::Error;
use crate::ffi::{
    check, raw, rlt_copy_beside, rlt_finish_copies, rlt_follow_copies, rlt_pinned_like, tensor_from,
};
use crate::tensor_data::{bytes, bytes_mut, tensor_from_bytes};
use crate::weight_arena::{ALIGNMENT, unlinked_file};

const WRITING: &str = "writing offloaded tensors to an unlinked file of";
const READING: &str = "reading offloaded tensors from an unlinked file of";

/// Storage for offloaded tensors of one device. Offloaded tensors may outlive it.
#[derive(Debug)]
pub struct OffloadStorage {
    /// The file of offloaded tensors; `None` if they are in pinned memory.
    file: Option<Arc<UnlinkedFile>>,
    /// Offset of the next tensor in the file, in bytes.
    end: u64,
}

#[derive(Debug)]
struct UnlinkedFile {
    file: File,
    folder: PathBuf,
}

impl UnlinkedFile {
    fn failed(&self, act: &'static str) -> impl FnOnce(std::io::Error) -> Error + use<> {
        let folder = self.folder.clone();
        move |source| Error::File { act, folder, source }
    }
}

impl OffloadStorage {
    /// Makes storage for tensors on `device`. Tensors of the CPU are stored in a new file of `folder`, which
    /// is freed with the last of them.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be created.
    pub fn new(folder: &Path, device: Device) -> Result<Self, Error> {
        let failed =
            |source| Error::File { act: "making an unlinked file in", folder: folder.to_owned(), source };
        let file = match device {
            Device::Cpu => {
                Some(UnlinkedFile { file: unlinked_file(folder).map_err(failed)?, folder: folder.to_owned() })
            }
            _ => None,
        };
        Ok(Self { file: file.map(Arc::new), end: 0 })
    }

    /// Copies a contiguous tensor to the storage.
    ///
    /// # Errors
    /// [`Error::File`] if the disk is full, or an error if pinned memory does not suffice.
    pub fn offload(&mut self, tensor: &Tensor) -> Result<Offloaded, Error> {
        let place = match &self.file {
            Some(file) => Place::File { file: Arc::clone(file), start: self.end },
            None => Place::Pinned(pinned_like(tensor)?),
        };
        let offloaded = Offloaded { size: tensor.size(), numbers: (tensor.kind(), tensor.device()), place };
        offloaded.write(tensor)?;
        self.end = (self.end + offloaded.num_bytes() as u64).next_multiple_of(ALIGNMENT as u64);
        Ok(offloaded)
    }
}

/// A tensor in offload storage.
#[derive(Debug)]
pub struct Offloaded {
    size: Vec<i64>,
    numbers: (Kind, Device),
    place: Place,
}

#[derive(Debug)]
enum Place {
    File {
        file: Arc<UnlinkedFile>,
        start: u64,
    },
    /// A tensor of the same size in pinned memory.
    Pinned(Tensor),
}

impl Offloaded {
    /// Overwrites the stored values with those of a contiguous tensor of the same size, dtype and device. The
    /// tensor may be freed at once, but not written to before the next [`Prefetch::wait`].
    ///
    /// # Errors
    /// [`Error::File`] if they cannot be written, for instance on a full disk, or [`Error::Argument`].
    pub fn write(&self, tensor: &Tensor) -> Result<(), Error> {
        self.check_alike("offloading a tensor", tensor)?;
        match &self.place {
            Place::File { file, start } => {
                file.file.write_all_at(bytes(WRITING, tensor)?, *start).map_err(file.failed(WRITING))
            }
            Place::Pinned(host) => copy_beside(host, tensor),
        }
    }

    /// Starts to copy the values to `target`, a contiguous tensor of the same size, dtype and device, which
    /// must not be used before [`Prefetch::wait`].
    ///
    /// # Errors
    /// When the copy cannot be started, or [`Error::Argument`].
    pub fn prefetch(&self, target: &Tensor) -> Result<Prefetch, Error> {
        self.check_alike("fetching a tensor", target)?;
        let target = target.detach();
        let unread = match &self.place {
            Place::File { file, start } => {
                // A file system without read-ahead reads the file in `wait`.
                let _ =
                    fadvise(&file.file, *start, NonZeroU64::new(self.num_bytes() as u64), Advice::WillNeed);
                Some((Arc::clone(file), *start))
            }
            Place::Pinned(host) => {
                copy_beside(&target, host)?;
                None
            }
        };
        Ok(Prefetch { target, unread })
    }

    /// Starts to copy the values to a new tensor.
    ///
    /// # Errors
    /// When memory does not suffice, or the copy cannot be started.
    pub fn prefetch_new(&self) -> Result<Prefetch, Error> {
        let target = Tensor::f_empty(self.size.as_slice(), self.numbers).map_err(|source| {
            Error::Libtorch { act: "allocating memory for an offloaded tensor", message: source.to_string() }
        })?;
        self.prefetch(&target)
    }

    /// Copies the values to a new tensor and waits for them.
    ///
    /// # Errors
    /// The errors of [`Self::prefetch_new`] and [`Prefetch::wait`].
    pub fn bring(&self) -> Result<Tensor, Error> {
        self.prefetch_new()?.wait()
    }

    /// Returns the stored values as a tensor on the CPU, without a copy. The tensor must not be written to,
    /// takes memory as it is read, and shows later writes.
    ///
    /// # Errors
    /// [`Error::File`] if the file cannot be mapped.
    pub fn in_place(&self) -> Result<Tensor, Error> {
        let (file, start) = match &self.place {
            Place::File { file, start } if self.num_bytes() > 0 => (file, *start),
            Place::File { .. } => return Ok(Tensor::zeros(self.size.as_slice(), self.numbers)),
            Place::Pinned(host) => {
                // SAFETY: waits.
                check("waiting for copies", unsafe { rlt_finish_copies(cuda_index(self.numbers.1)) })?;
                return Ok(host.shallow_clone());
            }
        };
        let mut range = MmapOptions::new();
        range.offset(start).len(self.num_bytes());
        // SAFETY: the file has no name and is never shortened; the caller must not write to it while the
        // tensor is read.
        let map = unsafe { range.map(&file.file) }.map_err(file.failed("mapping an unlinked file of"))?;
        tensor_from_bytes(Arc::new(map), 0, &self.size, self.numbers.0)
    }

    /// Number of bytes of the values.
    pub fn num_bytes(&self) -> usize {
        self.size.iter().product::<i64>() as usize * self.numbers.0.elt_size_in_bytes()
    }

    fn check_alike(&self, act: &'static str, tensor: &Tensor) -> Result<(), Error> {
        let is_alike = tensor.size() == self.size && (tensor.kind(), tensor.device()) == self.numbers;
        if is_alike && tensor.is_contiguous() {
            return Ok(());
        }
        let described =
            |size: &[i64], (kind, device): (Kind, Device)| format!("{size:?} of {kind:?} on {device:?}");
        Err(Error::Argument {
            act,
            expected: format!("a contiguous tensor {}", described(&self.size, self.numbers)),
            got: described(&tensor.size(), (tensor.kind(), tensor.device())),
        })
    }
}

/// A prefetch of a tensor in flight.
#[derive(Debug)]
#[must_use = "a tensor has its values only after the wait"]
pub struct Prefetch {
    target: Tensor,
    /// The file and offset from which the CPU has yet to read the values.
    unread: Option<(Arc<UnlinkedFile>, u64)>,
}

impl Prefetch {
    /// Returns the tensor with its values, once this prefetch and all earlier ones are complete.
    ///
    /// # Errors
    /// [`Error::File`] if the values cannot be read.
    pub fn wait(mut self) -> Result<Tensor, Error> {
        match self.unread.take() {
            Some((file, start)) => {
                let target = bytes_mut(READING, &mut self.target)?;
                file.file.read_exact_at(target, start).map_err(file.failed(READING))?;
            }
            None => {
                let index = cuda_index(self.target.device());
                // SAFETY: one stream waits for another.
                check("waiting for a copy", unsafe { rlt_follow_copies(index) })?;
            }
        }
        Ok(self.target)
    }
}

fn cuda_index(device: Device) -> i64 {
    match device {
        Device::Cuda(index) => index as i64,
        _ => 0,
    }
}

fn pinned_like(tensor: &Tensor) -> Result<Tensor, Error> {
    tensor_from("reserving pinned memory", |out| {
        // SAFETY: a borrowed tensor and a place for the result.
        unsafe { rlt_pinned_like(raw(tensor), out) }
    })
}

fn copy_beside(to: &Tensor, from: &Tensor) -> Result<(), Error> {
    // SAFETY: borrowed tensors, whose memory lives until the copy is over.
    check("copying between device and host", unsafe { rlt_copy_beside(raw(to), raw(from)) })
}
