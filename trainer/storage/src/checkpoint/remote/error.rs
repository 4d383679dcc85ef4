//! Errors of copies of checkpoints, and whether a retry can help.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

/// The stores' messages for a missing bucket.
const NO_BUCKET: [&str; 3] = ["NoSuchBucket", "ContainerNotFound", "specified bucket does not exist"];

/// A failed operation on the copies of a run's checkpoints.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The address is not one of a supported object store.
    #[error(
        "spec.checkpoint.uri: expected s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or \
         file:///FOLDER, got `{uri}`"
    )]
    Address {
        /// Address in the manifest.
        uri: String,
    },
    /// The environment lacks a variable of the store, such as an account's name.
    #[error("spec.checkpoint.uri: failed to configure a client for `{uri}` from the environment")]
    Prepare {
        /// Address of the copies.
        uri: String,
        /// Error of the object store's client.
        source: object_store::Error,
    },
    /// The bucket of the address does not exist.
    #[error("spec.checkpoint.uri: the bucket of `{uri}` does not exist")]
    NoBucket {
        /// Address whose bucket is missing.
        uri: String,
        /// Error of the object store.
        source: object_store::Error,
    },
    /// The object store rejects the credentials, or there are none.
    #[error("spec.checkpoint.uri: access to `{uri}` was denied; check the credentials in the environment")]
    Refused {
        /// Address that was rejected.
        uri: String,
        /// Error of the object store.
        source: object_store::Error,
    },
    /// A request failed for a reason that may be temporary.
    #[error("failed to {act} `{place}`")]
    Request {
        /// Failed operation as a verb, such as `read`.
        act: &'static str,
        /// Object or folder of the store on which the operation failed.
        place: String,
        /// Error of the object store's client.
        source: object_store::Error,
    },
    /// A local file could not be read or written.
    #[error("failed to {act} {}", path.display())]
    Local {
        /// Failed operation as a verb, such as `sync`.
        act: &'static str,
        /// File or folder on which the operation failed.
        path: PathBuf,
        /// Error of the operating system.
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
    /// The uploading thread could not be started.
    #[error("failed to start the thread that copies checkpoints")]
    Thread(#[source] io::Error),
    /// The prefix, or a copy in it, belongs to another run.
    #[error(
        "spec.checkpoint.uri: `{uri}` belongs to one run: {difference}. Give this job another address, or remove the copies \
         there yourself"
    )]
    OtherRun {
        /// Address that belongs to another run.
        uri: String,
        /// Description of how the owner of the copies differs from this run.
        difference: String,
    },
    /// The file that names the owner of a prefix cannot be parsed.
    #[error(
        "spec.checkpoint.uri: `run.json` at `{uri}` does not say whose copies are there: restore or remove it"
    )]
    Owner {
        /// Address of the prefix with the file.
        uri: String,
        /// Error of the JSON parser, with line and column.
        source: serde_json::Error,
    },
    /// A file of the prefix is not read, because it is a device or a pipe, or longer than any file of a
    /// checkpoint.
    #[error("spec.checkpoint.uri: `{place}` is not read: remove it")]
    Unreadable {
        /// Address of the file in the store.
        place: String,
        /// Refusal to read the file.
        source: io::Error,
    },
    /// The run ended before the copy was complete.
    #[error("the checkpoint of step {step} is not copied to `{uri}` yet: {reason}")]
    NotCopied {
        /// Step of the checkpoint that was not copied.
        step: u64,
        /// Address to which the checkpoint is copied.
        uri: String,
        /// Last failure, or the time that was waited.
        reason: String,
    },
}

impl CopyError {
    /// Whether a retry cannot help.
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
                // Errors of list requests have the HTTP status only in their text.
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

/// Formats an error with all its causes on one line.
pub(super) fn with_causes(error: &dyn Error) -> String {
    crate::error_chain(error)
}
