//! Errors of copies of checkpoints, and whether a retry can help.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

/// The stores' messages for a missing bucket.
const NO_BUCKET: [&str; 3] = ["NoSuchBucket", "ContainerNotFound", "specified bucket does not exist"];

/// An act on a copy that failed.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The address cannot be one.
    #[error(
        "spec.checkpoint.uri: expected s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or \
         file:///FOLDER, got `{uri}`"
    )]
    Address {
        /// The given address.
        uri: String,
    },
    /// The environment lacks a variable of the store, such as an account's name.
    #[error("spec.checkpoint.uri: failed to prepare for `{uri}` by the variables of the environment")]
    Prepare {
        /// The address of the copies.
        uri: String,
        /// The error of the object store's client.
        source: object_store::Error,
    },
    /// There is no such bucket.
    #[error("spec.checkpoint.uri: the bucket of `{uri}` does not exist")]
    NoBucket {
        /// The address whose bucket is missing.
        uri: String,
        /// The store's error.
        source: object_store::Error,
    },
    /// The store refuses the credentials, or there are none.
    #[error("spec.checkpoint.uri: `{uri}` is refused: are the credentials in the environment right?")]
    Refused {
        /// The address that is refused.
        uri: String,
        /// The store's error.
        source: object_store::Error,
    },
    /// A request failed in a way that may pass.
    #[error("failed to {act} `{place}`")]
    Request {
        /// The failed operation as a verb, such as `read`.
        act: &'static str,
        /// The object or folder of the store that the operation failed on.
        place: String,
        /// The client's error.
        source: object_store::Error,
    },
    /// A local file could not be read or written.
    #[error("failed to {act} {}", path.display())]
    Local {
        /// The failed operation as a verb, such as `sync`.
        act: &'static str,
        /// The file or folder that the operation failed on.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The local checkpoint does not match its manifest: it was replaced while it was copied, or is
    /// damaged.
    #[error("{} is not what its manifest says", path.display())]
    Changed {
        /// Path of the changed file.
        path: PathBuf,
    },
    /// The local checkpoint, or the downloaded one, cannot be opened.
    #[error("the checkpoint does not fit its manifest")]
    Checkpoint(#[from] super::super::CheckpointError),
    /// The thread that copies could not be started.
    #[error("failed to start the thread that copies checkpoints")]
    Thread(#[source] io::Error),
    /// The prefix, or a copy in it, belongs to another run.
    #[error(
        "spec.checkpoint.uri: `{uri}` belongs to one run: {difference}. Give this job another address, or remove the copies \
         there yourself"
    )]
    OtherRun {
        /// The address that belongs to another run.
        uri: String,
        /// The owner of the copies, and how it differs from this run.
        difference: String,
    },
    /// The file that says whose copies are in a prefix is not one.
    #[error(
        "spec.checkpoint.uri: `run.json` at `{uri}` does not say whose copies are there: restore or remove it"
    )]
    Owner {
        /// The address that has the file.
        uri: String,
        /// The error of the JSON parser, with line and column.
        source: serde_json::Error,
    },
    /// A file of the prefix is not read: it is a device or a pipe, or longer than any of a checkpoint.
    #[error("spec.checkpoint.uri: `{place}` is not read: remove it")]
    Unreadable {
        /// The file in the store.
        place: String,
        /// The refusal.
        source: io::Error,
    },
    /// The run ended before the copy was complete.
    #[error("the checkpoint of step {step} is not copied to `{uri}` yet: {reason}")]
    NotCopied {
        /// Step of the checkpoint.
        step: u64,
        /// The address to which the checkpoint is copied.
        uri: String,
        /// The last failure, or how long it was waited for.
        reason: String,
    },
}

impl CopyError {
    /// Whether trying again cannot help.
    pub fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::Address { .. }
                | Self::Prepare { .. }
                | Self::NoBucket { .. }
                | Self::Refused { .. }
                | Self::OtherRun { .. }
                | Self::Owner { .. }
                | Self::Unreadable { .. }
        )
    }

    pub(super) fn request(
        uri: &str,
        act: &'static str,
        place: &object_store::path::Path,
    ) -> impl FnOnce(object_store::Error) -> Self {
        let (uri, place) = (uri.to_owned(), place.to_string());
        move |source| {
            let text = with_causes(&source);
            match &source {
                _ if NO_BUCKET.iter().any(|sign| text.contains(sign)) => Self::NoBucket { uri, source },
                object_store::Error::PermissionDenied { .. }
                | object_store::Error::Unauthenticated { .. } => Self::Refused { uri, source },
                // Listings keep the status in the text alone.
                _ if text.contains("status code: 403") || text.contains("status code: 401") => {
                    Self::Refused { uri, source }
                }
                _ => Self::Request { act, place: format!("{uri} {place}"), source },
            }
        }
    }

    pub(super) fn local(act: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Local { act, path, source }
    }
}

/// An error with all its causes on one line.
pub(super) fn with_causes(error: &dyn Error) -> String {
    crate::storage::error_chain(error)
}
