//! Permanent reasons for which a file is not read.

use std::fs::{FileType, Metadata};
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;

/// Reason why a file is refused. It depends on the path and the content, so a retry cannot succeed.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The path leads to a device, pipe, socket or folder.
    #[error("expected a regular file, found {found}")]
    NotRegular {
        /// Kind of the file, with its article.
        found: &'static str,
    },
    /// The file, or a line of it, is too long.
    #[error("expected at most {max_bytes} bytes, found more")]
    TooLong {
        /// Maximum number of bytes.
        max_bytes: u64,
    },
    /// The path leads out of the folders that are allowed.
    #[error("it leads to {}, outside of the folders that are allowed", target.display())]
    Outside {
        /// The path without `..` and symbolic links.
        target: PathBuf,
    },
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        Self::new(io::ErrorKind::InvalidInput, refusal)
    }
}

/// Returns the refusal within an error of a file, if it is one.
pub fn refusal_in(error: &io::Error) -> Option<&Refusal> {
    error.get_ref()?.downcast_ref()
}

/// Whether an error is a [`Refusal`], so that a retry cannot succeed.
pub fn is_refusal(error: &io::Error) -> bool {
    refusal_in(error).is_some()
}

pub(crate) fn check_is_regular(metadata: &Metadata) -> Result<(), Refusal> {
    let found = match metadata.file_type() {
        kind if kind.is_file() => return Ok(()),
        kind => kind_of(kind),
    };
    Err(Refusal::NotRegular { found })
}

fn kind_of(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_dir() => "a folder",
        _ if kind.is_fifo() => "a pipe",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    }
}
