//! Opening of committed checkpoints. Every byte is verified before any of it is used, by this process or by
//! the leader, which selects the checkpoint for all ranks.

use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rlt_layout::TensorRun;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use tch::{Device, Kind, Tensor};

use super::manifest::{self, FileEntry, Manifest, TensorEntry, TensorPiece};
use super::{CheckpointError, dtype};

/// Size of one read, in bytes.
const CHUNK_BYTES: u64 = 1 << 20;
/// Maximum size of a manifest or a state, in bytes.
pub(super) const MAX_JSON_BYTES: u64 = 1 << 30;

/// A committed checkpoint whose lengths and digests were verified.
#[derive(Debug)]
pub struct Checkpoint {
    folder: PathBuf,
    manifest: Manifest,
    state: serde_json::Value,
}

impl Checkpoint {
    /// Opens and verifies the checkpoint in `folder`, reading every file once.
    ///
    /// # Errors
    /// A missing, truncated or changed file, named by its path; a manifest that contradicts itself or has
    /// another format version.
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let manifest = read_manifest(folder)?;
        for (name, entry) in &manifest.files {
            verify_file(&folder.join(name), entry)?;
        }
        Self::with_state(folder, manifest)
    }

    /// Opens the checkpoint in `folder`, whose files another process has verified. `digest` is the digest of
    /// the manifest that was verified. Only the state and the requested tensors are read.
    ///
    /// # Errors
    /// The same as [`Self::open`] for manifest and state; [`CheckpointError::Digest`] if the manifest has
    /// another digest.
    pub fn open_verified(folder: &Path, digest: &str) -> Result<Self, CheckpointError> {
        let manifest = read_manifest(folder)?;
        if manifest.sha256 != digest {
            let path = folder.join(manifest::FILE_NAME);
            return Err(CheckpointError::Digest { path, expected: digest.to_owned(), got: manifest.sha256 });
        }
        if let Some(entry) = manifest.files.get(manifest::STATE_FILE_NAME) {
            verify_file(&folder.join(manifest::STATE_FILE_NAME), entry)?;
        }
        Self::with_state(folder, manifest)
    }

    fn with_state(folder: &Path, manifest: Manifest) -> Result<Self, CheckpointError> {
        let state_path = folder.join(manifest::STATE_FILE_NAME);
        let state_json =
            rlt_files::read(&state_path, MAX_JSON_BYTES).map_err(CheckpointError::read(&state_path))?;
        let state = serde_json::from_slice(&state_json).map_err(CheckpointError::parse(&state_path))?;
        Ok(Self { folder: folder.to_path_buf(), manifest, state })
    }

    /// Folder of the checkpoint.
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Number of finished steps.
    pub fn step(&self) -> u64 {
        self.manifest.step
    }

    /// State that was saved with the tensors, as JSON.
    pub fn state(&self) -> &serde_json::Value {
        &self.state
    }

    /// The field `name` of the state, typed.
    ///
    /// # Errors
    /// The state has no such field, or it does not match the type.
    pub fn state_field<T: DeserializeOwned>(&self, name: &str) -> Result<T, CheckpointError> {
        let value = self.state.get(name).cloned().unwrap_or_default();
        serde_json::from_value(value)
            .map_err(CheckpointError::parse(&self.folder.join(manifest::STATE_FILE_NAME)))
    }

    /// Manifest, which lists all files and tensors.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Whether the checkpoint has a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.manifest.tensors.contains_key(name)
    }

    /// Reads a full tensor onto the CPU.
    ///
    /// # Errors
    /// No such tensor, a dtype that libtorch lacks, or a failing read.
    pub fn tensor(&self, name: &str) -> Result<Tensor, CheckpointError> {
        let (entry, kind) = self.entry(name)?;
        let shape: Vec<i64> = entry.shape.iter().map(|&len| len as i64).collect();
        let tensor = Tensor::f_empty(&shape, (kind, Device::Cpu)).map_err(CheckpointError::tensor(name))?;
        self.read_into(name, entry, &tensor)?;
        Ok(tensor)
    }

    /// Reads a tensor into `destination`, on any device and without autograd.
    ///
    /// # Errors
    /// No such tensor, another dtype or shape than `destination`'s, or a failing read.
    pub fn load_into(&self, name: &str, destination: &Tensor) -> Result<(), CheckpointError> {
        let (entry, kind) = self.entry(name)?;
        let expected: Vec<u64> = destination.size().into_iter().map(|len| len as u64).collect();
        self.check(name, entry, kind, &expected, destination.kind())?;
        self.read_into(name, entry, destination)
    }

    /// Reads the run `tensor_run` into `values`, a vector of its length, without autograd. Besides
    /// `values`, at most one chunk of the tensor is in memory.
    ///
    /// # Errors
    /// No such tensor, another shape than that of `tensor_run`, another dtype than that of `values`, or a
    /// failing read.
    pub fn fill(&self, tensor_run: &TensorRun<'_>, values: &Tensor) -> Result<(), CheckpointError> {
        self.fill_as(tensor_run, values, values.kind())
    }

    /// Reads a shard as [`Self::fill`] does, into `values` of any dtype, to which the saved values are
    /// converted.
    ///
    /// # Errors
    /// No such tensor, another shape than that of `tensor_run`, or a failing read.
    pub fn fill_rounded(&self, tensor_run: &TensorRun<'_>, values: &Tensor) -> Result<(), CheckpointError> {
        let (_, kind) = self.entry(tensor_run.name)?;
        self.fill_as(tensor_run, values, kind)
    }

    fn fill_as(
        &self,
        tensor_run: &TensorRun<'_>,
        values: &Tensor,
        expected_kind: Kind,
    ) -> Result<(), CheckpointError> {
        let name = tensor_run.name;
        let (entry, kind) = self.entry(name)?;
        let expected: Vec<u64> = tensor_run.shape.iter().map(|&len| len as u64).collect();
        self.check(name, entry, kind, &expected, expected_kind)?;
        let chunk_len = CHUNK_BYTES as usize / kind.elt_size_in_bytes();
        tensor_run.chunks(chunk_len).try_for_each(|chunk| {
            let (rows, place) = (chunk.rows(), chunk.place_in_rows());
            let window = entry.rows(rows.start as u64..rows.end as u64);
            let shape: Vec<i64> = window.shape.iter().map(|&len| len as i64).collect();
            let failed = || CheckpointError::tensor(name);
            let tensor = Tensor::f_empty(&shape, (kind, Device::Cpu)).map_err(failed())?;
            self.read_into(name, &window, &tensor)?;
            tch::no_grad(|| {
                let read = tensor.f_view(-1)?.f_narrow(0, place.start as i64, place.len() as i64)?;
                let start = (chunk.range.start - tensor_run.range.start) as i64;
                values.f_narrow(0, start, place.len() as i64)?.f_copy_(&read)
            })
            .map_err(failed())
        })
    }

    fn check(
        &self,
        name: &str,
        entry: &TensorEntry,
        kind: Kind,
        expected: &[u64],
        expected_kind: Kind,
    ) -> Result<(), CheckpointError> {
        if kind == expected_kind && entry.shape == expected {
            return Ok(());
        }
        Err(CheckpointError::Mismatch {
            path: self.folder.clone(),
            name: name.to_owned(),
            expected: format!("{expected_kind:?} {expected:?}"),
            got: format!("{kind:?} {:?}", entry.shape),
        })
    }

    fn entry(&self, name: &str) -> Result<(&TensorEntry, Kind), CheckpointError> {
        let path = || self.folder.clone();
        let entry = self.manifest.tensors.get(name);
        let entry =
            entry.ok_or_else(|| CheckpointError::UnknownTensor { path: path(), name: name.to_owned() })?;
        let kind = dtype::to_kind(entry.dtype).ok_or_else(|| CheckpointError::UnsupportedDtype {
            path: path(),
            name: name.to_owned(),
            dtype: entry.dtype,
        })?;
        Ok((entry, kind))
    }

    fn read_into(
        &self,
        name: &str,
        entry: &TensorEntry,
        destination: &Tensor,
    ) -> Result<(), CheckpointError> {
        tch::no_grad(|| {
            for piece in &entry.pieces {
                let mut region = destination.shallow_clone();
                for (dim, (&start, &len)) in piece.start.iter().zip(&piece.shape).enumerate() {
                    region = region
                        .f_narrow(dim as i64, start as i64, len as i64)
                        .map_err(CheckpointError::tensor(name))?;
                }
                self.read_piece(name, piece, &region)?;
            }
            Ok(())
        })
    }

    /// Reads a piece into `region` in chunks of rows of its first dimension.
    fn read_piece(&self, name: &str, piece: &TensorPiece, region: &Tensor) -> Result<(), CheckpointError> {
        let path = self.folder.join(&piece.file);
        let file = rlt_files::open(&path).map_err(CheckpointError::read(&path))?;
        let element_bytes = region.kind().elt_size_in_bytes() as u64;
        let (num_rows, row_shape) = match piece.shape.split_first() {
            Some((&num_rows, row_shape)) => (num_rows, row_shape),
            None => (1, &[][..]),
        };
        let row_bytes = element_bytes * row_shape.iter().product::<u64>();
        let rows_per_chunk = (CHUNK_BYTES / row_bytes.max(1)).max(1);
        let mut buffer = Vec::new();
        for row in (0..num_rows).step_by(rows_per_chunk as usize) {
            let num_rows = rows_per_chunk.min(num_rows - row);
            buffer.resize((num_rows * row_bytes) as usize, 0);
            file.read_exact_at(&mut buffer, piece.byte_offset + row * row_bytes)
                .map_err(CheckpointError::read(&path))?;
            copy_rows(&buffer, region, row as i64, num_rows as i64).map_err(CheckpointError::tensor(name))?;
        }
        Ok(())
    }
}

