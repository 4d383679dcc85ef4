//! Errors of checkpoints; every variant names the file or the tensor.

use std::io;
use std::path::{Path, PathBuf};

use safetensors::Dtype;

/// An operation on a checkpoint failed.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The folder could not be created, listed, synced, renamed or removed.
    #[error("failed to {act} {}", path.display())]
    Folder {
        /// Operation that failed.
        act: &'static str,
        /// Path of the folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file of a checkpoint could not be written, for example because the disk is full.
    #[error("failed to write {}", path.display())]
    Write {
        /// Path of the file, still in its temporary folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file of a checkpoint could not be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file is shorter or longer than its manifest says.
    #[error("{} is truncated or has grown: expected {expected} bytes, got {got}", path.display())]
    Length {
        /// Path of the file.
        path: PathBuf,
        /// Length in bytes when the file was written.
        expected: u64,
        /// Length in bytes now.
        got: u64,
    },
    /// A file's content differs from what was written.
    #[error("{} is damaged: expected SHA-256 {expected}, got {got}", path.display())]
    Digest {
        /// Path of the file.
        path: PathBuf,
        /// SHA-256 when the file was written, hexadecimal.
        expected: String,
        /// SHA-256 now, hexadecimal.
        got: String,
    },
    /// An offloaded tensor, into which a checkpoint is loaded, could not be fetched or written back.
    #[error("failed to load tensors into offload storage")]
    Rest(#[from] rlt_torch::Error),
    /// A JSON file of a checkpoint does not parse.
    #[error("failed to parse {}", path.display())]
    Parse {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser, with the position.
        source: serde_json::Error,
    },
    /// A manifest contradicts itself or its folder.
    #[error("{} is inconsistent: {problem}", path.display())]
    Inconsistent {
        /// Path of the manifest.
        path: PathBuf,
        /// Description of the mismatch, with both values.
        problem: String,
    },
    /// The checkpoint was written by a version that this one cannot read.
    #[error(
        "{} has format {format:?} version {version}, expected {:?} version {}",
        path.display(), super::manifest::FORMAT, super::manifest::VERSION
    )]
    Version {
        /// Path of the manifest.
        path: PathBuf,
        /// Name of its format.
        format: String,
        /// Version of its format.
        version: u32,
    },
    /// Two tensors of one checkpoint have the same name.
    #[error("tensor {name} occurs twice in one checkpoint")]
    DuplicateTensor {
        /// Name of the tensor.
        name: String,
    },
    /// The checkpoint has no tensor of this name.
    #[error("{} has no tensor {name}", path.display())]
    UnknownTensor {
        /// Folder of the checkpoint.
        path: PathBuf,
        /// Name that was requested.
        name: String,
    },
    /// A tensor's dtype cannot be stored.
    #[error("tensor {name} has a kind that safetensors cannot hold: {kind:?}")]
    UnsupportedKind {
        /// Name of the tensor.
        name: String,
        /// Kind of the tensor.
        kind: tch::Kind,
    },
    /// A tensor of the checkpoint has a dtype that libtorch lacks.
    #[error("tensor {name} of {} has dtype {dtype}, which libtorch lacks", path.display())]
    UnsupportedDtype {
        /// Folder of the checkpoint.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// Dtype on disk.
        dtype: Dtype,
    },
    /// A tensor does not fit its destination.
    #[error("tensor {name} of {} does not fit: expected {expected}, got {got}", path.display())]
    Mismatch {
        /// Folder of the checkpoint.
        path: PathBuf,
        /// Name of the tensor.
        name: String,
        /// Dtype and shape of the destination.
        expected: String,
        /// Dtype and shape in the checkpoint.
        got: String,
    },
    /// Another rank could not save its shard.
    #[error("rank {rank} could not save its part of the checkpoint: {cause}")]
    Elsewhere {
        /// Rank that failed.
        rank: usize,
        /// Error of that rank, with all causes.
        cause: String,
    },
    /// The thread that saves could not be started, or ended early.
    #[error("failed to run the thread that saves a checkpoint")]
    Thread {
        /// Error of the operating system.
        source: io::Error,
    },
    /// libtorch could not read or write a tensor's values.
    #[error("failed to copy the values of tensor {name}")]
    Tensor {
        /// Name of the tensor.
        name: String,
        /// Error of libtorch.
        source: tch::TchError,
    },
}

impl CheckpointError {
    /// Whether the checkpoint itself is damaged, so that another attempt cannot help.
    pub fn is_corruption(&self) -> bool {
        matches!(
            self,
            Self::Length { .. }
                | Self::Digest { .. }
                | Self::Parse { .. }
                | Self::Inconsistent { .. }
                | Self::Version { .. }
        )
    }

    /// Whether the checkpoint is missing or belongs to another model than the job's, without being damaged.
    pub fn is_misfit(&self) -> bool {
        match self {
            Self::UnknownTensor { .. } | Self::Mismatch { .. } | Self::UnsupportedDtype { .. } => true,
            Self::Read { source, .. } => {
                source.kind() == io::ErrorKind::NotFound || rlt_files::is_refusal(source)
            }
            _ => false,
        }
    }

    pub(super) fn folder(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Folder { act, path, source }
    }

    pub(super) fn write(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Write { path, source }
    }

    pub(super) fn read(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Read { path, source }
    }

    pub(super) fn parse(path: &Path) -> impl FnOnce(serde_json::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Parse { path, source }
    }

    pub(super) fn tensor(name: &str) -> impl FnOnce(tch::TchError) -> Self {
        let name = name.to_owned();
        move |source| Self::Tensor { name, source }
    }
}
