//! What can fail in this crate. No recovery lives here.

/// A failed act of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// libtorch refused or failed; the message is its own.
    #[error("{act} failed in libtorch: {message}")]
    Libtorch {
        /// What was tried.
        act: &'static str,
        /// libtorch's message.
        message: String,
    },
    /// An argument cannot work, found before libtorch was called.
    #[error("{act}: expected {expected}, got {got}")]
    Argument {
        /// What was tried.
        act: &'static str,
        /// What the argument must be.
        expected: String,
        /// What it was.
        got: String,
    },
    /// The kernel refused memory.
    #[error("{act} of {num_bytes} bytes failed")]
    Memory {
        /// What was tried.
        act: &'static str,
        /// How much was asked for.
        num_bytes: usize,
        /// The cause.
        source: std::io::Error,
    },
    /// A file of tensors could not be written or mapped.
    #[error("{act} {folder} failed", folder = folder.display())]
    File {
        /// What was tried.
        act: &'static str,
        /// Where.
        folder: std::path::PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The operating system's account of this process could not be read or written.
    #[error("{act} on {path} failed")]
    Process {
        /// What was tried.
        act: &'static str,
        /// The file under /proc.
        path: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}

impl Error {
    /// libtorch's own words where it failed, else all that there is to say.
    pub(crate) fn into_message(self) -> String {
        match self {
            Self::Libtorch { message, .. } => message,
            other => other.to_string(),
        }
    }
}

/// The tensor, or a panic with the error: the behaviour of tch's operations inside a model's forward pass.
#[expect(clippy::panic, reason = "tch's own operations panic on shapes that cannot work; ours behave alike")]
pub(crate) fn or_panic<T>(result: Result<T, Error>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}
