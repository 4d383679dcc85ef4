//! Pixels of an image: decoded from PNG or JPEG, and resized as torchvision does.

use std::io::Cursor;

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder as _, ImageReader, Limits, Rgb, RgbImage};
use tch::{Device, Kind, Tensor};

use super::ImageError;

/// Longest side of an image that is decoded, in pixels.
const MAX_SIDE: u32 = 16_384;
/// Maximum number of pixels of an image, 8192 x 8192: a file of few kilobytes may state any number.
pub(super) const MAX_PIXELS: u64 = 1 << 26;
/// Maximum memory for decoding an image, in bytes.
const MAX_BYTES: u64 = 1 << 29;

/// RGB pixels in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pixels {
    pub(super) width: usize,
    pub(super) height: usize,
    /// Colour values, `u8[height, width, 3]`.
    pub(super) rgb: Vec<u8>,
}

/// Decodes image number `image` of a row and turns it as its EXIF orientation says, which `datasets` and
/// transformers do too. Colours become those of PIL's `convert("RGB")`.
pub(super) fn decode(bytes: &[u8], image: usize) -> Result<Pixels, ImageError> {
    let failed = |source| ImageError::Decode { image, source };
    let mut reader =
        ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|e| failed(e.into()))?;
    let mut limits = Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(MAX_SIDE), Some(MAX_SIDE));
    limits.max_alloc = Some(MAX_BYTES);
    reader.limits(limits.clone());
    let mut decoder = reader.into_decoder().map_err(failed)?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(ImageError::Pixels { image, width, height });
    }
    limits.reserve(decoder.total_bytes()).map_err(failed)?;
    decoder.set_limits(limits).map_err(failed)?;
    // Unreadable metadata do not prevent the pixels from being decoded.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut decoded = DynamicImage::from_decoder(decoder).map_err(failed)?;
    decoded.apply_orientation(orientation);
    let rgb = rgb_bytes(decoded);
    let (width, height) = (rgb.width() as usize, rgb.height() as usize);
    Ok(Pixels { width, height, rgb: rgb.into_raw() })
}

/// Converts an image to RGB as PIL's `convert("RGB")` does: grey is repeated and alpha is dropped. 16-bit
/// values are reduced to their upper eight bits, but 16-bit grey without alpha is clipped at 255.
fn rgb_bytes(decoded: DynamicImage) -> RgbImage {
    let (width, height) = (decoded.width(), decoded.height());
    let upper = |value: u16| value.to_be_bytes()[0];
    match decoded {
        DynamicImage::ImageLuma16(wide) => RgbImage::from_fn(width, height, |x, y| {
            let [grey] = wide.get_pixel(x, y).0;
            Rgb([u8::try_from(grey).unwrap_or(u8::MAX); 3])
        }),
        DynamicImage::ImageLumaA16(wide) => RgbImage::from_fn(width, height, |x, y| {
            let [grey, _] = wide.get_pixel(x, y).0;
            Rgb([upper(grey); 3])
        }),
        DynamicImage::ImageRgb16(wide) => {
            RgbImage::from_fn(width, height, |x, y| Rgb(wide.get_pixel(x, y).0.map(upper)))
        }
        DynamicImage::ImageRgba16(wide) => RgbImage::from_fn(width, height, |x, y| {
            let [red, green, blue, _] = wide.get_pixel(x, y).0;
            Rgb([red, green, blue].map(upper))
        }),
        bytes => bytes.into_rgb8(),
    }
}

impl Pixels {
    /// Resizes the pixels to f32 `[3, height, width]`: bicubic with antialiasing over bytes, as
    /// `torchvision.transforms.v2.functional.resize`.
    pub(super) fn resized(&self, height: usize, width: usize) -> Tensor {
        let shape = [1, self.height as i64, self.width as i64, 3];
        let nchw = Tensor::from_slice(&self.rgb).view(shape).permute([0, 3, 1, 2]);
        let resized = if (height, width) == (self.height, self.width) {
            nchw
        } else {
            nchw.internal_upsample_bicubic2d_aa([height as i64, width as i64], false, None, None)
        };
        debug_assert_eq!(resized.device(), Device::Cpu);
        resized.squeeze_dim(0).to_kind(Kind::Float).contiguous()
    }
}
