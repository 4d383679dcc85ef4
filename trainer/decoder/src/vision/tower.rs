//! The weights of a vision tower: read, as meta tensors or trained, with their names on disk.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use rlt_layout::TensorRun;
use rlt_models::{ModelConfig, TensorShape, VisionConfig};
use tch::Tensor;

use super::feature_cache::FeatureCache;
use crate::base_weight::BaseWeight;
use crate::error::ModelError;
use crate::parameters::{LoadOptions, NamedTensors, meta};
use crate::projection::Linear;
use crate::weights::Weights;

/// A vision tower with its weights.
#[derive(Debug)]
pub struct VisionTower {
    pub(super) config: VisionConfig,
    pub(super) options: LoadOptions,
    /// The linear layers of blocks and mergers.
    pub(crate) projections: Vec<Linear>,
    /// All other tensors by their names on disk: patch embedding, positions and norms.
    pub(super) other_tensors: NamedTensors,
    /// Names of all tensors, in the order of the configuration.
    pub(super) names: Vec<String>,
    /// Whether the weights are parameters of the decoder: those of a trained tower, and its copies in other
    /// roles.
    pub(crate) is_own: bool,
    /// Cache of features that do not change; that of frozen weights is shared with the towers of other roles.
    pub(super) feature_cache: Rc<RefCell<FeatureCache>>,
    /// Whether trained values do not change during the lifetime of this tower.
    pub(super) is_snapshot: bool,
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
            weights.fill(&TensorRun::full(&name, &shape), &values.view(-1))?;
            Ok((name, values))
        };
        let tensors = shapes(weights.config()).map(read).collect::<Result<_, ModelError>>()?;
        Ok(Self::of_tensors(weights.config(), options, tensors))
    }

    /// Meta tensors of a tower whose weights are trained, see [`crate::Decoder::meta`]; `None` if the
    /// model has none.
    pub(crate) fn meta(model: &ModelConfig, options: &LoadOptions) -> Option<Self> {
        let numbers = (options.param_dtype, options.device);
        let tensors = shapes(model).map(|(name, shape)| (name, meta(&shape, numbers))).collect();
        Self::of_tensors(model, options, tensors).map(Self::trained)
    }

    fn of_tensors(model: &ModelConfig, options: &LoadOptions, tensors: NamedTensors) -> Option<Self> {
        let config = model.vision.clone()?;
        let names = tensors.iter().map(|(name, _)| name.clone()).collect();
        let linears: BTreeSet<String> = model.vision_linears().map(|linear| linear.name).collect();
        let (projections, other_tensors) = split(tensors, &linears);
        Some(Self {
            config,
            options: LoadOptions { trainable: false, ..*options },
            projections,
            other_tensors,
            names,
            is_own: false,
            feature_cache: Rc::default(),
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
        *self.feature_cache.borrow_mut() = FeatureCache::default();
    }

    /// Whether linear layers have adapters.
    pub fn is_adapted(&self) -> bool {
        self.projections.iter().any(|projection| projection.lora.is_some())
    }

    /// Whether training passes of the tower's decoder train its weights or adapters.
    pub(crate) fn is_trained(&self) -> bool {
        self.is_adapted() || self.trains_weights()
    }

    /// Whether training passes train the weights.
    pub(super) fn trains_weights(&self) -> bool {
        self.other_tensors.iter().any(|(_, tensor)| tensor.requires_grad())
    }

    /// Every tensor of the base, with its name on disk.
    pub(crate) fn parameters(&self) -> NamedTensors {
        self.tensors().map(|(name, tensor, _)| (name, tensor)).collect()
    }

    /// Every tensor of the base, to be replaced.
    pub(crate) fn tensors_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        let linears = self.projections.iter_mut();
        let linears = linears.flat_map(|own| own.weight.tensors_mut().into_iter().chain(&mut own.bias));
        linears.chain(self.other_tensors.iter_mut().map(|(_, tensor)| tensor))
    }

    /// Every tensor of the base with its name on disk, and for a linear layer's weight that layer.
    pub(crate) fn tensors(&self) -> impl Iterator<Item = (String, Tensor, Option<&Linear>)> + '_ {
        self.names.iter().filter_map(|name| {
            if let Some((_, tensor)) = self.other_tensors.iter().find(|(own, _)| own == name) {
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
}

/// Names and shapes of all tensors of a model's tower.
fn shapes(model: &ModelConfig) -> impl Iterator<Item = (String, Vec<i64>)> {
    let shape = |tensor: TensorShape| (tensor.name, tensor.shape.into_iter().map(|dim| dim as i64).collect());
    model.vision_tensors().into_iter().map(shape)
}

/// Splits tensors into linear layers, those whose names are in `linears`, and all others.
fn split(tensors: NamedTensors, linears: &BTreeSet<String>) -> (Vec<Linear>, NamedTensors) {
    let (mut projections, mut other_tensors) = (Vec::<Linear>::new(), NamedTensors::new());
    for (name, tensor) in tensors {
        match name.rsplit_once('.') {
            Some((module, "weight")) if linears.contains(module) => {
                let weight = BaseWeight::Dense(tensor);
                let (name, shard) = (module.to_owned(), OnceCell::new());
                projections.push(Linear { name, weight, bias: None, lora: None, shard });
            }
            Some((module, "bias")) if linears.contains(module) => {
                // A bias follows its weight.
                projections.last_mut().iter_mut().for_each(|last| last.bias = Some(tensor.shallow_clone()));
            }
            _ => other_tensors.push((name, tensor)),
        }
    }
    (projections, other_tensors)
}
