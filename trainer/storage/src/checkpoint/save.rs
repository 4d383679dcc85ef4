//! Writes tensors and state into one folder, which the store then commits.
//!
//! ```text
//! each process    write: its shard file, into the page cache          training waits
//!                 complete: synced, read again and digested           training continues
//! the leader      write_manifest: state, and the files of all
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tch::Tensor;

use super::manifest::{self, FileEntry, Manifest, TensorEntry, TensorPiece};
use super::shard::CheckpointShard;
use super::storage::{Storage, StorageFile};
use super::{CheckpointError, dtype, load};

/// Bytes copied out of a tensor at a time: large enough to make calls cheap, small enough to stay in cache.
const CHUNK_BYTES: usize = 1 << 20;
/// Length of the field at the start of a safetensors file that holds the length of the header.
const HEADER_LENGTH_BYTES: u64 = 8;

/// A process's file of tensors, written but not synced: a power failure could still lose it.
pub struct UnsyncedShard {
    name: String,
    path: PathBuf,
    file: Box<dyn StorageFile>,
    num_bytes: u64,
    tensors: BTreeMap<String, TensorEntry>,
}

/// A process's synced and digested file of tensors, in the form in which processes exchange it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WrittenShard {
    name: String,
    file: FileEntry,
    /// Tensors of the file, each with the pieces that are in it.
    tensors: BTreeMap<String, TensorEntry>,
}

/// Name of the file that process `writer_idx` writes.
pub(super) fn shard_name(writer_idx: usize) -> String {
    format!("shard-{writer_idx:05}.safetensors")
}

impl UnsyncedShard {
    /// Writes `parts` into a new file `name` of `folder`, and drops each once it is written.
    pub(super) fn write(
        storage: &dyn Storage,
        folder: &Path,
        name: String,
        parts: Vec<CheckpointShard>,
    ) -> Result<Self, CheckpointError> {
        let path = folder.join(&name);
        let Layout { header, order, entries } = Layout::new(&name, &parts)?;
        let mut parts: Vec<Option<CheckpointShard>> = parts.into_iter().map(Some).collect();
        let mut file = storage.create_file(&path).map_err(CheckpointError::write(&path))?;
        file.write_all(&header).map_err(CheckpointError::write(&path))?;
        let mut num_bytes = header.len() as u64;
        let mut buffer = Vec::new();
        for idx in order {
            // A tensor that is read from a file occupies memory until it is dropped.
            if let Some(part) = parts[idx].take() {
                num_bytes += write_values(&mut *file, &path, &part, &mut buffer)?;
            }
        }
        file.flush().map_err(CheckpointError::write(&path))?;
        Ok(Self { name, path, file, num_bytes, tensors: entries })
    }

    /// Syncs the file, so that it survives a power loss, and computes the digest of its content.
    ///
    /// # Errors
    /// [`CheckpointError`]: the disk is full or broken, or the file differs from what was written.
    pub fn complete(self) -> Result<WrittenShard, CheckpointError> {
        let Self { name, path, mut file, num_bytes, tensors } = self;
        let (synced, digested) = std::thread::scope(|scope| {
            let digest = scope.spawn(|| load::digest_of(&path));
            let synced = file.sync_all().map_err(CheckpointError::write(&path));
            let lost = || {
                CheckpointError::read(&path)(std::io::Error::other("the digesting thread has ended early"))
            };
            (synced, digest.join().unwrap_or_else(|_| Err(lost())))
        });
        synced?;
        let file = digested?;
        if file.num_bytes != num_bytes {
            return Err(CheckpointError::Length { path, expected: num_bytes, got: file.num_bytes });
        }
        Ok(WrittenShard { name, file, tensors })
    }
}

/// Writes and syncs the state, and the manifest of the files of all processes, into `folder`. Returns the
/// total size of all files in bytes.
pub(super) fn write_manifest(
    storage: &dyn Storage,
    folder: &Path,
    step: u64,
    save_index: u64,
    shards: Vec<WrittenShard>,
    state: &serde_json::Value,
) -> Result<u64, CheckpointError> {
    let state_path = folder.join(manifest::STATE_FILE_NAME);
    let state_json = serde_json::to_vec_pretty(state).map_err(CheckpointError::parse(&state_path))?;
    let state_entry = write_file(storage, &state_path, &state_json)?;
    let manifest_path = folder.join(manifest::FILE_NAME);
    let inconsistent =
        |problem: String| CheckpointError::Inconsistent { path: manifest_path.clone(), problem };
    let mut files = BTreeMap::from([(manifest::STATE_FILE_NAME.to_owned(), state_entry)]);
    let mut tensors = BTreeMap::new();
    for WrittenShard { name, file, tensors: of_shard } in shards {
        files.insert(name, file);
        for (name, entry) in of_shard {
            join(&mut tensors, name, entry).map_err(&inconsistent)?;
        }
    }
    let num_bytes: u64 = files.values().map(|file| file.num_bytes).sum();
    let (format, version, sha256) = (manifest::FORMAT.into(), manifest::VERSION, String::new());
    let manifest = Manifest { format, version, step, save_index, files, tensors, sha256 };
    // Pieces that are missing are detected here instead of on resume.
    manifest.find_problem().map_or(Ok(()), |problem| Err(inconsistent(problem)))?;
    let manifest_json = manifest.to_json().map_err(CheckpointError::parse(&manifest_path))?;
    let manifest_entry = write_file(storage, &manifest_path, &manifest_json)?;
    storage.sync_dir(folder).map_err(CheckpointError::folder("sync folder", folder))?;
    Ok(num_bytes + manifest_entry.num_bytes)
}

