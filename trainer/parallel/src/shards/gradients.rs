//! Gradients of sharded parameters: accumulated in unsharded buffers, reduce-scattered, and summed over all
//! ranks. The optimizer is elsewhere.

use rlt_layout::{Axis, ParameterLayout};
use rlt_torch::collectives::Pending;
use tch::{Tensor, no_grad};

use super::flat::FlatParameter;
use super::{FsdpUnit, ShardedParameters};
use crate::{AxisGroup, RankError};

/// A reduce-scatter of gradients in flight.
#[derive(Debug)]
pub(super) struct PendingReduceScatter {
    unit: FsdpUnit,
    /// Index of the buffer among the unit's trained ones.
    flat_idx: usize,
    /// This rank's shard of the result, `[n / dp_shard]`.
    own: Tensor,
    pending: Pending,
}

impl ShardedParameters {
    /// Allocates zero gradients of a unit's trained parameters, to which a backward pass adds.
    pub fn begin_gradient(&self, unit: FsdpUnit) {
        self.unit_parameters(unit).trained.iter().for_each(FlatParameter::begin_gradient);
    }

    /// Starts the reduce-scatter of a unit's gradients.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn end_gradient(&self, unit: FsdpUnit) -> Result<(), RankError> {
        for (flat_idx, flat) in self.unit_parameters(unit).trained.iter().enumerate() {
            let Some(gradient) = flat.take_gradient() else { continue };
            self.wait_reduce_scatter()?;
            let own = flat.shard().zeros_like();
            let pending = flat.own_ranks(&self.ranks).reduce_scatter(&own, &gradient)?;
            self.scattering.replace(Some(PendingReduceScatter { unit, flat_idx, own, pending }));
        }
        Ok(())
    }

    /// Waits for all gradients and all-reduces them over the replicas: the local shards' gradients are then
    /// sums over all ranks.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn finish_gradients(&self) -> Result<(), RankError> {
        self.wait_reduce_scatter()?;
        // An expert receives rows from all ranks of its expert-parallel group, so its gradient already is
        // that of the group. It is summed only over the ranks that hold the same experts.
        for ranks in self.ranks.of_all_weights() {
            let flats = self.trained().filter(|flat| std::ptr::eq(flat.own_ranks(&self.ranks), ranks));
            let gradients: Vec<Tensor> = flats.map(FlatParameter::gradient_shard).collect();
            if !gradients.is_empty() {
                ranks.all_reduce_over_replicas(&gradients)?;
            }
        }
        for axis in ParameterLayout::AXES {
            self.ranks.group_along(axis).map_or(Ok(()), |group| self.sum_partial(axis, group))?;
        }
        self.trained().for_each(FlatParameter::assign_gradients);
        Ok(())
    }

    /// All-reduces the gradients of which every rank along `axis` has only a summand, in one call over
    /// `group`. Their offsets are the same on all ranks of the group.
    fn sum_partial(&self, axis: Axis, group: &AxisGroup) -> Result<(), RankError> {
        let gradients: Vec<Tensor> = self.trained().flat_map(|flat| flat.partial_gradients(axis)).collect();
        if gradients.is_empty() {
            return Ok(());
        }
        let all = Tensor::cat(&gradients, 0);
        group.all_reduce(&all)?;
        let mut start = 0;
        for gradient in &gradients {
            let len = gradient.numel() as i64;
            no_grad(|| gradient.shallow_clone().copy_(&all.narrow(0, start, len)));
            start += len;
        }
        Ok(())
    }

    /// Frees the gradients, after the optimizer has dropped those of the local shards.
    pub fn clear_gradients(&self) {
        self.trained().for_each(FlatParameter::clear_gradient);
    }

    /// Waits for the reduce-scatter in flight, and adds its result to the gradient shard.
    fn wait_reduce_scatter(&self) -> Result<(), RankError> {
        if let Some(PendingReduceScatter { unit, flat_idx, own, pending }) = self.scattering.take() {
            pending.wait()?;
            self.unit_parameters(unit).trained[flat_idx].add_to_gradient(&own);
        }
        Ok(())
    }
}
