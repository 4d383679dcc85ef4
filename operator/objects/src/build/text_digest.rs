//! Digests of the content of objects and of long names.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// Longest host name of a pod, and longest value of a label, in bytes.
const MAX_LABEL_BYTES: usize = 63;
/// Bytes of a digest that replaces the beginning of a long name.
const DIGEST_BYTES: usize = 8;

/// Returns `name` if it fits into a label, else a digest of it followed by its end. The digest keeps names
/// distinct that differ only at their beginning; the end still shows the worker or attempt.
pub(super) fn within_label(name: &str) -> String {
    if name.len() <= MAX_LABEL_BYTES {
        return name.to_owned();
    }
    let start = name.ceil_char_boundary(name.len() - (MAX_LABEL_BYTES - DIGEST_BYTES - 1));
    format!("{}-{}", &digest([name])[..DIGEST_BYTES], name[start..].trim_start_matches('-'))
}

/// Returns a digest of `texts` in hexadecimal: the first 128 bits of SHA-256 over each length and text.
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
