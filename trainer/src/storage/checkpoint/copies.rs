//! Copies of complete checkpoints in an object store: S3, Google Cloud Storage, Azure, or a folder.
//!
//! ```text
//! <uri>/step-000020/shard-00000.safetensors  state.json  manifest.json
//! ```
//! A copy is the local folder, file by file, with `manifest.json` last: what has no manifest is not there, so
//! a copy that was cut off never counts. It is checked against its manifest on the way in and on the way out.
//! Copying happens on a thread of its own and fails alone: the training neither waits for it nor ends with
//! it.
//!
//! Which checkpoint a run continues from is decided in `store`, by the same order for both.

mod error;
mod fetch;
mod place;
mod upload;

#[cfg(test)]
mod tests;

pub use error::CopyError;
pub use fetch::clear;
pub(super) use fetch::{FETCHING, fetch_newer};
pub(super) use upload::Uploads;
