//! The errors of this crate. There is no recovery here.

use std::ffi::c_char;

use crate::collectives::CollectiveError;

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
    /// A shared library or one of its functions is missing.
    #[error("{name} cannot be loaded: {message}")]
    Library {
        /// The library or function.
        name: String,
        /// The dynamic linker's message.
        message: String,
    },
    /// The CUDA driver refused or failed.
    #[error("{act} failed in the CUDA driver: {name} ({message})")]
    Driver {
        /// What was tried.
        act: &'static str,
        /// CUDA's number of the error.
        code: i32,
        /// CUDA's name of the error.
        name: String,
        /// CUDA's text.
        message: String,
    },
    /// The file of our own kernels is in none of its places.
    #[error(
        "the kernels for GPUs, rlt-kernels.fatbin, were not found in {}; `make kernels` builds them",
        list(tried)
    )]
    KernelsMissing {
        /// Where they were looked for.
        tried: Vec<std::path::PathBuf>,
    },
    /// The file of our own kernels has nothing for this device.
    #[error(
        "{} has no kernels for device {device} with compute capability {}.{}: built for {built}",
        path.display(), capability.0, capability.1
    )]
    Architecture {
        /// The file.
        path: std::path::PathBuf,
        /// Index of the device.
        device: usize,
        /// The device's compute capability.
        capability: (i32, i32),
        /// The architectures in the file.
        built: String,
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
    /// The ranks that have the other parts of a vocabulary could not be reached.
    #[error("failed to exchange the statistics of a vocabulary's parts")]
    Collective(#[source] Box<CollectiveError>),
    /// The kernel refused memory.
    #[error("{act} of {num_bytes} bytes failed")]
    Memory {
        /// What was tried.
        act: &'static str,
        /// How much was requested.
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

fn list(paths: &[std::path::PathBuf]) -> String {
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(", ")
}

impl Error {
    /// libtorch's own words where it failed, else all that there is to say.
    pub(crate) fn into_message(self) -> String {
        match self {
            Self::Libtorch { message, .. } => message,
            other => other.to_string(),
        }
    }

    /// Writes the message into a buffer of C++, as much as fits, with a NUL behind it.
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

/// The tensor, or a panic with the error: the behaviour of tch's operations inside a model's forward pass.
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
