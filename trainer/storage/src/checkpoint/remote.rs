//! Copies of complete checkpoints in an object store: S3, Google Cloud Storage, Azure, or a folder.
//!
//! ```text
//! <uri>/step-000020/shard-00000.safetensors  state.json  manifest.json
//! ```
//! A copy contains the same files as the local folder, with `manifest.json` written last. A folder without a
//! manifest is ignored, so an interrupted copy never counts. Uploads and downloads are verified against the
//! manifest. A separate thread copies: the training neither waits for it nor fails with it.
//!
//! `store` decides which checkpoint a run continues from, by the same order for local folders and copies.

mod error;
mod fetch;
mod store;
mod upload;

#[cfg(test)]
mod tests;

pub use error::CopyError;
pub use fetch::clear;
pub(super) use fetch::{FETCHING, fetch_newer};
pub(super) use upload::Uploads;
