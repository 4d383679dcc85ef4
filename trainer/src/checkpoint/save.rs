//! Streams tensors and state into one folder; committing that folder is the store's.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use sha2::{Digest, Sha256};
use tch::Tensor;

use super::manifest::{self, FileEntry, Manifest, TensorEntry, TensorPiece};
use super::storage::{Storage, StorageFile};
use super::{CheckpointContent, CheckpointError, dtype};

/// Bytes copied out of a tensor at a time: large enough that calls cost nothing, small enough to stay in cache.
const CHUNK_BYTES: usize = 1 << 20;
/// The first bytes of a safetensors file are the length of its header.
const HEADER_LENGTH_BYTES: u64 = 8;

/// Writes and syncs all files of a checkpoint into the existing, empty `folder`. Returns the bytes written.
pub(super) fn write_folder(
    storage: &dyn Storage,
    folder: &Path,
    (step, save_index): (u64, u64),
    content: &CheckpointContent,
) -> Result<u64, CheckpointError> {
    let shard_name = "shard-00000.safetensors";
    let layout = Layout::new(shard_name, &content.tensors)?;
    let shard_entry = write_tensors(storage, &folder.join(shard_name), &layout, &content.tensors)?;

    let state_path = folder.join(manifest::STATE_FILE_NAME);
    let state_json =
        serde_json::to_vec_pretty(&content.state).map_err(CheckpointError::parse(&state_path))?;
    let state_entry = write_file(storage, &state_path, &state_json)?;

    let manifest = Manifest {
        format: manifest::FORMAT.into(),
        version: manifest::VERSION,
        step,
        save_index,
        files: BTreeMap::from([
            (shard_name.to_owned(), shard_entry.clone()),
            (manifest::STATE_FILE_NAME.to_owned(), state_entry.clone()),
        ]),
        tensors: layout.entries,
        sha256: String::new(),
    };
    let manifest_path = folder.join(manifest::FILE_NAME);
    let manifest_json = manifest.to_json().map_err(CheckpointError::parse(&manifest_path))?;
    let manifest_entry = write_file(storage, &manifest_path, &manifest_json)?;
    storage.sync_dir(folder).map_err(CheckpointError::folder("sync folder", folder))?;
    Ok(shard_entry.num_bytes + state_entry.num_bytes + manifest_entry.num_bytes)
}

/// Where each tensor goes within one safetensors file.
struct Layout {
    /// Length prefix and JSON, padded so that tensor data starts at a multiple of eight bytes.
    header: Vec<u8>,
    /// Positions in the caller's list, in the order of the file.
    order: Vec<usize>,
    /// The manifest's view of the same.
    entries: BTreeMap<String, TensorEntry>,
}

impl Layout {
    fn new(file: &str, tensors: &[(String, Tensor)]) -> Result<Self, CheckpointError> {
        let dtypes =
            tensors.iter().map(|(name, tensor)| dtype_of(name, tensor)).collect::<Result<Vec<_>, _>>()?;
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        // Wide elements first keeps every tensor aligned to its element; the sort is stable.
        order.sort_by_key(|&idx| std::cmp::Reverse(dtypes[idx].bitsize()));

        let mut header = serde_json::Map::new();
        let mut offset = 0;
        let mut ranges = Vec::with_capacity(tensors.len());
        for &idx in &order {
            let (name, tensor) = &tensors[idx];
            let end = offset + tensor.numel() as u64 * dtype::num_bytes(dtypes[idx]);
            let info = TensorInfo {
                dtype: dtypes[idx],
                shape: shape_of(tensor).map(|len| len as usize).collect(),
                data_offsets: (offset as usize, end as usize),
            };
            // A header of numbers and strings always serialises.
            header.insert(name.clone(), serde_json::to_value(info).unwrap_or_default());
            ranges.push(offset);
            offset = end;
        }
        let header = header_bytes(&serde_json::Value::Object(header).to_string());
        let entries = order.iter().zip(ranges).map(|(&idx, offset)| {
            let (name, tensor) = &tensors[idx];
            let byte_offset = header.len() as u64 + offset;
            (name.clone(), whole_entry(dtypes[idx], tensor, file, byte_offset))
        });
        Ok(Self { entries: unique(entries)?, order, header })
    }
}

fn dtype_of(name: &str, tensor: &Tensor) -> Result<Dtype, CheckpointError> {
    let kind = tensor.f_kind().map_err(CheckpointError::tensor(name))?;
    dtype::of_kind(kind).ok_or_else(|| CheckpointError::UnsupportedKind { name: name.to_owned(), kind })
}

fn shape_of(tensor: &Tensor) -> impl Iterator<Item = u64> {
    tensor.size().into_iter().map(|len| len as u64)
}

