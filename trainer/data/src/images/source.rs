//! Loads the bytes of an image: from the row, as Hugging Face's parquet files hold them, or from a file.

use std::io;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rlt_files::{Refusal, refusal_in};
use serde_json::Value;

use super::{ImageColumn, ImageError};

/// Maximum size of an image's file, in bytes.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;

/// Returns the bytes of image number `image` of a row. `item` is a path, `data:image/png;base64,..`, or an
/// object with `bytes` (base64) or `path`; paths are relative to `folder`, that of the data file, and lead
/// below it or below a folder that the column allows.
pub(super) fn bytes_of(
    item: &Value,
    image: usize,
    column: ImageColumn<'_>,
    folder: Option<&Path>,
) -> Result<Vec<u8>, ImageError> {
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
    // A data file that is named without a folder is in the working directory.
    let folder = folder.map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    let path = folder.unwrap_or(Path::new("")).join(path);
    read(&path, folder, column.folders).map_err(|source| failed(image, column.key, &path, source))
}

/// Reads a regular file. A data set may name any path, such as the user's private key or an endless device.
fn read(path: &Path, folder: Option<&Path>, folders: &[String]) -> io::Result<Vec<u8>> {
    let allowed = folder.into_iter().chain(folders.iter().map(Path::new));
    rlt_files::read(&rlt_files::resolve_below(path, allowed)?, MAX_FILE_BYTES)
}

fn failed(image: usize, column: &str, path: &Path, source: io::Error) -> ImageError {
    let (column, path) = (column.into(), path.display().to_string());
    match refusal_in(&source) {
        Some(Refusal::Outside { target }) => {
            let (path, target) = (path.into(), target.display().to_string().into());
            ImageError::Outside { image, column, path, target }
        }
        _ => ImageError::Read { image, column, path, source },
    }
}
