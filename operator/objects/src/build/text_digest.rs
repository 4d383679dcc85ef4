//! Digests of the content of objects.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// The digest of an object's content, for its annotation.
pub(crate) fn digest<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hasher = Sha256::new();
    for text in texts {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    }
    let mut hex = String::with_capacity(32);
    for byte in hasher.finalize().iter().take(16) {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}
