//! The vision tower of Qwen2-VL, Qwen2.5-VL and Qwen3-VL. From the patches of an image it computes the
//! features that replace the embeddings of its placeholder tokens, and in Qwen3-VL those that are added after
//! the first layers of the text model (DeepStack).
//!
//! ```text
//! patches [p, pixels] -> patch embedding -> blocks (rotary by row and column, windows) -> merger [n, hidden]
//!                           + positions        `-> mergers of some blocks [n, hidden] each
//! ```
//! By default the weights are frozen, every rank has all of them, and all roles share them; linear layers may
//! then have adapters, which are trained. Otherwise the weights are parameters of their decoder, trained and
//! sharded like all others. Features of a frozen tower are cached by the image's digest for the whole run;
//! those of a trained one only by a [`VisionTower::snapshot`]. Pixel files and positions of tokens are
//! handled elsewhere.
//!
//! Shapes: p patches of an image, n = p / merge^2 tokens, d the tower's width.

mod attention;
mod block;
mod copies;
mod forward;
mod kept;
mod order;
mod pass;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use rlt_api::plan::model_config::{ModelConfig, TOWER, TensorShape, VisionBlocks, VisionConfig};
use rlt_core::images::PromptImage;
use rlt_core::tensor_shard::TensorShard;
use tch::{Tensor, no_grad};

use self::forward::Forward;
use self::kept::FeatureCache;
pub(crate) use self::pass::TowerPass;
use super::base_weight::BaseWeight;
use super::decoder::{LoadOptions, NamedTensors};
use super::error::ModelError;
use super::load::meta;
use super::projection::{Adapter, Linear};
use super::weights::Weights;

/// The name of a tensor in published models: the tower under `visual.`, the text model under `model.`. Since
/// 4.52 transformers calls them `model.visual.` and `model.language_model.` in memory.
pub(crate) fn published_name(name: &str) -> String {
    let renamed = |from: &str, to: &str| name.strip_prefix(from).map(|rest| format!("{to}{rest}"));
    let tower = renamed("model.visual.", TOWER);
    tower.or_else(|| renamed("model.language_model.", "model.")).unwrap_or_else(|| name.to_owned())
}

/// Returns the name of a tensor in the text model, from its name in published files or in those that
/// transformers 5 writes; `None` for tensors of the vision tower and of the projection of its features.
pub(crate) fn text_model_name(name: &str) -> Option<String> {
    const TOWER_PARTS: [&str; 2] = ["vision_tower.", "multi_modal_projector."];
    let within = name.strip_prefix("model.").unwrap_or(name);
    if TOWER_PARTS.iter().any(|part| within.starts_with(part)) {
        return None;
    }
    if let Some(rest) = name.strip_prefix("model.language_model.") {
        return Some(format!("model.{rest}"));
    }
    Some(name.strip_prefix("language_model.").unwrap_or(name).to_owned())
}

/// The name under which a tensor is exported: as models of the family were published, which for Qwen3-VL are
/// the names in transformers' memory.
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

/// A vision tower with its weights.
#[derive(Debug)]
pub(crate) struct VisionTower {
    config: VisionConfig,
    options: LoadOptions,
    /// The linear layers of blocks and mergers.
    pub(super) projections: Vec<Linear>,
    /// All other tensors by their names on disk: patch embedding, positions and norms.
    others: NamedTensors,
    /// Names of all tensors, in the order of the configuration.
    names: Vec<String>,
    /// Whether the weights are parameters of the decoder: those of a trained tower, and its copies in other
    /// roles.
    pub(super) is_own: bool,
    /// Cache of features that do not change; that of frozen weights is shared with the towers of other roles.
    kept: Rc<RefCell<FeatureCache>>,
    /// Whether trained values do not change during the lifetime of this tower.
    is_snapshot: bool,
}

impl VisionTower {
    /// Reads the tower of a model, in the storage dtype; `None` if the model has none.
    ///
    /// # Errors
    /// [`ModelError`], as of [`Weights::fill`], and if the device has too little memory.
    pub(crate) fn read(weights: &Weights, options: &LoadOptions) -> Result<Option<Self>, ModelError> {
        let read = |(name, shape): (String, Vec<i64>)| {
            let values =
                Tensor::f_empty(&shape, (options.param_dtype, options.device)).map_err(|source| {
                    ModelError::Torch {
                        tensor: name.clone(),
                        device: format!("{:?}", options.device),
                        source,
                    }
                })?;
            weights.fill(&TensorShard::whole(&name, &shape), &values.view(-1))?;
            Ok((name, values))
        };
        let tensors = shapes(weights.config()).map(read).collect::<Result<_, ModelError>>()?;
        Ok(Self::of_tensors(weights.config(), options, tensors))
    }

    /// Meta tensors of a tower whose weights are trained, see [`super::Decoder::meta`]; `None` if the model
    /// has none.
    pub(crate) fn meta(model: &ModelConfig, options: &LoadOptions) -> Option<Self> {
        let numbers = (options.param_dtype, options.device);
        let tensors = shapes(model).map(|(name, shape)| (name, meta(&shape, numbers))).collect();
        Self::of_tensors(model, options, tensors).map(Self::trained)
    }

