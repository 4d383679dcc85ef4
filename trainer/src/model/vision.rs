//! The vision tower of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: from the patches of an image to the features that
//! take the place of its placeholder tokens' embeddings, and in Qwen3-VL to those that are added after the
//! first layers of the text model (DeepStack).
//!
//! ```text
//! patches [p, pixels] -> patch embedding -> blocks (rotary by row and column, windows) -> merger [n, hidden]
//!                           + positions        `-> mergers of some blocks [n, hidden] each
//! ```
//! The tower is frozen: it has no gradients, belongs to no optimizer, and every rank has the whole of it. So
//! the features of an image stay the same for a whole run, and are kept by the image's digest. Never here:
//! files of pixels, positions of tokens.
//!
//! Shapes: p patches of an image, n = p / merge^2 tokens, d the tower's width.

mod attention;
mod block;
mod kept;
mod order;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::sync::Arc;

use rlt_api::plan::model_config::{ModelConfig, TOWER, VisionBlocks, VisionConfig};
use rlt_core::images::PromptImage;
use rlt_core::tensor_shard::TensorShard;
use tch::{Kind, Tensor, no_grad};

use self::block::Block;
use self::kept::KeptFeatures;
use self::order::{PatchOrder, Units};
use super::decoder::LoadOptions;
use super::error::ModelError;
use super::weights::Weights;

/// The name of a tensor as models were published: the tower under `visual.`, the text model under `model.`.
/// transformers has called both `model.visual.` and `model.language_model.` in memory since 4.52.
pub(crate) fn published_name(name: &str) -> String {
    let renamed = |from: &str, to: &str| name.strip_prefix(from).map(|rest| format!("{to}{rest}"));
    let tower = renamed("model.visual.", TOWER);
    tower.or_else(|| renamed("model.language_model.", "model.")).unwrap_or_else(|| name.to_owned())
}

/// The name under which a tensor is exported: as models of the family were published, Qwen3-VL under the
/// names of transformers' memory.
pub(crate) fn stored_name(config: &ModelConfig, name: String) -> String {
    if config.vision.as_ref().is_none_or(|vision| vision.blocks != VisionBlocks::Positioned) {
        return name;
    }
    match name.strip_prefix("model.") {
        Some(rest) => format!("model.language_model.{rest}"),
        None if name.starts_with(TOWER) => format!("model.{name}"),
        None => name,
    }
}

/// A tower with its weights.
#[derive(Debug)]
pub(crate) struct VisionTower {
    config: VisionConfig,
    options: LoadOptions,
    /// Every tensor by its name on disk, in the order of the configuration.
    tensors: Vec<(String, Tensor)>,
    kept: RefCell<KeptFeatures>,
}

impl VisionTower {
    /// The tower of a model, in the storage dtype; `None` where the model has none.
    ///
    /// # Errors
    /// [`ModelError`], as of [`Weights::fill`], and when the device has no room.
    pub(crate) fn read(weights: &Weights, options: &LoadOptions) -> Result<Option<Self>, ModelError> {
        let model: &ModelConfig = weights.config();
        let Some(config) = model.vision.clone() else { return Ok(None) };
        let mut tensors = Vec::new();
        for tensor in model.vision_tensors() {
            let shape: Vec<i64> = tensor.shape.iter().map(|dim| *dim as i64).collect();
            let values = Tensor::f_empty(&shape, (options.storage, options.device)).map_err(|source| {
                ModelError::Torch {
                    tensor: tensor.name.clone(),
                    device: format!("{:?}", options.device),
                    source,
                }
            })?;
            weights.fill(&TensorShard::whole(&tensor.name, &shape), &values.view(-1))?;
            tensors.push((tensor.name, values));
        }
        let options = LoadOptions { trainable: false, ..*options };
        Ok(Some(Self { config, options, tensors, kept: RefCell::default() }))
    }

