//! Loads the bytes of an image: from the row, as Hugging Face's parquet files hold them, or from a file.

use std::borrow::Cow;
use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use super::ImageError;

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
    fs::read(&path).map_err(|source| ImageError::Read { image, path: path.display().to_string(), source })
}
