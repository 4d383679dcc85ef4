//! Gradients of sharded parameters: accumulated in unsharded buffers, reduce-scattered, and summed over all
//! ranks. The optimizer is elsewhere.

use rlt_torch::collectives::Pending;
use tch::{Tensor, no_grad};

use super::flat::FlatParameter;
use super::{FsdpUnit, ShardedParameters, TensorParallel};
use crate::parallel::RankError;

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
        self.held(unit).trained.iter().for_each(FlatParameter::begin_gradient);
    }

    /// Starts the reduce-scatter of a unit's gradients.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn end_gradient(&self, unit: FsdpUnit) -> Result<(), RankError> {
        for (flat_idx, flat) in self.held(unit).trained.iter().enumerate() {
            let Some(gradient) = flat.take_gradient() else { continue };
            self.wait_reduce_scatter()?;
            let own = flat.shard().zeros_like();
            let pending = flat.own_ranks(&self.ranks).reduce_scatter(&own, &gradient)?;
            self.scattering.replace(Some(PendingReduceScatter { unit, flat_idx, own, pending }));
        }
        Ok(())
    }

    /// Waits for all gradients and all-reduces them over the replicas: the pieces' gradients are then sums
    /// over all ranks.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn finish_gradients(&self) -> Result<(), RankError> {
        self.wait_reduce_scatter()?;
        // An expert receives rows from all ranks, so its gradient is that of the whole group.
        let (of_experts, others): (Vec<&FlatParameter>, Vec<&FlatParameter>) =
            self.trained().partition(|flat| flat.is_of_experts());
        for flats in [others, of_experts] {
            let Some(first) = flats.first() else { continue };
            let gradients: Vec<Tensor> = flats.iter().map(|flat| flat.gradient_shard()).collect();
            first.own_ranks(&self.ranks).all_reduce_over_replicas(&gradients)?;
        }
        self.sum_over_tensor_parallel()?;
        self.trained().for_each(FlatParameter::assign_gradients);
        Ok(())
    }

    /// All-reduces, in one call, the gradients of full parameters for which each rank of the tensor-parallel
    /// group has a summand. They have the same places on all of its ranks.
    fn sum_over_tensor_parallel(&self) -> Result<(), RankError> {
        let Some(TensorParallel { group, cuts }) = self.tensor_parallel() else { return Ok(()) };
        let whole = self.trained().filter(|flat| !flat.is_cut());
        let gradients: Vec<Tensor> =
            whole.flat_map(|flat| flat.gradients_of(|name| cuts.is_summed(name))).collect();
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

    /// Frees the gradients, after the optimizer has dropped those of the pieces.
    pub fn clear_gradients(&self) {
        self.trained().for_each(FlatParameter::clear_gradient);
    }

    /// Waits for the reduce-scatter in flight, and adds its result to the gradient shard.
    fn wait_reduce_scatter(&self) -> Result<(), RankError> {
        if let Some(PendingReduceScatter { unit, flat_idx, own, pending }) = self.scattering.take() {
            pending.wait()?;
            self.held(unit).trained[flat_idx].add_to_gradient(&own);
        }
        Ok(())
    }
}