    /// Every tensor by its name on disk.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (String, Tensor)> + '_ {
        self.tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone()))
    }

    /// The features of images, one below the other, `[n, k * hidden]` in the compute dtype, k being
    /// [`VisionConfig::features_per_token`]. Those of an image that was requested before are read again.
    pub(crate) fn features(&self, images: &[Arc<PromptImage>]) -> Tensor {
        let features: Vec<Tensor> = images.iter().map(|image| self.features_of(image)).collect();
        Tensor::cat(&features, 0)
    }

    /// The same of one image.
    pub(crate) fn features_of(&self, image: &PromptImage) -> Tensor {
        if let Some(features) = self.kept.borrow_mut().get(image.digest) {
            return features;
        }
        let features = no_grad(|| self.compute(image));
        self.kept.borrow_mut().insert(image.digest, &features);
        features
    }

    fn compute(&self, image: &PromptImage) -> Tensor {
        let order = PatchOrder::new(&self.config, image.grid);
        let patches = Tensor::from_slice(&image.patches).view([image.grid.num_patches() as i64, -1]);
        let patches = patches.to_device(self.options.device).to_kind(self.options.compute);
        let units = order.to_device(self.options.device);
        let mut hidden_pd = self.with_positions(units.sort(&self.embed(&patches)), &units);
        let rotary = units.rotary(&self.config);
        let mut added = Vec::new();
        for block_idx in 0..self.config.depth {
            let sees = if self.config.sees_all(block_idx) { &units.frames } else { &units.windows };
            hidden_pd = Block { tower: self, block_idx }.forward(&hidden_pd, &rotary, sees);
            if let Some(idx) = self.config.deepstack_blocks.iter().position(|block| *block == block_idx) {
                added.push(self.merge(&format!("deepstack_merger_list.{idx}"), &hidden_pd));
            }
        }
        added.insert(0, self.merge("merger", &hidden_pd));
        units.restore(&Tensor::cat(&added, 1))
    }

    /// Patches `[p, pixels]` to `[p, d]`.
    fn embed(&self, patches: &Tensor) -> Tensor {
        let weight = self.tensor("patch_embed.proj.weight").flatten(1, -1);
        patches.linear(&weight, self.find("patch_embed.proj.bias"))
    }

    /// Adds the positions of patches, where the tower has a table of them.
    fn with_positions(&self, hidden_pd: Tensor, units: &Units) -> Tensor {
        match self.config.position_side {
            Some(side) => {
                let positions = units.positions(&self.tensor("pos_embed.weight"), side as i64);
                &hidden_pd + positions.to_kind(hidden_pd.kind())
            }
            None => hidden_pd,
        }
    }

    /// Patches of a token side by side through two linear layers: `[p, d]` to `[n, hidden]`. The mergers of
    /// inner blocks normalise the patches of a token together.
    fn merge(&self, merger: &str, hidden_pd: &Tensor) -> Tensor {
        let names = self.config.blocks.names();
        let norm = format!("{merger}.{}", names.merger_norm);
        let width = self.config.merged_width() as i64;
        let merged = match merger {
            "merger" => self.norm(&norm, hidden_pd).view([-1, width]),
            _ => self.norm(&norm, &hidden_pd.view([-1, width])),
        };
        let [first, second] = names.merger_linears.map(|linear| format!("{merger}.{linear}"));
        self.linear(&second, &self.linear(&first, &merged).gelu("none"))
    }

    fn linear(&self, name: &str, x: &Tensor) -> Tensor {
        x.linear(&self.tensor(&format!("{name}.weight")), Some(self.tensor(&format!("{name}.bias"))))
    }

    /// A layer norm where the tower has biases of norms, else an RMS norm.
    fn norm(&self, name: &str, x: &Tensor) -> Tensor {
        const EPS: f64 = 1e-6;
        let weight = self.tensor(&format!("{name}.weight"));
        match self.find(&format!("{name}.bias")) {
            Some(bias) => x.layer_norm(weight.size(), Some(&weight), Some(&bias), EPS, false),
            None => {
                // As transformers rounds: normalised in fp32, then times the weight in the dtype of `x`.
                let wide = if x.kind() == Kind::Double { x.shallow_clone() } else { x.to_kind(Kind::Float) };
                let mean = wide.square().mean_dim([-1i64].as_slice(), true, None);
                weight * (&wide * (mean + EPS).rsqrt()).to_kind(x.kind())
            }
        }
    }

    /// A weight in the compute dtype. The names are those of the configuration, all of which were read.
    fn tensor(&self, name: &str) -> Tensor {
        self.find(name).unwrap_or_else(|| Tensor::empty([0], (self.options.compute, self.options.device)))
    }

    fn find(&self, name: &str) -> Option<Tensor> {
        let found = self.tensors.iter().find(|(full, _)| full.strip_prefix(TOWER) == Some(name));
        found.map(|(_, tensor)| tensor.to_kind(self.options.compute))
    }
}
