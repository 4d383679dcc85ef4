//! Memory that many tensors share and that is freed at once: an arena of large pages for weights that are
//! read often, and an unlinked file for weights that are read rarely.

use crate::Error;
use crate::tensor_data::{from_owner, tensor_from_bytes};
use memmap2::{Advice, Mmap, MmapMut, UncheckedAdvice};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tch::{Device, Tensor};

/// Alignment of every tensor in bytes: a cache line.
pub(crate) const ALIGNMENT: usize = 64;

/// A bump allocator of tensors. Its memory lives as long as any of its tensors.
///
/// Pages are large if the kernel supports it: a pass over half a gigabyte of weights spends more time on
/// looking up small pages than on reading them.
#[derive(Debug)]
pub struct WeightArena {
    map: Arc<Owned>,
    used: usize,
}

/// The mapping, to which tensors write.
#[derive(Debug)]
struct Owned {
    // Held only to keep the memory; all access is through tensors.
    _map: MmapMut,
    start: *mut u8,
    len: usize,
}

// SAFETY: the mapping is plain memory that no thread owns. `WeightArena::keep` hands out every byte once, so
// no two threads write to the same.
unsafe impl Send for Owned {}
// SAFETY: as above.
unsafe impl Sync for Owned {}

impl WeightArena {
    /// Reserves `num_bytes`; physical memory is allocated as tensors are kept.
    ///
    /// # Errors
    /// When the operating system does not provide the memory.
    pub fn new(num_bytes: usize) -> Result<Self, Error> {
        let refused = |source| Error::Memory { act: "reserving a block of memory", num_bytes, source };
        let mut map = MmapMut::map_anon(num_bytes.max(1)).map_err(refused)?;
        // A kernel without large pages serves small ones.
        let _ = map.advise(Advice::HugePage);
        let (start, len) = (map.as_mut_ptr(), map.len());
        Ok(Self { map: Arc::new(Owned { _map: map, start, len }), used: 0 })
    }

    /// Copies a CPU tensor to a contiguous tensor, in this arena if it has enough space left, else in memory
    /// of its own.
    ///
    /// # Errors
    /// When libtorch does not support the dtype.
    pub fn keep(&mut self, tensor: &Tensor) -> Result<Tensor, Error> {
        let start = self.used.next_multiple_of(ALIGNMENT);
        let end = start + tensor.numel() * tensor.kind().elt_size_in_bytes();
        if tensor.device() != Device::Cpu || end > self.map.len {
            return Ok(tch::no_grad(|| tensor.detach().contiguous().copy()));
        }
        // SAFETY: start..end is within the mapping and was not handed out before.
        let data = unsafe { self.map.start.add(start) };
        let mut kept = from_owner(data.cast(), Arc::clone(&self.map), &tensor.size(), tensor.kind())?;
        self.used = end;
        tch::no_grad(|| kept.copy_(&tensor.detach()));
        Ok(kept)
    }
}

/// Tensors in an unlinked file, mapped for reading. The operating system may reclaim their memory while they
/// are not read.
#[derive(Debug)]
pub struct TensorFile {
    map: Arc<Mmap>,
    file: File,
    folder: PathBuf,
}

impl TensorFile {
    /// Writes CPU tensors to a new, unlinked file in `folder`, and returns the mapped tensors in order. Only
    /// [`Self::rewrite`] changes them.
    ///
    /// # Errors
    /// When the file cannot be written or mapped, for instance on a full disk.
    pub fn write(folder: &Path, tensors: &[Tensor]) -> Result<(Self, Vec<Tensor>), Error> {
        let failed =
            |source| Error::File { act: "writing tensors into a file of", folder: folder.into(), source };
        let file = unlinked_file(folder).map_err(failed)?;
        let mut writer = BufWriter::with_capacity(1 << 20, &file);
        let mut starts = Vec::with_capacity(tensors.len());
        let mut end = 0;
        for tensor in tensors {
            let start = usize::next_multiple_of(end, ALIGNMENT);
            writer.write_all(&[0; ALIGNMENT][..start - end]).map_err(failed)?;
            let plain = tensor.detach().to_device(Device::Cpu).contiguous();
            let bytes = bytes_of(&plain);
            writer.write_all(bytes).map_err(failed)?;
            starts.push(start);
            end = start + bytes.len();
        }
        writer.flush().map_err(failed)?;
        drop(writer);
        // SAFETY: the file has no name, so no other process can shorten or change it.
        let map = Arc::new(unsafe { Mmap::map(&file) }.map_err(failed)?);
        let mapped = tensors
            .iter()
            .zip(starts)
            .map(|(tensor, start)| tensor_from_bytes(Arc::clone(&map), start, &tensor.size(), tensor.kind()));
        let mapped = mapped.collect::<Result<_, _>>()?;
        Ok((Self { map, file, folder: folder.to_owned() }, mapped))
    }

    /// Overwrites `place`, a contiguous tensor of this file or a part of one, with `values` of the same dtype
    /// and number of elements. Later reads return the new values.
    ///
    /// # Errors
    /// When `place` is not in this file or has another dtype or length, or when the file cannot be written.
    pub fn rewrite(&self, place: &Tensor, values: &Tensor) -> Result<(), Error> {
        let act = "rewriting tensors in a file of";
        let plain = values.detach().to_device(Device::Cpu).contiguous();
        let bytes = bytes_of(&plain);
        let start = (place.data_ptr() as usize).checked_sub(self.map.as_ptr() as usize);
        let start = start.filter(|start| start + bytes.len() <= self.map.len() && place.is_contiguous());
        let described = |tensor: &Tensor| (tensor.kind(), tensor.numel());
        match start {
            _ if bytes.is_empty() && place.numel() == 0 => Ok(()),
            Some(start) if described(place) == described(values) => {
                let written = self.file.write_all_at(bytes, start as u64);
                written.map_err(|source| Error::File { act, folder: self.folder.clone(), source })
            }
            _ => Err(Error::Argument {
                act,
                expected: format!("a contiguous tensor of it, {:?}", described(values)),
                got: format!("{:?}", described(place)),
            }),
        }
    }

    /// Releases the memory of all pages; the next read loads them from the file or the page cache.
    pub fn release(&self) {
        // SAFETY: the mapping is shared and only read, so dropped pages are read again with the same bytes.
        let _ = unsafe { self.map.unchecked_advise(UncheckedAdvice::DontNeed) };
    }
}

/// The bytes of a contiguous CPU tensor.
fn bytes_of(plain: &Tensor) -> &[u8] {
    match plain.numel() * plain.kind().elt_size_in_bytes() {
        0 => &[],
        // SAFETY: the elements of a contiguous CPU tensor, borrowed while `plain` lives.
        len => unsafe { std::slice::from_raw_parts(plain.data_ptr().cast(), len) },
    }
}

/// Creates a file, open for reading and writing, and unlinks it. On a shared folder, processes of other
/// machines may do the same under the same process id.
pub(crate) fn unlinked_file(folder: &Path) -> std::io::Result<File> {
    let mut attempt = 0;
    loop {
        let path = folder.join(format!(".tensors-{}-{attempt}", std::process::id()));
        match File::options().read(true).write(true).create_new(true).open(&path) {
            Ok(file) => return std::fs::remove_file(path).map(|()| file),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}
