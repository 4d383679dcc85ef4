//! Loading of a WebAssembly module from a file or URL.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rlt_api::spec::WasmSpec;
use rlt_sandbox::WasmError;
use rlt_tracking::http;
use sha2::{Digest, Sha256};

use super::event_loop::EventLoop;

/// Size limit of a module in bytes.
const MAX_MODULE_BYTES: u64 = 64 << 20;

/// Time limit of fetching a module.
const FETCH_TIMEOUT: Duration = Duration::from_secs(120);

/// A function in the sandbox cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// The file of the module cannot be read.
    #[error("failed to read wasm.path {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The module could not be fetched.
    #[error("failed to fetch wasm.url {url:?}")]
    Fetch {
        /// The URL in the manifest, without password and query, which may be a signature.
        url: String,
        /// The error of the request.
        #[source]
        source: reqwest::Error,
    },
    /// The module exceeds the size limit.
    #[error("the module has more than {MAX_MODULE_BYTES} bytes")]
    TooLong,
    /// The module's digest differs from the manifest's.
    #[error("the module's SHA-256 is {got}, wasm.sha256 says {expected}")]
    Digest {
        /// SHA-256 as it is written in the manifest.
        expected: String,
        /// SHA-256 of the module.
        got: String,
    },
    /// The file with the reward function cannot be read.
    #[error("failed to read python.path {}", path.display())]
    Source {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The module or the Python code in it cannot run.
    #[error(transparent)]
    Sandbox(#[from] WasmError),
}

/// Loads the module of a manifest and checks its digest.
pub(super) fn load(spec: &WasmSpec, event_loop: &EventLoop) -> Result<Vec<u8>, ModuleError> {
    let bytes = match (&spec.path, &spec.url) {
        (Some(path), _) => read(path.as_ref())?,
        (None, Some(url)) => fetch(url, event_loop)?,
        (None, None) => {
            return Err(WasmError::Export { expected: "module: path and url are missing" }.into());
        }
    };
    check_digest(spec, &bytes)?;
    Ok(bytes)
}

fn read(path: &Path) -> Result<Vec<u8>, ModuleError> {
    rlt_files::read(path, MAX_MODULE_BYTES).map_err(|source| match rlt_files::refusal_in(&source) {
        Some(rlt_files::Refusal::TooLong { .. }) => ModuleError::TooLong,
        _ => ModuleError::Read { path: path.to_owned(), source },
    })
}

fn fetch(url: &str, event_loop: &EventLoop) -> Result<Vec<u8>, ModuleError> {
    let failed =
        |source: reqwest::Error| ModuleError::Fetch { url: shown(url), source: source.without_url() };
    event_loop.handle().block_on(async {
        let client = reqwest::Client::builder().timeout(FETCH_TIMEOUT).build().map_err(failed)?;
        let sent = client.get(url).send().await.and_then(reqwest::Response::error_for_status);
        let mut response = sent.map_err(failed)?;
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            bytes.extend_from_slice(&chunk);
            if bytes.len() as u64 > MAX_MODULE_BYTES {
                return Err(ModuleError::TooLong);
            }
        }
        Ok(bytes)
    })
}

/// Returns what errors show of the URL of a module.
fn shown(url: &str) -> String {
    http::without_password(url).split(['?', '#']).next().unwrap_or_default().to_owned()
}

fn check_digest(spec: &WasmSpec, bytes: &[u8]) -> Result<(), ModuleError> {
    let Some(expected) = &spec.sha256 else { return Ok(()) };
    let got: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    if got == expected.to_lowercase() {
        return Ok(());
    }
    Err(ModuleError::Digest { expected: expected.clone(), got })
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn a_module_that_cannot_be_fetched_is_named_without_password_and_signature() {
        let port = rlt_tests::HeldPort::new().unwrap();
        let url = format!("http://user:pass-word@127.0.0.1:{}/a.wasm?signature=pass-word", port.number());
        let event_loop = EventLoop::start().unwrap();
        let error = fetch(&url, &event_loop).unwrap_err();
        let expected = format!("failed to fetch wasm.url \"http://127.0.0.1:{}/a.wasm\"", port.number());
        assert_eq!(error.to_string(), expected);
        let mut source = error.source();
        while let Some(cause) = source {
            assert!(!cause.to_string().contains("pass-word"), "{cause}");
            source = cause.source();
        }
    }
}
