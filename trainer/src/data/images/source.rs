//! Loads the bytes of an image: from the row, as Hugging Face's parquet files hold them, or from a file.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use super::ImageError;

/// Maximum size of an image's file, in bytes.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;

/// Returns the bytes of image number `image` of a row. `item` is a path, `data:image/png;base64,..`, or an
/// object with `bytes` (base64) or `path`; paths are relative to `folder`, that of the data file.
pub(super) fn bytes_of(item: &Value, image: usize, folder: Option<&Path>) -> Result<Vec<u8>, ImageError> {
    let text = |key: &str| item.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    let no_image = || ImageError::NoImage { image, found: item.to_string().chars().take(80).collect() };
    if let Some(encoded) = text("bytes") {
        return BASE64_STANDARD.decode(encoded).map_err(|_| no_image());
    }
    let place = item.as_str().or_else(|| text("path")).or_else(|| text("image")).ok_or_else(no_image)?;
    if let Some((_, encoded)) = place.strip_prefix("data:image/").and_then(|rest| rest.split_once(";base64,"))
    {
        return BASE64_STANDARD.decode(encoded).map_err(|_| no_image());
    }
    let path = place.strip_prefix("file://").unwrap_or(place);
    let path = folder.map_or(Cow::Borrowed(Path::new(path)), |folder| Cow::Owned(folder.join(path)));
    read(&path).map_err(|source| ImageError::Read { image, path: path.display().to_string(), source })
}

/// Reads a regular file. A data set may name any path: a device has no end, a pipe may never have a writer.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::other("expected a regular file"));
    }
    let num_bytes = metadata.len();
    if num_bytes > MAX_FILE_BYTES {
        let message = format!("the file has {num_bytes} bytes, expected at most {MAX_FILE_BYTES}");
        return Err(io::Error::other(message));
    }
    let mut bytes = Vec::new();
    // The file may grow.
    File::open(path)?.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}
