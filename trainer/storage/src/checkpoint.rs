//! Checkpoints: everything that the next step depends on, in folders that are committed atomically.
//!
//! ```text
//! checkpoints/
//!   step-000020/
//!     manifest.json              table of contents: full shapes, byte offsets, SHA-256 of every file
//!     shard-00000.safetensors    tensors or shards of tensors, one file per rank, in the usual format
//!     state.json                 all other state: counters, random states, data position, controllers
//! ```
//!
//! All processes write a checkpoint together into a temporary folder, each into a file of its own. The files
//! are synced, and one process commits the checkpoint by a single rename. If any process is killed at any
//! instruction, the previous checkpoint stays the newest. The manifest describes each tensor by its full
//! shape and by the location of its pieces, independent of how many processes wrote it. Loading parses JSON
//! and copies bytes; it executes no code.
//!
//! If `checkpoint.uri` names an object store, `remote` uploads and downloads committed checkpoints.
//!
//! Names of tensors and fields of the state are chosen by the callers.

mod dtype;
mod error;
mod identity;
mod load;
mod manifest;
mod order;
mod remote;
mod save;
mod shard;
mod storage;
mod store;

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
mod kill_tests;
#[cfg(test)]
mod mutated_tests;
#[cfg(test)]
mod shards_tests;
#[cfg(test)]
mod store_tests;

use tch::Tensor;

pub use error::CheckpointError;
pub use identity::RunIdentity;
pub use load::Checkpoint;
pub use manifest::{FileEntry, Manifest, TensorEntry, TensorPiece};
pub use remote::{CopyError, clear as clear_copies};
pub use save::{UnsyncedShard, WrittenShard};
pub use shard::{CheckpointShard, split_between_copies};
pub use store::{CheckpointStore, CommittedCheckpoint, Latest, Saved};

/// The content of a checkpoint that a single process saves.
#[derive(Debug)]
pub struct CheckpointContent {
    /// Tensors by unique name, of any shape, dtype and device. They share memory with the training, and are
    /// never copied as a whole.
    pub tensors: Vec<(String, Tensor)>,
    /// State other than tensors that the next step depends on, as JSON.
    pub state: serde_json::Value,
}
