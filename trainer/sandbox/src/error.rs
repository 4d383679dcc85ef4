//! Reasons for which a module, or the Python code in it, cannot run in the sandbox.

use wasmi::Error;

/// A module, or the Python code in it, cannot run.
#[derive(Debug, thiserror::Error)]
pub enum WasmError {
    /// The module is invalid, or uses unsupported features.
    #[error("failed to compile the module")]
    Module(#[source] Error),
    /// The module imports something that the sandbox does not provide.
    #[error("the module imports {module:?} {name:?}; a sandbox gives nothing, so it must import nothing")]
    Import {
        /// The module name of the import.
        module: String,
        /// The name of the import.
        name: String,
    },
    /// The module lacks a required function or its memory.
    #[error("the module exports no {expected}")]
    Export {
        /// The missing export.
        expected: &'static str,
    },
    /// The interpreter does not start, or does not wait for its first message.
    #[error("failed to start the interpreter: {message}")]
    Start {
        /// Output of the interpreter, or what stopped it.
        message: String,
    },
    /// The file with the reward function fails to load.
    #[error("failed to load python.path {path}: {message}")]
    Load {
        /// Path of the file.
        path: String,
        /// The Python exception.
        message: String,
    },
}
