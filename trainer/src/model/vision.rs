//! The vision tower of Qwen2-VL and Qwen2.5-VL: from the patches of an image to the features that take the
//! place of its placeholder tokens' embeddings.
//!
//! ```text
//! patches [p, pixels] -> patch embedding -> blocks (rotary by row and column, windows) -> merger [n, hidden]
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

use rlt_api::plan::model_config::{ModelConfig, TOWER, VisionConfig};
use rlt_core::images::PromptImage;
use rlt_core::tensor_shard::TensorShard;
use tch::{Kind, Tensor, no_grad};

use self::block::Block;
use self::kept::KeptFeatures;
use self::order::PatchOrder;
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

    /// The features of images, one below the other, `[n, hidden]` in the compute dtype. Those of an image
    /// that was requested before are read again.
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
        let mut hidden_pd =
            patches.linear(&self.tensor("patch_embed.proj.weight").flatten(1, -1), None::<Tensor>);
        let units = order.to_device(self.options.device);
        hidden_pd = units.sort(&hidden_pd);
        let rotary = units.rotary(&self.config);
        for block_idx in 0..self.config.depth {
            let sees = if self.config.sees_all(block_idx) { &units.frames } else { &units.windows };
            hidden_pd = Block { tower: self, block_idx }.forward(&hidden_pd, &rotary, sees);
        }
        units.restore(&self.merge(&hidden_pd))
    }

    /// Patches of a token side by side through two linear layers: `[p, d]` to `[n, hidden]`.
    fn merge(&self, hidden_pd: &Tensor) -> Tensor {
        let normed_pd = self.norm("merger.ln_q", hidden_pd);
        let merged = normed_pd.view([-1, self.config.merged_width() as i64]);
        self.linear("merger.mlp.2", &self.linear("merger.mlp.0", &merged).gelu("none"))
    }

    fn linear(&self, name: &str, x: &Tensor) -> Tensor {
        x.linear(&self.tensor(&format!("{name}.weight")), Some(self.tensor(&format!("{name}.bias"))))
    }

    /// A layer norm where the tower has biases of norms, else an RMS norm.
    fn norm(&self, name: &str, x: &Tensor) -> Tensor {
        const EPS: f64 = 1e-6;
        let weight = self.tensor(&format!("{name}.weight"));
        match self.find(&format!("{name}.bias")) {
            Some(bias) => {
                x.layer_norm([self.config.hidden_size as i64], Some(weight), Some(bias), EPS, false)
            }
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
