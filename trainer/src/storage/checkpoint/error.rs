//! Errors of checkpoints; every variant names the file or the tensor.

use std::io;
use std::path::{Path, PathBuf};

use safetensors::Dtype;

/// An act on a checkpoint that failed.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The folder could not be created, listed, synced, renamed or removed.
    #[error("failed to {act} {}", path.display())]
    Folder {
        /// The operation.
        act: &'static str,
        /// On which folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A file of a checkpoint could not be written, for example because the disk is full.
    #[error("failed to write {}", path.display())]
    Write {
        /// The file, still in its temporary folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A file of a checkpoint could not be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A file is shorter or longer than its manifest says.
    #[error("{} is truncated or has grown: expected {expected} bytes, got {got}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// Bytes when it was written.
        expected: u64,
        /// Bytes now.
        got: u64,
    },
    /// A file's content differs from what was written.
    #[error("{} is damaged: expected SHA-256 {expected}, got {got}", path.display())]
    Digest {
        /// The file.
        path: PathBuf,
        /// SHA-256 when it was written, hexadecimal.
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
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A manifest contradicts itself or its folder.
    #[error("{} is inconsistent: {problem}", path.display())]
    Inconsistent {
        /// The manifest.
        path: PathBuf,
        /// The mismatch, with both values.
        problem: String,
    },
    /// The checkpoint was written by a version this one cannot read.
    #[error(
        "{} has format {format:?} version {version}, expected {:?} version {}",
        path.display(), super::manifest::FORMAT, super::manifest::VERSION
    )]
    Version {
        /// The manifest.
        path: PathBuf,
        /// Its format name.
        format: String,
        /// Its format version.
        version: u32,
    },
    /// Two tensors of one checkpoint have the same name.
    #[error("tensor {name} occurs twice in one checkpoint")]
    DuplicateTensor {
        /// The name.
        name: String,
    },
    /// The checkpoint has no such tensor.
    #[error("{} has no tensor {name}", path.display())]
    UnknownTensor {
        /// The checkpoint's folder.
        path: PathBuf,
        /// The name requested.
        name: String,
    },
    /// A tensor's dtype cannot be stored.
    #[error("tensor {name} has a kind that safetensors cannot hold: {kind:?}")]
    UnsupportedKind {
        /// The tensor.
        name: String,
        /// Its kind.
        kind: tch::Kind,
    },
    /// A tensor of the checkpoint has a dtype that libtorch lacks.
    #[error("tensor {name} of {} has dtype {dtype}, which libtorch lacks", path.display())]
    UnsupportedDtype {
        /// The checkpoint's folder.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its dtype on disk.
        dtype: Dtype,
    },
    /// A tensor does not fit where it should be loaded.
    #[error("tensor {name} of {} does not fit: expected {expected}, got {got}", path.display())]
    Mismatch {
        /// The checkpoint's folder.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Dtype and shape of the destination.
        expected: String,
        /// Dtype and shape in the checkpoint.
        got: String,
    },
    /// Another rank could not save its shard.
    #[error("rank {rank} could not save its part of the checkpoint: {cause}")]
    Elsewhere {
        /// Which rank.
        rank: usize,
        /// Its error, with all causes.
        cause: String,
    },
    /// The thread that saves could not be started, or has ended early.
    #[error("failed to save beside the training")]
    Thread {
        /// Why.
        source: io::Error,
    },
    /// libtorch refused to hand out or take a tensor's values.
    #[error("failed to copy the values of tensor {name}")]
    Tensor {
        /// The tensor.
        name: String,
        /// libtorch's error.
        source: tch::TchError,
    },
}

impl CheckpointError {
    /// Whether the checkpoint itself is damaged, so that trying again can not help.
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

    /// Whether it is whole but not there, or of another model than the job's.
    pub fn is_misfit(&self) -> bool {
        match self {
            Self::UnknownTensor { .. } | Self::Mismatch { .. } | Self::UnsupportedDtype { .. } => true,
            Self::Read { source, .. } => source.kind() == io::ErrorKind::NotFound,
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
