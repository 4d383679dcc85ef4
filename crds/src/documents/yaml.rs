//! YAML from outside: manifests, settings, the operator's values. What is written is serde_saphyr's own.

use serde::Deserialize;

/// Reads one document, with as many comments as it has: by itself serde_saphyr refuses more than 32 lines of
/// them at one place.
///
/// # Errors
/// When the text is not YAML, more than one document, or not of this type.
pub fn read_yaml<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, serde_saphyr::Error> {
    serde_saphyr::from_str_with_options(text, serde_saphyr::options! { emit_comments: false })
}
