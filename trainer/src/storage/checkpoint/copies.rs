//! Copies of complete checkpoints in an object store: S3, Google Cloud Storage, Azure, or a folder.
//!
//! ```text
//! <uri>/step-000020/shard-00000.safetensors  state.json  manifest.json
//! ```
//! A copy is the local folder, file by file, with `manifest.json` last: a folder without a manifest is
//! ignored, so an interrupted copy never counts. Uploads and downloads are checked against the manifest.
//! Copying runs on a separate thread: the training neither waits for it nor fails with it.
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
