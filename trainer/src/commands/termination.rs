//! Termination message of this process, which Kubernetes keeps in the status of the pod.

use std::path::Path;

use rlt_api::TERMINATION_MESSAGE_VARIABLE;

/// Maximum length of a termination message that Kubernetes keeps, in bytes.
const MAX_BYTES: usize = 4096;

/// Writes the termination message to the file that the parent process named, if it named one.
pub(super) fn write(text: &str) {
    let Some(path) = std::env::var_os(TERMINATION_MESSAGE_VARIABLE) else { return };
    let end = text.floor_char_boundary(MAX_BYTES);
    if let Err(error) = std::fs::write(&path, &text[..end]) {
        tracing::warn!(
            "failed to write the termination message to `{}`: {error}",
            Path::new(&path).display()
        );
    }
}
