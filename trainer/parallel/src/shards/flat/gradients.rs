//! Gradients of a buffer's parameters, in the master dtype.

use rlt_layout::Axis;
use tch::{Tensor, no_grad};

use super::{FlatParameter, Parameter};

/// Memory of gradients, which exists while an update accumulates them.
#[derive(Debug, Default)]
pub(super) struct Gradients {
    /// Gradient of the unsharded buffer, `[padded_len]`, while a backward pass adds to it.
    pub(super) unsharded: Option<Tensor>,
    /// This rank's shard of the gradient, `[shard_len]`, summed over all passes so far.
    pub(super) shard: Option<Tensor>,
}

impl FlatParameter {
    pub(in crate::shards) fn begin_gradient(&self) {
        let unsharded = match self.has_full_shard() {
            true => self.gradient_shard(),
            false => Tensor::zeros([self.layout.padded_len() as i64], self.dtype()),
        };
        for Parameter { leaf, place, .. } in &self.parameters {
            rlt_torch::set_grad(leaf, Some(&place.in_unsharded(&unsharded)));
        }
        self.gradients.borrow_mut().unsharded = Some(unsharded);
    }

    /// Takes the unsharded gradient, `[padded_len]`, from the leaves; `None` if it is this rank's shard
    /// already.
    pub(in crate::shards) fn take_gradient(&self) -> Option<Tensor> {
        let unsharded = self.gradients.borrow_mut().unsharded.take()?;
        self.parameters.iter().for_each(|parameter| rlt_torch::set_grad(&parameter.leaf, None));
        (!self.has_full_shard()).then_some(unsharded)
    }

    /// Adds `own`, `[shard_len]`, to this rank's gradient.
    pub(in crate::shards) fn add_to_gradient(&self, own: &Tensor) {
        let mut gradients = self.gradients.borrow_mut();
        match &mut gradients.shard {
            Some(shard) => no_grad(|| drop(shard.g_add_(own))),
            None => gradients.shard = Some(own.shallow_clone()),
        }
    }

    /// This rank's gradient, `[shard_len]`; zeros before the first pass.
    pub(in crate::shards) fn gradient_shard(&self) -> Tensor {
        let mut gradients = self.gradients.borrow_mut();
        gradients.shard.get_or_insert_with(|| self.shard().zeros_like()).shallow_clone()
    }

    /// Sets the gradients of the local shards to views of this rank's gradient.
    pub(in crate::shards) fn assign_gradients(&self) {
        let gradient = self.gradient_shard();
        for Parameter { place, local_shard, .. } in &self.parameters {
            rlt_torch::set_grad(local_shard, Some(&place.in_shard(&gradient, &self.own)));
        }
    }

    pub(in crate::shards) fn clear_gradient(&self) {
        *self.gradients.borrow_mut() = Gradients::default();
    }

    /// Returns views of those local gradients, `[len]` each, of which every rank along `axis` has only a
    /// summand.
    pub(in crate::shards) fn partial_gradients(&self, axis: Axis) -> Vec<Tensor> {
        let gradient = self.gradient_shard();
        let partial = self.own_parameters().filter(|parameter| parameter.place.layout.is_partial_along(axis));
        partial.map(|Parameter { place, .. }| place.in_shard(&gradient, &self.own)).collect()
    }
}