/// Adds a shard's pieces of a tensor to those of other shards.
fn join(tensors: &mut BTreeMap<String, TensorEntry>, name: String, entry: TensorEntry) -> Result<(), String> {
    let Some(known) = tensors.get_mut(&name) else {
        tensors.insert(name, entry);
        return Ok(());
    };
    if (known.dtype, &known.shape) != (entry.dtype, &entry.shape) {
        let (one, other) = ((known.dtype, &known.shape), (entry.dtype, &entry.shape));
        return Err(format!("tensor {name} is {one:?} in one shard and {other:?} in another"));
    }
    known.pieces.extend(entry.pieces);
    known.pieces.sort_by(|one, other| one.start.cmp(&other.start));
    Ok(())
}

/// Position of each shard within one safetensors file.
struct Layout {
    /// Length prefix and JSON, padded so that tensor data starts at a multiple of eight bytes.
    header: Vec<u8>,
    /// Indices into the caller's list, in the order of the file.
    order: Vec<usize>,
    /// Manifest entries of the same tensors.
    entries: BTreeMap<String, TensorEntry>,
}

impl Layout {
    fn new(file: &str, parts: &[CheckpointShard]) -> Result<Self, CheckpointError> {
        let dtypes = parts.iter().map(dtype_of).collect::<Result<Vec<_>, _>>()?;
        let mut order: Vec<usize> = (0..parts.len()).collect();
        // Sorting by element width, widest first, aligns every tensor to its elements; the sort is stable.
        order.sort_by_key(|&idx| std::cmp::Reverse(dtypes[idx].bitsize()));

        let mut header = serde_json::Map::new();
        let mut offset = 0;
        let mut ranges = Vec::with_capacity(parts.len());
        for &idx in &order {
            let part = &parts[idx];
            let end = offset + part.range.len() as u64 * dtype::num_bytes(dtypes[idx]);
            // A shard of a tensor is stored as a flat list; its position in the tensor is in the manifest.
            let shape = if part.is_full() { part.shape().to_vec() } else { vec![part.range.len() as i64] };
            let info = TensorInfo {
                dtype: dtypes[idx],
                shape: shape.into_iter().map(|len| len as usize).collect(),
                data_offsets: (offset as usize, end as usize),
            };
            // A header of numbers and strings can always be serialized.
            header.insert(part.name.clone(), serde_json::to_value(info).unwrap_or_default());
            ranges.push(offset);
            offset = end;
        }
        let header = header_bytes(&serde_json::Value::Object(header).to_string());
        let entries = order.iter().zip(ranges).map(|(&idx, offset)| {
            let byte_offset = header.len() as u64 + offset;
            (parts[idx].name.clone(), entry(dtypes[idx], &parts[idx], file, byte_offset))
        });
        Ok(Self { entries: unique(entries)?, order, header })
    }
}

fn dtype_of(CheckpointShard { name, values, .. }: &CheckpointShard) -> Result<Dtype, CheckpointError> {
    let kind = values.f_kind().map_err(CheckpointError::tensor(name))?;
    dtype::of_kind(kind).ok_or_else(|| CheckpointError::UnsupportedKind { name: name.to_owned(), kind })
}

fn header_bytes(json: &str) -> Vec<u8> {
    let padded = json.len().next_multiple_of(HEADER_LENGTH_BYTES as usize);
    let mut bytes = (padded as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes.resize(HEADER_LENGTH_BYTES as usize + padded, b' ');
    bytes
}

/// Manifest entry of a shard: its boxes, which follow each other in the file.
fn entry(dtype: Dtype, part: &CheckpointShard, file: &str, mut byte_offset: u64) -> TensorEntry {
    let pieces = part.slice().chunks().into_iter().map(|chunk| {
        let piece =
            TensorPiece { start: chunk.start, shape: chunk.shape, file: file.to_owned(), byte_offset };
        byte_offset += piece.shape.iter().product::<u64>() * dtype::num_bytes(dtype);
        piece
    });
    let pieces = pieces.collect();
    TensorEntry { dtype, shape: part.shape().iter().map(|&len| len as u64).collect(), pieces }
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

/// Writes a shard's values in row-major order, in chunks, so that no second copy of it exists. Returns the
/// number of bytes.
fn write_values(
    file: &mut dyn StorageFile,
    path: &Path,
    part: &CheckpointShard,
    buffer: &mut Vec<u8>,
) -> Result<u64, CheckpointError> {
    let element_bytes = dtype::num_bytes(dtype_of(part)?) as usize;
    let chunk = (CHUNK_BYTES / element_bytes) as i64;
    let failed = || CheckpointError::tensor(&part.name);
    let flat = part.values.detach().f_contiguous().and_then(|t| t.f_view(-1)).map_err(failed())?;
    let num_values = flat.numel() as i64;
    for start in (0..num_values).step_by(chunk as usize) {
        let len = chunk.min(num_values - start);
        buffer.resize(len as usize * element_bytes, 0);
        let copied = flat.f_narrow(0, start, len).and_then(|chunk| copy_bytes(&chunk, buffer));
        copied.map_err(failed())?;
        file.write_all(buffer).map_err(CheckpointError::write(path))?;
    }
    Ok(num_values as u64 * element_bytes as u64)
}

fn copy_bytes(values: &Tensor, bytes: &mut [u8]) -> Result<(), tch::TchError> {
    values.f_copy_data_u8(bytes, values.numel())
}

fn write_file(storage: &dyn Storage, path: &Path, bytes: &[u8]) -> Result<FileEntry, CheckpointError> {
    let written = storage.create_file(path).and_then(|mut file| {
        file.write_all(bytes)?;
        file.flush()?;
        file.sync_all()
    });
    written.map_err(CheckpointError::write(path))?;
    Ok(FileEntry { num_bytes: bytes.len() as u64, sha256: manifest::hex(&Sha256::digest(bytes)) })
}
