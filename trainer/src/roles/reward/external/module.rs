//! The source of a WebAssembly module, and why one is refused.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rlt_api::spec::WasmSpec;
use sha2::{Digest, Sha256};
use wasmi::Error;

use super::event_loop::EventLoop;

/// Longest module in bytes.
const MAX_MODULE_BYTES: u64 = 64 << 20;

/// Longest time to fetch a module.
const FETCH_TIMEOUT: Duration = Duration::from_secs(120);

/// Why a module cannot judge.
#[derive(Debug, thiserror::Error)]
pub enum WasmError {
    /// The file is unreadable.
    #[error("read wasm.path {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The address gives no module.
    #[error("fetch wasm.url {url:?}")]
    Fetch {
        /// As written in the manifest.
        url: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// It is longer than any module may be.
    #[error("the module has more than {MAX_MODULE_BYTES} bytes")]
    TooLong,
    /// It is another module than the manifest means.
    #[error("the module's SHA-256 is {got}, wasm.sha256 says {expected}")]
    Digest {
        /// As written in the manifest.
        expected: String,
        /// The module's.
        got: String,
    },
    /// It is no module, or uses unsupported features.
    #[error("compile the module")]
    Module(#[source] Error),
    /// It requests something from outside.
    #[error("the module imports {module:?} {name:?}; a sandbox gives nothing, so it must import nothing")]
    Import {
        /// The import's module.
        module: String,
        /// The import's name.
        name: String,
    },
    /// It lacks a function or its memory.
    #[error("the module exports no {expected}")]
    Export {
        /// The required export.
        expected: &'static str,
    },
    /// It is no interpreter, or does not reach its request for a sample.
    #[error("start the interpreter: {message}")]
    Start {
        /// Its output, or what stopped it.
        message: String,
    },
    /// The file with the reward function is unreadable.
    #[error("read python.path {}", path.display())]
    Source {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The file with the reward function does not load.
    #[error("load python.path {path}: {message}")]
    Load {
        /// The file.
        path: String,
        /// The exception.
        message: String,
    },
}

/// The module of a manifest, as it was meant.
pub(super) fn load(spec: &WasmSpec, event_loop: &EventLoop) -> Result<Vec<u8>, WasmError> {
    let bytes = match (&spec.path, &spec.url) {
        (Some(path), _) => read(path.as_ref())?,
        (None, Some(url)) => fetch(url, event_loop)?,
        (None, None) => return Err(WasmError::Export { expected: "module: path and url are missing" }),
    };
    check_digest(spec, &bytes)?;
    Ok(bytes)
}

fn read(path: &Path) -> Result<Vec<u8>, WasmError> {
    let failed = |source| WasmError::Read { path: path.to_owned(), source };
    if std::fs::metadata(path).map_err(failed)?.len() > MAX_MODULE_BYTES {
        return Err(WasmError::TooLong);
    }
    std::fs::read(path).map_err(failed)
}

fn fetch(url: &str, event_loop: &EventLoop) -> Result<Vec<u8>, WasmError> {
    let failed =
        |source: reqwest::Error| WasmError::Fetch { url: url.to_owned(), source: source.without_url() };
    event_loop.handle().block_on(async {
        let client = reqwest::Client::builder().timeout(FETCH_TIMEOUT).build().map_err(failed)?;
        let sent = client.get(url).send().await.and_then(reqwest::Response::error_for_status);
        let mut response = sent.map_err(failed)?;
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() as u64 > MAX_MODULE_BYTES {
                return Err(WasmError::TooLong);
            }
        }
        Ok(bytes)
    })
}

fn check_digest(spec: &WasmSpec, bytes: &[u8]) -> Result<(), WasmError> {
    let Some(expected) = &spec.sha256 else { return Ok(()) };
    let got: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    if got == expected.to_lowercase() {
        return Ok(());
    }
    Err(WasmError::Digest { expected: expected.clone(), got })
}
