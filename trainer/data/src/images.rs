//! Images of rows: loads them from a column and turns them into patches as the model's preprocessor does.
//!
//! ```text
//! column -> bytes -> RGB pixels -> resized to whole patches -> normalised -> PromptImage
//! ```
//! The values are those of transformers' `Qwen2VLImageProcessor`. `placeholders` inserts the image tokens
//! into text and tokens. The vision tower that reads the patches is in the decoder.

mod error;
mod pixels;
pub(super) mod placeholders;
mod processor;
mod source;

#[cfg(test)]
mod mutated_tests;
#[cfg(test)]
mod tests;

use std::io::Cursor;

use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder as _};
use rlt_core::images::PromptImage;
use serde_json::Value;

pub(super) use error::ImageError;
pub(crate) use processor::ImageProcessor;

use super::DataError;
use super::rows::Row;

/// Column of the images of a row, and the files that it may name.
#[derive(Clone, Copy, Debug)]
pub(super) struct ImageColumn<'a> {
    /// Name of the column.
    pub(super) key: &'a str,
    /// Folders that paths of images may lead into, besides the folder of the data file.
    pub(super) folders: &'a [String],
}

/// Reads the images of a row in order; empty if the column is absent or empty.
///
/// # Errors
/// [`DataError::Images`] with the location of the row.
pub(super) fn read(
    row: &Row,
    column: ImageColumn<'_>,
    processor: Option<&ImageProcessor>,
) -> Result<Vec<PromptImage>, DataError> {
    let items = items(row, column.key);
    let failed = |source| DataError::Images { location: row.location.clone(), source };
    match processor {
        _ if items.is_empty() => Ok(Vec::new()),
        None => Err(failed(ImageError::NoVision { images: items.len() })),
        Some(processor) => {
            let folder = row.location.file.as_deref().and_then(std::path::Path::parent);
            let images = (1..).zip(items).map(|(image, item)| {
                let bytes = source::bytes_of(item, image, column, folder)?;
                processor.process(&pixels::decode(&bytes, image)?, image)
            });
            images.collect::<Result<_, _>>().map_err(failed)
        }
    }
}

/// Refuses a row with images, for readers that support none.
///
/// # Errors
/// [`DataError::Images`] if the column `key` has images.
pub(super) fn refuse(row: &Row, key: &str) -> Result<(), DataError> {
    match items(row, key).len() {
        0 => Ok(()),
        images => {
            let source = ImageError::NoPrompt { images };
            Err(DataError::Images { location: row.location.clone(), source })
        }
    }
}

/// Encodes a square picture of RGB pixels as a PNG file.
///
/// # Errors
/// [`ImageError::Encode`] unless `rgb` has `side * side` pixels.
pub(super) fn png(side: usize, rgb: &[u8]) -> Result<Vec<u8>, ImageError> {
    let failed = |source| ImageError::Encode { side, source: Box::new(source) };
    let mut file = Cursor::new(Vec::new());
    let written =
        PngEncoder::new(&mut file).write_image(rgb, side as u32, side as u32, ExtendedColorType::Rgb8);
    written.map_err(failed)?;
    Ok(file.into_inner())
}

fn items<'r>(row: &'r Row, key: &str) -> &'r [Value] {
    match row.at(key) {
        None => &[],
        Some(Value::Array(items)) => items,
        Some(item) => std::slice::from_ref(item),
    }
}
