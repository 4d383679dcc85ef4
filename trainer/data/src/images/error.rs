//! Reasons for which the images of a row cannot be used.

use super::pixels;

/// The images of a row cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The settings of an image processor are missing or invalid.
    #[error("read the image processor of {file}: {message}")]
    Processor {
        /// Path of the file.
        file: String,
        /// Description of the fault.
        message: String,
    },
    /// The image column holds something else than images.
    #[error("read image {image}: expected a path, or an object with `bytes` or `path`, found {found}")]
    NoImage {
        /// Number of the image in the row, from 1.
        image: usize,
        /// JSON of the value that was found, shortened.
        found: String,
    },
    /// The file of an image cannot be read.
    #[error("read image {image} of column {column:?} from {path}")]
    Read {
        /// Number of the image in the row, from 1.
        image: usize,
        /// Name of the column.
        column: Box<str>,
        /// Path of the file.
        path: String,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The path of an image leads to a file that the data set may not name.
    #[error(
        "read image {image} of column {column:?} from {path}: it leads to {target}, outside of the data file's \
         folder; if that is intended, add a folder that holds it to data.imageFolders"
    )]
    Outside {
        /// Number of the image in the row, from 1.
        image: usize,
        /// Name of the column.
        column: Box<str>,
        /// Path of the file, as the row names it.
        path: Box<str>,
        /// The path without `..` and symbolic links.
        target: Box<str>,
    },
    /// The bytes of an image are of no known format, are damaged, or would take too much memory.
    #[error("decode image {image}")]
    Decode {
        /// Number of the image in the row, from 1.
        image: usize,
        /// Error of the decoder.
        #[source]
        source: image::ImageError,
    },
    /// An image has more pixels than are decoded.
    #[error(
        "decode image {image} of {width} x {height} pixels: expected at most {} pixels",
        pixels::MAX_PIXELS
    )]
    Pixels {
        /// Number of the image in the row, from 1.
        image: usize,
        /// Width of the image in pixels.
        width: u32,
        /// Height of the image in pixels.
        height: u32,
    },
    /// A generated picture could not be encoded.
    #[error("encode a picture of {side} x {side} pixels")]
    Encode {
        /// Height and width of the picture in pixels.
        side: usize,
        /// Error of the encoder.
        #[source]
        source: Box<image::ImageError>,
    },
    /// One side of an image is too long relative to the other.
    #[error("resize image {image} of {width} x {height} pixels: one side may be at most 200 times the other")]
    Aspect {
        /// Number of the image in the row, from 1.
        image: usize,
        /// Width of the image in pixels.
        width: usize,
        /// Height of the image in pixels.
        height: usize,
    },
    /// The numbers of placeholders and images differ.
    #[error(
        "place {images} images of the row: its messages have {placeholders} placeholders (`<image>` in a text, \
             or parts of type image); data.imagesKey names the column of images"
    )]
    Count {
        /// Number of images of the row.
        images: usize,
        /// Number of placeholders in its messages.
        placeholders: usize,
    },
    /// An image follows the first token to learn.
    #[error(
        "use the images of the row: one of them stands behind the assistant's first answer; split the conversation \
             so that images come before the first answer of a row"
    )]
    BehindAnswer,
    /// The row is a preference example, for which images are not supported.
    #[error(
        "use the {images} images of the row: images are read in prompts and demonstrations, not in pairs"
    )]
    NoPrompt {
        /// Number of images of the row.
        images: usize,
    },
    /// The model has no vision tower.
    #[error("use the {images} images of the row: the model has no vision tower")]
    NoVision {
        /// Number of images of the row.
        images: usize,
    },
}
