//! Image processor of a model's folder: sizes, means and deviations, and the conversion from pixels to
//! patches.

use std::path::Path;

use rlt_api::spec::VisionSpec;
use rlt_core::digest::{combine, digest64};
use rlt_core::images::{ImageGrid, PromptImage};
use rlt_core::types::TokenId;
use rlt_models::ModelConfig;
use serde_json::{Value, json};
use tch::Tensor;

use super::ImageError;
use super::pixels::Pixels;

/// Maximum ratio of an image's longer to its shorter side.
const MAX_ASPECT: f64 = 200.0;
/// Files of a model's folder that may hold the settings, in order of precedence; in the second they may be
/// below `image_processor`.
const FILES: [&str; 2] = ["preprocessor_config.json", "processor_config.json"];

/// Default of the maximum area of a resized image, in pixels.
const MAX_PIXELS: f64 = VisionSpec::MAX_PIXELS as f64;
/// Means and deviations of the colours of OpenAI's CLIP, by default.
const MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const STD: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];
/// Factor that maps bytes to 0..=1, by default.
const RESCALE: f64 = 1.0 / 255.0;

/// Converts images to patches.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ImageProcessor {
    patch: usize,
    temporal: usize,
    merge: usize,
    /// Minimum area of a resized image, in pixels.
    min_pixels: f64,
    /// Maximum area of a resized image, in pixels.
    max_pixels: f64,
    mean: [f32; 3],
    std: [f32; 3],
    /// Factor that is applied to a byte before it is normalised.
    rescale: f64,
    /// Token that represents a merged patch of an image in a prompt.
    pub(crate) image_token: TokenId,
    /// Whether the processor belongs to a new vision tower, so that no folder has its settings yet.
    is_new: bool,
}

impl ImageProcessor {
    /// Loads the processor of a model's folder; `None` if the model has no vision tower, or if the tower is
    /// left out. Settings that the folder lacks have the defaults of transformers' `Qwen2VLImageProcessor`.
    ///
    /// # Errors
    /// [`ImageError::Processor`] with the path of the file.
    pub(crate) fn load(folder: &Path) -> Result<Option<Self>, ImageError> {
        let Some(config) = read_json(&folder.join("config.json"))? else { return Ok(None) };
        let Some(vision) = config.get("vision_config") else { return Ok(None) };
        if ModelConfig::leaves_tower_out(&config) {
            return Ok(None);
        }
        let failed = |file: &str, message: String| ImageError::Processor {
            file: folder.join(file).display().to_string(),
            message,
        };
        let image_token =
            config.get("image_token_id").and_then(Value::as_u64).and_then(|id| TokenId::try_from(id).ok());
        let image_token =
            image_token.ok_or_else(|| failed("config.json", "image_token_id is no token id".into()))?;
        let mut settings = (FILES[0], Value::Null);
        for file in FILES.iter().rev() {
            if let Some(found) = read_json(&folder.join(file))? {
                settings = (file, found.get("image_processor").cloned().unwrap_or(found));
            }
        }
        let (file, settings) = settings;
        let processor = Self::from_settings(&settings, vision, image_token);
        let processor = processor.map_err(|message| failed(file, message))?;
        Ok(Some(processor))
    }

    /// Creates the processor of a new vision tower, with Qwen2-VL's settings except that an image may be as
    /// small as one token. `image_token` represents a merged patch in a prompt.
    pub(crate) fn of_new_tower(tower: &VisionSpec, image_token: TokenId) -> Self {
        let (patch, merge) = (tower.patch_size as usize, tower.merge_size as usize);
        let smallest = ((patch * merge) as f64).powi(2);
        Self {
            patch,
            temporal: 2,
            merge,
            min_pixels: smallest,
            max_pixels: MAX_PIXELS.max(smallest),
            mean: MEAN,
            std: STD,
            rescale: RESCALE,
            image_token,
            is_new: true,
        }
    }

    /// Settings file from which transformers reads the same processor; `None` if the model's folder has it
    /// already.
    pub(crate) fn new_settings(&self) -> Option<Value> {
        self.is_new.then(|| {
            let (smallest, largest) = (self.min_pixels as u64, self.max_pixels as u64);
            json!({
                "image_processor_type": "Qwen2VLImageProcessor",
                "patch_size": self.patch, "temporal_patch_size": self.temporal, "merge_size": self.merge,
                "min_pixels": smallest, "max_pixels": largest,
                "size": {"shortest_edge": smallest, "longest_edge": largest},
                "image_mean": self.mean, "image_std": self.std, "rescale_factor": self.rescale,
                "do_convert_rgb": true, "do_normalize": true, "do_rescale": true, "do_resize": true,
                "resample": 3,
            })
        })
    }

