//! The unsharded buffer while parameters can be read: gathered from the shards or fetched from offload
//! storage, optionally with the values of other ranks along the axes that split weights.

use rlt_layout::{DimRanges, DimShards};
use tch::{Tensor, no_grad};

use super::super::flat_slot::FlatSlot;
use super::super::unsharded_buffer::{PendingAllGather, UnshardState, UnshardedBuffer, WeightDtype};
use super::{FlatParameter, Parameter};
use crate::{AxisGroup, ProcessGroups, RankError};

impl FlatParameter {
    /// Rebinds the leaves of an unsharded unit to full weights until it is resharded. Collective.
    pub(in crate::shards) fn gather_full_tensors(&self, ranks: &ProcessGroups) -> Result<(), RankError> {
        if self.has_others.get() || self.axes.is_empty() {
            return Ok(());
        }
        for Parameter { leaf, place, .. } in &self.parameters {
            let all = self.with_others(leaf, place, ranks)?;
            no_grad(|| leaf.shallow_clone().set_data(&all));
        }
        self.has_others.set(true);
        Ok(())
    }

    /// Gathers a full parameter from the ranks' local values, one axis after the other.
    pub(super) fn with_others(
        &self,
        own: &Tensor,
        place: &FlatSlot,
        ranks: &ProcessGroups,
    ) -> Result<Tensor, RankError> {
        let mut joined = own.shallow_clone();
        for (axis, shards) in place.layout.shards() {
            if let Some(group) = ranks.group_along(axis) {
                joined = gather_dim(&joined, shards, group)?;
            }
        }
        Ok(joined)
    }

    /// Rebinds the leaves to views of this rank's buffer.
    fn drop_others(&self, unsharded: &UnshardedBuffer) {
        if self.has_others.take() {
            for (parameter, view) in self.parameters.iter().zip(&unsharded.views) {
                no_grad(|| parameter.leaf.shallow_clone().set_data(view));
            }
        }
    }

    /// Starts to gather the buffer, unless it is already unsharded, or being gathered, in `wanted` or in the
    /// master dtype.
    pub(in crate::shards) fn prefetch(
        &self,
        ranks: &ProcessGroups,
        wanted: WeightDtype,
    ) -> Result<(), RankError> {
        let wanted = if self.compute.is_some() { wanted } else { WeightDtype::Master };
        let present = self.state.borrow().dtype();
        if present >= Some(wanted) {
            return Ok(());
        }
        self.reshard()?;
        let ranks = self.own_ranks(ranks);
        let unsharded = self.unsharded_buffer(wanted);
        unsharded.buffer.take()?;
        if self.compute.is_some() {
            for (parameter, view) in self.parameters.iter().zip(&unsharded.views) {
                no_grad(|| parameter.leaf.shallow_clone().set_data(view));
            }
        }
        let fill = self.start_gather(ranks, unsharded.buffer.tensor())?;
        self.state.replace(UnshardState::Prefetch(wanted, fill));
        Ok(())
    }

    fn start_gather(&self, ranks: &ProcessGroups, unsharded: &Tensor) -> Result<PendingAllGather, RankError> {
        if let Some(offloaded) = self.shard.offloaded().filter(|_| self.has_full_shard()) {
            let is_as_stored = unsharded.kind() == self.shard().kind();
            let coming =
                if is_as_stored { offloaded.prefetch(unsharded)? } else { offloaded.prefetch_new()? };
            return Ok(PendingAllGather::Fetched(coming));
        }
        let values = self.shard.values()?;
        let sent = no_grad(|| values.detach().to_kind(unsharded.kind()));
        Ok(PendingAllGather::Gathered(ranks.all_gather(unsharded, &sent)?))
    }

    pub(in crate::shards) fn unshard(&self) -> Result<(), RankError> {
        let Some(dtype) = self.state.borrow().dtype() else { return Ok(()) };
        match self.state.replace(UnshardState::Unsharded(dtype)) {
            UnshardState::Prefetch(_, fill) => fill.complete(self.unsharded_buffer(dtype).buffer.tensor()),
            UnshardState::Resharded | UnshardState::Unsharded(_) => Ok(()),
        }
    }

    pub(in crate::shards) fn reshard(&self) -> Result<(), RankError> {
        let dtype = match self.state.replace(UnshardState::Resharded) {
            UnshardState::Resharded => return Ok(()),
            UnshardState::Prefetch(dtype, fill) => {
                fill.give_up()?;
                dtype
            }
            UnshardState::Unsharded(dtype) => dtype,
        };
        self.drop_others(self.unsharded_buffer(dtype));
        Ok(self.unsharded_buffer(dtype).buffer.release()?)
    }
}

/// All-gathers the shards of one dimension, and returns the tensor with the full dimension. `own` is this
/// rank's shard.
fn gather_dim(own: &Tensor, shards: &DimShards, group: &AxisGroup) -> Result<Tensor, RankError> {
    let full_len = shards.of_ranks.first().map_or(0, |ranges| ranges.len);
    let full_size = with_dim(own, shards, full_len);
    if shards.are_consecutive_rows() {
        return Ok(group.all_gather(own)?.view(full_size.as_slice()));
    }
    let sizes: Vec<Vec<i64>> =
        shards.of_ranks.iter().map(|ranges| with_dim(own, shards, ranges.count())).collect();
    let lens = sizes.iter().map(|size| size.iter().product::<i64>());
    // An all-gather needs the same number of values from every rank.
    let padding = lens.clone().max().unwrap_or(0) - own.numel() as i64;
    let sent = own.detach().contiguous().view(-1).constant_pad_nd([0, padding]);
    let received = group.all_gather(&sent)?;
    let all = Tensor::empty(full_size, (own.kind(), own.device()));
    for (rank, ((ranges, size), len)) in shards.of_ranks.iter().zip(&sizes).zip(lens).enumerate() {
        let part = received.get(rank as i64).narrow(0, 0, len).view(size.as_slice());
        no_grad(|| copy_to_ranges(&all, &part, shards.dim as i64, ranges));
    }
    Ok(all)
}

/// Returns the size of `own` with the sharded dimension set to `len`.
fn with_dim(own: &Tensor, shards: &DimShards, len: usize) -> Vec<i64> {
    let mut size = own.size();
    size.iter_mut().skip(shards.dim).take(1).for_each(|dim| *dim = len as i64);
    size
}

/// Copies `part` to the given indices of `all` along dimension `dim`.
fn copy_to_ranges(all: &Tensor, part: &Tensor, dim: i64, indices: &DimRanges) {
    let mut start = 0;
    for range in &indices.ranges {
        let len = range.len() as i64;
        all.narrow(dim, range.start as i64, len).copy_(&part.narrow(dim, start, len));
        start += len;
    }
}
