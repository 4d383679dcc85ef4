//! Vision towers that share or copy another tower's weights: for other roles, for the rollout's policy
//! version, and for a pass in another dtype.

use std::cell::OnceCell;
use std::rc::Rc;

use tch::{Kind, Tensor};

use super::tower::VisionTower;
use crate::lora::{magnitudes_name, peft_names};
use crate::parameters::{LoadOptions, NamedTensors};
use crate::projection::{Linear, LoraPair};

impl VisionTower {
    /// The tower of another role: a copy made by `of` if the weights are parameters, else [`Self::base`].
    pub(crate) fn of_role(&self, of: &impl Fn(&Tensor) -> Tensor) -> Self {
        match self.is_own {
            true => Self {
                feature_cache: Rc::default(),
                is_snapshot: false,
                ..self.mapped(&|_: &str, own: &Tensor| of(own))
            },
            false => self.base(),
        }
    }

    /// Sets the compute dtype to `compute` if the weights are parameters. A frozen tower keeps its dtype,
    /// because it computes the same features for all roles.
    pub(crate) fn computing_in(self, compute: Kind) -> Self {
        let compute = if self.is_own { compute } else { self.options.compute };
        Self { options: LoadOptions { compute, ..self.options }, ..self }
    }

    /// A copy of trained weights in the compute dtype, with the graph of the cast, for all images of a pass;
    /// `None` if the weights are frozen.
    pub(super) fn cast(&self) -> Option<Self> {
        let compute = self.options.compute;
        self.is_own.then(|| self.mapped(&|_: &str, own: &Tensor| own.to_kind(compute)))
    }

    /// A tower for another role that shares the frozen weights and the cache of their features, without
    /// adapter.
    pub fn base(&self) -> Self {
        let feature_cache = if self.is_snapshot { Rc::default() } else { Rc::clone(&self.feature_cache) };
        Self { feature_cache, is_snapshot: false, ..self.with(Linear::without_adapter) }
    }

    /// Returns a tower with the current values of trained weights or adapters, for an engine that uses it
    /// until they change. `of` copies each tensor, given its name. The tower has its own cache of features.
    pub fn snapshot(&self, of: impl Fn(&str, &Tensor) -> Tensor) -> Self {
        if self.is_own {
            return Self { feature_cache: Rc::default(), is_snapshot: true, ..self.mapped(&of) };
        }
        if !self.is_adapted() {
            return self.base();
        }
        let adapted = |own: &Linear| {
            let lora = own.lora.as_ref().map(|lora| lora.map(&own.name, &of));
            Linear { lora, ..own.without_adapter() }
        };
        Self { feature_cache: Rc::default(), is_snapshot: true, ..self.with(adapted) }
    }

    fn with(&self, of: impl Fn(&Linear) -> Linear) -> Self {
        let other_tensors =
            self.other_tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone()));
        self.with_tensors(self.projections.iter().map(of).collect(), other_tensors.collect())
    }

    /// Returns a copy without adapters, whose weights `of` makes from names and tensors.
    fn mapped(&self, of: &impl Fn(&str, &Tensor) -> Tensor) -> Self {
        let linear = |own: &Linear| {
            let weight = |weight: &Tensor| of(&format!("{}.weight", own.name), weight);
            Linear {
                name: own.name.clone(),
                weight: own.weight.map(weight, Tensor::shallow_clone),
                bias: own.bias.as_ref().map(|bias| of(&format!("{}.bias", own.name), bias)),
                lora: None,
                shard: OnceCell::new(),
            }
        };
        let other_tensors = self.other_tensors.iter().map(|(name, tensor)| (name.clone(), of(name, tensor)));
        self.with_tensors(self.projections.iter().map(linear).collect(), other_tensors.collect())
    }

    fn with_tensors(&self, projections: Vec<Linear>, other_tensors: NamedTensors) -> Self {
        Self {
            config: self.config.clone(),
            options: self.options,
            projections,
            other_tensors,
            is_own: self.is_own,
            names: self.names.clone(),
            feature_cache: Rc::clone(&self.feature_cache),
            is_snapshot: self.is_snapshot,
        }
    }
}

impl LoraPair {
    /// Returns a copy of the pair of projection `name`, whose matrices `of` makes from PEFT's names and
    /// tensors.
    fn map(&self, name: &str, of: impl Fn(&str, &Tensor) -> Tensor) -> Self {
        let [name_a, name_b] = peft_names(name);
        let magnitudes = self.magnitudes.as_ref();
        Self {
            a: of(&name_a, &self.a),
            b: of(&name_b, &self.b),
            magnitudes: magnitudes.map(|own| of(&magnitudes_name(name), own)),
            ..*self
        }
    }
}