fn copy_rows(bytes: &[u8], region: &Tensor, row: i64, num_rows: i64) -> Result<(), tch::TchError> {
    let mut rows = match region.dim() {
        0 => region.shallow_clone(),
        _ => region.f_narrow(0, row, num_rows)?,
    };
    rows.f_copy_(&Tensor::f_from_data_size(bytes, &rows.size(), rows.kind())?)
}

/// Reads the manifest of the checkpoint in `folder` and checks everything that needs no other file.
pub(super) fn read_manifest(folder: &Path) -> Result<Manifest, CheckpointError> {
    let path = folder.join(manifest::FILE_NAME);
    let json = rlt_files::read(&path, MAX_JSON_BYTES).map_err(CheckpointError::read(&path))?;
    parse_manifest(&path, &json)
}

/// Parses and checks the manifest that was read from `path`.
pub(super) fn parse_manifest(path: &Path, json: &[u8]) -> Result<Manifest, CheckpointError> {
    check_version(path, json)?;
    let manifest: Manifest = serde_json::from_slice(json).map_err(CheckpointError::parse(path))?;
    let digest = manifest.digest().map_err(CheckpointError::parse(path))?;
    let path = path.to_path_buf();
    if digest != manifest.sha256 {
        return Err(CheckpointError::Digest { path, expected: manifest.sha256, got: digest });
    }
    if let Some(problem) = manifest.find_problem() {
        return Err(CheckpointError::Inconsistent { path, problem });
    }
    Ok(manifest)
}

