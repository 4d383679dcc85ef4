//! Images of rows: read where a row has or names them, and made patches as the model's preprocessor does it.
//!
//! ```text
//! column -> bytes -> RGB pixels -> resized to whole patches -> normalised -> PromptImage
//! ```
//! The numbers are those of transformers' `Qwen2VLImageProcessor`. Placeholders in text and tokens are put in
//! by `placeholders`; what a tower makes of patches is the model's.

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

pub(crate) use processor::ImageProcessor;

use super::DataError;
use super::rows::Row;

/// Why the images of a row cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A preprocessor's settings are missing or make no sense.
    #[error("read the image processor of {file}: {message}")]
    Processor {
        /// The file.
        file: String,
        /// What is wrong with it.
        message: String,
    },
    /// The column holds something else than images.
    #[error("read image {image}: expected a path, or an object with `bytes` or `path`, found {found}")]
    NoImage {
        /// Which one of the row, from 1.
        image: usize,
        /// Its JSON, cut short.
        found: String,
    },
    /// Its file cannot be read.
    #[error("read image {image} from {path}")]
    Read {
        /// Which one of the row, from 1.
        image: usize,
        /// The file.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Its bytes are no image of a known format, are damaged, or would take too much memory.
    #[error("decode image {image}")]
    Decode {
        /// Which one of the row, from 1.
        image: usize,
        /// What the decoder says.
        #[source]
        source: image::ImageError,
    },
    /// A generated picture could not be written.
    #[error("encode a picture of {side} x {side} pixels")]
    Encode {
        /// Its height and width in pixels.
        side: usize,
        /// What the encoder says.
        #[source]
        source: Box<image::ImageError>,
    },
    /// It is too long for its width, or the other way round.
    #[error("resize image {image} of {width} x {height} pixels: one side may be at most 200 times the other")]
    Aspect {
        /// Which one of the row, from 1.
        image: usize,
        /// Its width in pixels.
        width: usize,
        /// Its height in pixels.
        height: usize,
    },
    /// Placeholders and images are not as many.
    #[error(
        "place {images} images of the row: its messages have {placeholders} placeholders (`<image>` in a text, \
             or parts of type image); data.imagesKey names the column of images"
    )]
    Count {
        /// Images of the row.
        images: usize,
        /// Placeholders in its messages.
        placeholders: usize,
    },
    /// An image follows what is learned.
    #[error(
        "use the images of the row: one of them stands behind the assistant's first answer; split the conversation \
             so that images come before the first answer of a row"
    )]
    BehindAnswer,
    /// The row is a pair.
    #[error(
        "use the {images} images of the row: images are read in prompts and demonstrations, not in pairs"
    )]
    NoPrompt {
        /// Images of the row.
        images: usize,
    },
    /// The model reads text alone.
    #[error("use the {images} images of the row: the model has no vision tower")]
    NoVision {
        /// Images of the row.
        images: usize,
    },
}

/// The images of a row in their order, none where the column `key` is absent or empty.
///
/// # Errors
/// [`DataError::Images`] with the place of the row.
pub(super) fn read(
    row: &Row,
    key: &str,
    processor: Option<&ImageProcessor>,
) -> Result<Vec<PromptImage>, DataError> {
    let items = items(row, key);
    let failed = |source| DataError::Images { location: row.location.clone(), source };
    match processor {
        _ if items.is_empty() => Ok(Vec::new()),
        None => Err(failed(ImageError::NoVision { images: items.len() })),
        Some(processor) => {
            let folder = row.location.file.as_deref().and_then(std::path::Path::parent);
            let images = (1..).zip(items).map(|(image, item)| {
                let bytes = source::bytes_of(item, image, folder)?;
                processor.process(&pixels::decode(&bytes, image)?, image)
            });
            images.collect::<Result<_, _>>().map_err(failed)
        }
    }
}

/// Refuses images where none are read.
///
/// # Errors
/// [`DataError::Images`] where the column `key` has some.
pub(super) fn refuse(row: &Row, key: &str) -> Result<(), DataError> {
    match items(row, key).len() {
        0 => Ok(()),
        images => {
            let source = ImageError::NoPrompt { images };
            Err(DataError::Images { location: row.location.clone(), source })
        }
    }
}

/// A square picture of RGB pixels as a PNG file.
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
