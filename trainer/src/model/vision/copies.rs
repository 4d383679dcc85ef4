//! Towers with another tower's weights: those of other roles, of the rollout's policy version, and of a pass
//! in another dtype.

use std::rc::Rc;

use tch::{Kind, Tensor};

use super::VisionTower;
use crate::model::decoder::{LoadOptions, NamedTensors};
use crate::model::lora::{dora, peft_names};
use crate::model::projection::{LoraPair, Projection};

impl VisionTower {
    /// The tower of another role: where its weights are parameters each as `of` makes it, else
    /// [`Self::base`].
    pub(in crate::model) fn of_role(&self, of: &impl Fn(&Tensor) -> Tensor) -> Self {
        match self.is_own {
            true => Self {
                kept: Rc::default(),
                is_snapshot: false,
                ..self.mapped(&|_: &str, own: &Tensor| of(own))
            },
            false => self.base(),
        }
    }

    /// The same that computes in `compute`, where its weights are parameters. A frozen tower computes the
    /// same features for all roles.
    pub(in crate::model) fn computing_in(self, compute: Kind) -> Self {
        let compute = if self.is_own { compute } else { self.options.compute };
        Self { options: LoadOptions { compute, ..self.options }, ..self }
    }

    /// Trained weights in the compute dtype, with the graph of their cast, for all images of a pass; `None`
    /// where linear layers have nothing to cast but an adapter.
    pub(super) fn cast(&self) -> Option<Self> {
        let compute = self.options.compute;
        self.is_own.then(|| self.mapped(&|_: &str, own: &Tensor| own.to_kind(compute)))
    }

    /// The frozen weights without an adapter, for another role: the very tensors, with the features that
    /// either role keeps.
    pub(crate) fn base(&self) -> Self {
        let kept = if self.is_snapshot { Rc::default() } else { Rc::clone(&self.kept) };
        Self { kept, is_snapshot: false, ..self.with(Projection::without_adapter) }
    }

    /// The tower with the present numbers of what is trained, each as `of` makes it of its name and tensor,
    /// for an engine that reads them until they change. It keeps features of its own.
    pub(crate) fn snapshot(&self, of: impl Fn(&str, &Tensor) -> Tensor) -> Self {
        if self.is_own {
            return Self { kept: Rc::default(), is_snapshot: true, ..self.mapped(&of) };
        }
        if !self.is_adapted() {
            return self.base();
        }
        let adapted = |own: &Projection| {
            let lora = own.lora.as_ref().map(|lora| lora.map(&own.name, &of));
            Projection { lora, ..own.without_adapter() }
        };
        Self { kept: Rc::default(), is_snapshot: true, ..self.with(adapted) }
    }

    fn with(&self, of: impl Fn(&Projection) -> Projection) -> Self {
        let others = self.others.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone()));
        self.with_tensors(self.projections.iter().map(of).collect(), others.collect())
    }

    /// The same of tensors as `of` makes them of their names, without an adapter.
    fn mapped(&self, of: &impl Fn(&str, &Tensor) -> Tensor) -> Self {
        let linear = |own: &Projection| {
            let weight = |weight: &Tensor| of(&format!("{}.weight", own.name), weight);
            Projection {
                name: own.name.clone(),
                weight: own.weight.map(weight, Tensor::shallow_clone),
                bias: own.bias.as_ref().map(|bias| of(&format!("{}.bias", own.name), bias)),
                lora: None,
            }
        };
        let others = self.others.iter().map(|(name, tensor)| (name.clone(), of(name, tensor)));
        self.with_tensors(self.projections.iter().map(linear).collect(), others.collect())
    }

    fn with_tensors(&self, projections: Vec<Projection>, others: NamedTensors) -> Self {
        Self {
            config: self.config.clone(),
            options: self.options,
            projections,
            others,
            is_own: self.is_own,
            names: self.names.clone(),
            kept: Rc::clone(&self.kept),
            is_snapshot: self.is_snapshot,
        }
    }
}

impl LoraPair {
    /// The same pair of the projection `name`, whose tensors are as `of` makes them of PEFT's names.
    fn map(&self, name: &str, of: impl Fn(&str, &Tensor) -> Tensor) -> Self {
        let [name_a, name_b] = peft_names(name);
        let magnitudes = self.magnitudes.as_ref();
        Self {
            a: of(&name_a, &self.a),
            b: of(&name_b, &self.b),
            magnitudes: magnitudes.map(|own| of(&dora::peft_name(name), own)),
            ..*self
        }
    }
}