    fn from_settings(settings: &Value, vision: &Value, image_token: TokenId) -> Result<Self, String> {
        let whole = |names: [&str; 2], otherwise: u64| {
            let found =
                settings.get(names[0]).or_else(|| vision.get(names[1])).filter(|value| !value.is_null());
            let number =
                found.map_or(Some(otherwise), Value::as_u64).filter(|number| (1..=1024).contains(number));
            number.map(|number| number as usize).ok_or_else(|| format!("{} must be from 1 to 1024", names[0]))
        };
        let area = |key: &str, edge: &str, otherwise: f64| {
            let of_size = settings.get("size").and_then(|size| size.get(edge));
            let found = settings.get(key).filter(|value| !value.is_null()).or(of_size);
            found
                .map_or(Some(otherwise), Value::as_f64)
                .filter(|area| *area >= 1.0)
                .ok_or_else(|| format!("{key} must be at least 1"))
        };
        let colours =
            |key: &str, otherwise: [f32; 3]| match settings.get(key).filter(|value| !value.is_null()) {
                None => Ok(otherwise),
                Some(value) => {
                    let numbers: Vec<f32> = serde_json::from_value(value.clone()).unwrap_or_default();
                    <[f32; 3]>::try_from(numbers)
                        .map_err(|_| format!("{key} must be a list of three numbers"))
                }
            };
        Ok(Self {
            patch: whole(["patch_size", "patch_size"], 14)?,
            temporal: whole(["temporal_patch_size", "temporal_patch_size"], 2)?,
            merge: whole(["merge_size", "spatial_merge_size"], 2)?,
            min_pixels: area("min_pixels", "shortest_edge", 3136.0)?,
            max_pixels: area("max_pixels", "longest_edge", MAX_PIXELS)?,
            mean: colours("image_mean", MEAN)?,
            std: colours("image_std", STD)?,
            rescale: settings.get("rescale_factor").and_then(Value::as_f64).unwrap_or(RESCALE),
            image_token,
            is_new: false,
        })
    }

    /// Number of tokens of an image in a prompt.
    pub(crate) fn num_tokens(&self, image: &PromptImage) -> usize {
        image.grid.num_tokens(self.merge)
    }

    /// Converts the pixels of image number `image` of a row to patches.
    ///
    /// # Errors
    /// [`ImageError::Aspect`].
    pub(super) fn process(&self, pixels: &Pixels, image: usize) -> Result<PromptImage, ImageError> {
        let (height, width) = (pixels.height, pixels.width);
        let (height, width) = self.size(height, width).ok_or(ImageError::Aspect { image, width, height })?;
        let colours = |values: [f32; 3]| {
            Tensor::from_slice(&values.map(|value| value * (1.0 / self.rescale) as f32)).view([3, 1, 1])
        };
        let normal = (pixels.resized(height, width) - colours(self.mean)) / colours(self.std);
        let (patch, merge) = (self.patch as i64, self.merge as i64);
        let grid = ImageGrid { frames: 1, rows: height / self.patch, columns: width / self.patch };
        let (rows, columns) = (grid.rows as i64 / merge, grid.columns as i64 / merge);
        // [c, h, m, p, w, m, p] to [h, w, m, m, c, p, p]; a still image is repeated in time.
        let laid =
            normal.view(&[3, rows, merge, patch, columns, merge, patch][..]).permute([1, 4, 2, 5, 0, 3, 6]);
        let laid = laid
            .unsqueeze(5)
            .expand([rows, columns, merge, merge, 3, self.temporal as i64, patch, patch], true);
        let mut patches = vec![0.0_f32; laid.numel()];
        laid.contiguous().view(-1).copy_data(&mut patches, laid.numel());
        let digest = combine(digest64(&patches), (grid.rows as u64) << 32 | grid.columns as u64);
        Ok(PromptImage { digest, grid, patches })
    }

    /// Height and width of the resized image: multiples of a merged patch, an area within bounds, and nearly
    /// the same proportions (`smart_resize` of `image_processing_qwen2_vl.py`). `None` beyond the maximum
    /// aspect ratio.
    pub(super) fn size(&self, height: usize, width: usize) -> Option<(usize, usize)> {
        let (h, w) = (height as f64, width as f64);
        if h.max(w) / h.min(w) > MAX_ASPECT {
            return None;
        }
        let factor = (self.patch * self.merge) as f64;
        // Python rounds halves to the even number.
        let rounded = |side: f64| (side / factor).round_ties_even() * factor;
        let (new_h, new_w) = (rounded(h), rounded(w));
        let (min, max) = (self.min_pixels, self.max_pixels);
        let (new_h, new_w) = if new_h * new_w > max {
            let beta = (h * w / max).sqrt();
            let lower = |side: f64| ((side / beta / factor).floor() * factor).max(factor);
            (lower(h), lower(w))
        } else if new_h * new_w < min {
            let beta = (min / (h * w)).sqrt();
            let upper = |side: f64| (side * beta / factor).ceil() * factor;
            (upper(h), upper(w))
        } else {
            (new_h, new_w)
        };
        Some((new_h as usize, new_w as usize))
    }
}

fn read_json(file: &Path) -> Result<Option<Value>, ImageError> {
    let failed = |message: String| ImageError::Processor { file: file.display().to_string(), message };
    match rlt_files::read(file, rlt_files::MAX_MODEL_JSON_BYTES) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| failed(error.to_string())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error.to_string())),
    }
}