    fn of_tensors(model: &ModelConfig, options: &LoadOptions, tensors: NamedTensors) -> Option<Self> {
        let config = model.vision.clone()?;
        let names = tensors.iter().map(|(name, _)| name.clone()).collect();
        let linears: BTreeSet<String> = model.vision_linears().map(|linear| linear.name).collect();
        let (projections, others) = split(tensors, &linears);
        Some(Self {
            config,
            options: LoadOptions { trainable: false, ..*options },
            projections,
            others,
            names,
            is_own: false,
            kept: Rc::default(),
            is_snapshot: false,
        })
    }

    /// Makes the weights trainable parameters of the decoder.
    pub(crate) fn trained(self) -> Self {
        for (_, mut tensor) in self.parameters() {
            let _ = tensor.requires_grad_(true);
        }
        Self { is_own: true, ..self }
    }

    /// Clears the cache of features, after weights have changed.
    pub(crate) fn forget(&self) {
        *self.kept.borrow_mut() = FeatureCache::default();
    }

    /// Whether linear layers have adapters.
    pub(crate) fn is_adapted(&self) -> bool {
        self.projections.iter().any(|projection| projection.lora.is_some())
    }

    /// Whether training passes of the tower's decoder train its weights or adapters.
    pub(crate) fn is_trained(&self) -> bool {
        self.is_adapted() || self.trains_weights()
    }

    fn trains_weights(&self) -> bool {
        self.others.iter().any(|(_, tensor)| tensor.requires_grad())
    }

    /// Every tensor of the base, with its name on disk.
    pub(super) fn parameters(&self) -> NamedTensors {
        self.tensors().map(|(name, tensor, _)| (name, tensor)).collect()
    }

    /// Every tensor of the base, to be replaced.
    pub(super) fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        let linears = self.projections.iter_mut();
        let linears = linears.flat_map(|own| own.weight.tensors_mut().into_iter().chain(&mut own.bias));
        linears.chain(self.others.iter_mut().map(|(_, tensor)| tensor))
    }

    /// Every tensor of the base with its name on disk, and for a linear layer's weight that layer.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (String, Tensor, Option<&Linear>)> + '_ {
        self.names.iter().filter_map(|name| {
            if let Some((_, tensor)) = self.others.iter().find(|(own, _)| own == name) {
                return Some((name.clone(), tensor.shallow_clone(), None));
            }
            let (module, part) = name.rsplit_once('.')?;
            let projection = self.projections.iter().find(|projection| projection.name == module)?;
            match part {
                "weight" => {
                    Some((name.clone(), projection.weight.as_dense()?.shallow_clone(), Some(projection)))
                }
                _ => Some((name.clone(), projection.bias.as_ref()?.shallow_clone(), None)),
            }
        })
    }

    /// The features of images, concatenated, `[n, k * hidden]` in the compute dtype, where k is
    /// [`VisionConfig::features_per_token`]. Features that do not change are computed once.
    pub(crate) fn features(&self, images: &[Arc<PromptImage>], adapter: Adapter) -> Tensor {
        let features: Vec<Tensor> = images.iter().map(|image| self.features_of(image, adapter)).collect();
        Tensor::cat(&features, 0)
    }

    /// The features of one image, `[n, k * hidden]`, from the cache if they do not change.
    pub(crate) fn features_of(&self, image: &PromptImage, adapter: Adapter) -> Tensor {
        let forward = Forward { tower: self, adapter, dropout: None };
        let compute = || no_grad(|| forward.compute(image));
        if !self.keeps(adapter) {
            return compute();
        }
        if let Some(features) = self.kept.borrow_mut().get(image.digest) {
            return features;
        }
        let features = compute();
        self.kept.borrow_mut().insert(image.digest, &features);
        features
    }

    /// Whether features may be cached: those that do not change during the lifetime of this tower.
    fn keeps(&self, adapter: Adapter) -> bool {
        let with_adapter = adapter == Adapter::On && self.is_adapted();
        match self.is_snapshot {
            true => with_adapter == self.is_adapted(),
            false => !with_adapter && !self.trains_weights(),
        }
    }
}

/// Names and shapes of all tensors of a model's tower.
fn shapes(model: &ModelConfig) -> impl Iterator<Item = (String, Vec<i64>)> {
    let shape = |tensor: TensorShape| (tensor.name, tensor.shape.into_iter().map(|dim| dim as i64).collect());
    model.vision_tensors().into_iter().map(shape)
}

/// Splits tensors into linear layers, those whose names are in `linears`, and all others.
fn split(tensors: NamedTensors, linears: &BTreeSet<String>) -> (Vec<Linear>, NamedTensors) {
    let (mut projections, mut others) = (Vec::<Linear>::new(), NamedTensors::new());
    for (name, tensor) in tensors {
        match name.rsplit_once('.') {
            Some((module, "weight")) if linears.contains(module) => {
                let weight = BaseWeight::Dense(tensor);
                projections.push(Linear { name: module.to_owned(), weight, bias: None, lora: None });
            }
            Some((module, "bias")) if linears.contains(module) => {
                // A bias follows its weight.
                projections.last_mut().iter_mut().for_each(|last| last.bias = Some(tensor.shallow_clone()));
            }
            _ => others.push((name, tensor)),
        }
    }
    (projections, others)
}
