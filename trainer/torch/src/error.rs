//! The errors of this crate.

use std::ffi::c_char;

use crate::collectives::CollectiveError;

/// A failed operation of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// libtorch rejected a call or failed.
    #[error("{act} failed in libtorch: {message}")]
    Libtorch {
        /// Name of the operation.
        act: &'static str,
        /// Message of libtorch's exception.
        message: String,
    },
    /// A shared library or one of its functions is missing.
    #[error("{name} cannot be loaded: {message}")]
    Library {
        /// Name of the library or function.
        name: String,
        /// The dynamic linker's message.
        message: String,
    },
    /// A call of the CUDA driver failed.
    #[error("{act} failed in the CUDA driver: {name} ({message})")]
    Driver {
        /// Name of the operation.
        act: &'static str,
        /// CUDA's number of the error.
        code: i32,
        /// CUDA's name of the error.
        name: String,
        /// CUDA's description of the error.
        message: String,
    },
    /// The file of our own kernels is in none of the searched folders.
    #[error(
        "the kernels for GPUs, rlt-kernels.fatbin, were not found in {}; `make kernels` builds them",
        list(tried)
    )]
    KernelsMissing {
        /// Paths that were tried.
        tried: Vec<std::path::PathBuf>,
    },
    /// The file of our own kernels has no code for this device.
    #[error(
        "{} has no kernels for device {device} with compute capability {}.{}: built for {built}",
        path.display(), capability.0, capability.1
    )]
    Architecture {
        /// Path of the file.
        path: std::path::PathBuf,
        /// Index of the device.
        device: usize,
        /// Major and minor number of the device's compute capability.
        capability: (i32, i32),
        /// Architectures for which the file was built.
        built: String,
    },
    /// An argument is invalid, found before libtorch was called.
    #[error("{act}: expected {expected}, got {got}")]
    Argument {
        /// Name of the operation.
        act: &'static str,
        /// Expected value of the argument, in words.
        expected: String,
        /// Given value of the argument.
        got: String,
    },
    /// A collective over the vocabulary's shards failed.
    #[error("failed to exchange the statistics of a vocabulary's shards")]
    Collective(#[source] Box<CollectiveError>),
    /// The operating system did not provide memory.
    #[error("{act} of {num_bytes} bytes failed")]
    Memory {
        /// Name of the operation.
        act: &'static str,
        /// Number of bytes requested.
        num_bytes: usize,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A file of tensors could not be written or mapped.
    #[error("{act} {folder} failed", folder = folder.display())]
    File {
        /// Name of the operation.
        act: &'static str,
        /// Folder or file of the operation.
        folder: std::path::PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A file about this process under /proc could not be read or written.
    #[error("{act} on {path} failed")]
    Process {
        /// Name of the operation.
        act: &'static str,
        /// Path of the file under /proc.
        path: &'static str,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

fn list(paths: &[std::path::PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}

impl Error {
    /// Returns libtorch's message for an error of libtorch, else the full text.
    pub(crate) fn into_message(self) -> String {
        match self {
            Self::Libtorch { message, .. } => message,
            other => other.to_string(),
        }
    }

    /// Writes the message, truncated if necessary and NUL-terminated, to a buffer of C++.
    ///
    /// # Safety
    /// `buffer` has `bytes` bytes.
    pub(crate) unsafe fn write_to(self, buffer: *mut c_char, bytes: usize) {
        let text = self.into_message();
        let Some(room) = bytes.checked_sub(1) else { return };
        let len = text.len().min(room);
        // SAFETY: the buffer is longer than `len`.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast::<u8>(), len);
            *buffer.add(len) = 0;
        }
    }
}

/// Returns the value, or panics with the error, like tch's operations inside a model's forward pass.
#[expect(clippy::panic, reason = "tch's own operations panic on shapes that cannot work; ours behave alike")]
pub(crate) fn or_panic<T>(result: Result<T, Error>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

impl From<CollectiveError> for Error {
    fn from(error: CollectiveError) -> Self {
        Self::Collective(Box::new(error))
    }
}