fn header_bytes(json: &str) -> Vec<u8> {
    let padded = json.len().next_multiple_of(HEADER_LENGTH_BYTES as usize);
    let mut bytes = (padded as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes.resize(HEADER_LENGTH_BYTES as usize + padded, b' ');
    bytes
}

fn whole_entry(dtype: Dtype, tensor: &Tensor, file: &str, byte_offset: u64) -> TensorEntry {
    let shape: Vec<u64> = shape_of(tensor).collect();
    let piece =
        TensorPiece { start: vec![0; shape.len()], shape: shape.clone(), file: file.to_owned(), byte_offset };
    TensorEntry { dtype, shape, pieces: vec![piece] }
}

fn unique(
    entries: impl Iterator<Item = (String, TensorEntry)>,
) -> Result<BTreeMap<String, TensorEntry>, CheckpointError> {
    let mut seen = BTreeSet::new();
    entries
        .map(|(name, entry)| match seen.insert(name.clone()) {
            true => Ok((name, entry)),
            false => Err(CheckpointError::DuplicateTensor { name }),
        })
        .collect()
}

fn write_tensors(
    storage: &dyn Storage,
    path: &Path,
    layout: &Layout,
    tensors: &[(String, Tensor)],
) -> Result<FileEntry, CheckpointError> {
    let mut file = DigestingFile::create(storage, path)?;
    file.write(Arc::new(layout.header.clone()))?;
    let mut buffers = Buffers::default();
    for &idx in &layout.order {
        let (name, tensor) = &tensors[idx];
        write_values(&mut file, name, tensor, &mut buffers)?;
    }
    file.finish()
}

/// Writes a tensor's values in row-major order, a chunk at a time, so that no second copy of it exists.
fn write_values(
    file: &mut DigestingFile,
    name: &str,
    tensor: &Tensor,
    buffers: &mut Buffers,
) -> Result<(), CheckpointError> {
    let element_bytes = dtype::num_bytes(dtype_of(name, tensor)?) as usize;
    let chunk = (CHUNK_BYTES / element_bytes) as i64;
    let flat =
        tensor.detach().f_contiguous().and_then(|t| t.f_view(-1)).map_err(CheckpointError::tensor(name))?;
    let num_values = flat.numel() as i64;
    for start in (0..num_values).step_by(chunk as usize) {
        let len = chunk.min(num_values - start);
        let buffer = buffers.filled(len as usize * element_bytes, |bytes| {
            flat.f_narrow(0, start, len)?.f_copy_data_u8(bytes, len as usize)
        });
        file.write(buffer.map_err(CheckpointError::tensor(name))?)?;
    }
    Ok(())
}

/// Chunks that are being written and digested, used again once both are done with one.
#[derive(Default)]
struct Buffers(Vec<Arc<Vec<u8>>>);

impl Buffers {
    fn filled<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Arc<Vec<u8>>, E> {
        let free = self.0.iter().position(|buffer| Arc::strong_count(buffer) == 1);
        let mut buffer = free.map_or_else(Arc::default, |idx| self.0.swap_remove(idx));
        let bytes = Arc::make_mut(&mut buffer);
        bytes.resize(len, 0);
        fill(bytes)?;
        self.0.push(buffer.clone());
        Ok(buffer)
    }
}

fn write_file(storage: &dyn Storage, path: &Path, bytes: &[u8]) -> Result<FileEntry, CheckpointError> {
    let mut file = DigestingFile::create(storage, path)?;
    file.write(Arc::new(bytes.to_vec()))?;
    file.finish()
}

/// Counts what passes through to a file, while a thread of its own digests it: on two cores a checkpoint is written
/// at the pace of the disk.
struct DigestingFile {
    path: PathBuf,
    file: Box<dyn StorageFile>,
    chunks: SyncSender<Arc<Vec<u8>>>,
    digest: JoinHandle<String>,
    num_bytes: u64,
}

impl DigestingFile {
    fn create(storage: &dyn Storage, path: &Path) -> Result<Self, CheckpointError> {
        let file = storage.create_file(path).map_err(CheckpointError::write(path))?;
        let (chunks, received) = sync_channel(2);
        let digest = std::thread::Builder::new().name("digest checkpoint".into()).spawn(move || {
            let mut sha256 = Sha256::new();
            received.into_iter().for_each(|chunk: Arc<Vec<u8>>| sha256.update(&*chunk));
            manifest::hex(&sha256.finalize())
        });
        let digest = digest.map_err(CheckpointError::write(path))?;
        Ok(Self { path: path.to_path_buf(), file, chunks, digest, num_bytes: 0 })
    }

    fn write(&mut self, bytes: Arc<Vec<u8>>) -> Result<(), CheckpointError> {
        // The digesting thread only ends after its sender.
        let _ = self.chunks.send(bytes.clone());
        self.file.write_all(&bytes).map_err(CheckpointError::write(&self.path))?;
        self.num_bytes += bytes.len() as u64;
        Ok(())
    }

    fn finish(self) -> Result<FileEntry, CheckpointError> {
        let Self { path, mut file, chunks, digest, num_bytes } = self;
        drop(chunks);
        file.flush().and_then(|()| file.sync_all()).map_err(CheckpointError::write(&path))?;
        let lost =
            || CheckpointError::write(&path)(std::io::Error::other("the digesting thread has ended early"));
        Ok(FileEntry { num_bytes, sha256: digest.join().map_err(|_| lost())? })
    }
}