/// Checks the version first, because a manifest of another version may have other fields.
fn check_version(path: &Path, json: &[u8]) -> Result<(), CheckpointError> {
    #[derive(serde::Deserialize)]
    struct Head {
        format: String,
        version: u32,
    }
    let Head { format, version } = serde_json::from_slice(json).map_err(CheckpointError::parse(path))?;
    if format == manifest::FORMAT && version == manifest::VERSION {
        return Ok(());
    }
    Err(CheckpointError::Version { path: path.to_path_buf(), format, version })
}

fn verify_file(path: &Path, entry: &FileEntry) -> Result<(), CheckpointError> {
    let length = |got| CheckpointError::Length { path: path.to_path_buf(), expected: entry.num_bytes, got };
    let got = std::fs::metadata(path).map_err(CheckpointError::read(path))?.len();
    if got != entry.num_bytes {
        return Err(length(got));
    }
    let got = digest_of(path)?;
    if got.num_bytes != entry.num_bytes {
        return Err(length(got.num_bytes));
    }
    if got.sha256 != entry.sha256 {
        return Err(CheckpointError::Digest {
            path: path.to_path_buf(),
            expected: entry.sha256.clone(),
            got: got.sha256,
        });
    }
    Ok(())
}

/// Reads a file and returns its length and digest.
pub(super) fn digest_of(path: &Path) -> Result<FileEntry, CheckpointError> {
    let mut file = rlt_files::open(path).map_err(CheckpointError::read(path))?;
    let mut sha256 = Sha256::new();
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    let mut num_bytes = 0;
    loop {
        match file.read(&mut buffer).map_err(CheckpointError::read(path))? {
            0 => break,
            num_read => {
                sha256.update(&buffer[..num_read]);
                num_bytes += num_read as u64;
            }
        }
    }
    Ok(FileEntry { num_bytes, sha256: manifest::hex(&sha256.finalize()) })
}
