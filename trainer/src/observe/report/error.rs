//! Reasons for which a report is not made.

use std::path::PathBuf;

use crate::observe::tracking::TrackingError;

/// A report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A log of the run could not be read.
    #[error("failed to read the logs of {}", folder.display())]
    Logs {
        /// The run folder.
        folder: PathBuf,
        /// Error of the log, which names the file.
        source: TrackingError,
    },
    /// The folder is not a run folder.
    #[error("{} is no run folder: it has no manifest.yaml", folder.display())]
    NoRun {
        /// Folder that was given.
        folder: PathBuf,
    },
    /// The page could not be written.
    #[error("failed to write {}", path.display())]
    Write {
        /// Path of the page.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
}
