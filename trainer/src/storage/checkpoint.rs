//! Checkpoints: everything that the next step depends on, in folders that are committed atomically.
//!
//! ```text
//! checkpoints/
//!   step-000020/
//!     manifest.json              what is where: global shapes, byte offsets, SHA-256 of every file
//!     shard-00000.safetensors    tensors or parts of them, a file a rank; any safetensors library reads it
//!     state.json                 everything small: counters, random states, data position, controllers
//! ```
//!
//! A checkpoint is written beside its final place by all processes together, each its own file, synced, and
//! committed by one process with one rename, so a kill of any of them at any instruction leaves the previous
//! one selected. Tensors are described by their global shape and by pieces that say which part of it is
//! where; nothing in the format knows how many processes wrote it. Loading parses JSON and copies bytes: no
//! code is executed.
//!
//! If `checkpoint.uri` names an object store, `copies` uploads and downloads committed checkpoints.
//!
//! The meaning of tensors and state fields is not known here.

mod copies;
mod dtype;
mod error;
mod identity;
mod load;
mod manifest;
mod order;
mod part;
mod save;
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

pub use copies::{CopyError, clear as clear_copies};
pub use error::CheckpointError;
pub use identity::RunIdentity;
pub use load::Checkpoint;
pub use manifest::{FileEntry, Manifest, TensorEntry, TensorPiece};
pub use part::{TensorPart, divided};
pub use save::{UnsyncedShard, WrittenShard};
pub use store::{CheckpointStore, CommittedCheckpoint, Latest, Saved};

/// The content of a checkpoint that a single process saves.
#[derive(Debug)]
pub struct CheckpointContent {
    /// Tensors by unique name, of any shape, dtype and device; shared with the training, never copied whole.
    pub tensors: Vec<(String, Tensor)>,
    /// Everything small that the next step depends on.
    pub state: serde_json::Value,
}
