//! Verification of gathered values against digests of the ranks' shards.

use std::ops::Range;

use rlt_decoder::of_ranges;
use rlt_layout::DimShards;
use tch::{Kind, Tensor, no_grad};

use super::super::unsharded_buffer::WeightDtype;
use super::{FlatParameter, Parameter};
use crate::{ProcessGroups, RankError};

impl FlatParameter {
    /// Whether the unsharded buffer equals the shards, see
    /// [`super::super::ShardedParameters::matches_shards`].
    pub(in crate::shards) fn matches_shards<E: From<RankError>>(
        &self,
        ranks: &ProcessGroups,
        digest: impl Fn(&Tensor) -> Result<u64, E>,
    ) -> Result<bool, E> {
        let dtype = self.state.borrow().dtype().unwrap_or(WeightDtype::Master);
        let unsharded = self.unsharded_buffer(dtype);
        let matches_shards = self.equals_shards(unsharded.buffer.tensor(), self.own_ranks(ranks), &digest)?;
        if !self.has_others.get() {
            return Ok(matches_shards);
        }
        let mut others_match = true;
        for (Parameter { leaf, place, .. }, own) in self.parameters.iter().zip(&unsharded.views) {
            let mut expected =
                Tensor::from_slice(&[digest(&own.detach().contiguous().view(-1))?.cast_signed()]);
            for (axis, _) in place.layout.shards() {
                if let Some(group) = ranks.group_along(axis) {
                    expected = group.all_gather(&expected)?.view(-1);
                }
            }
            // The digests along the last axis are outermost.
            let mut parts = vec![leaf.detach()];
            for (_, shards) in place.layout.shards().rev() {
                parts = parts.iter().flat_map(|all| shards_of(all, shards)).collect();
            }
            for (part, expected) in parts.iter().zip(rlt_torch::to_vec::<i64>(&expected)) {
                let got = digest(&part.contiguous().view(-1))?.cast_signed();
                others_match &= got == expected;
            }
        }
        Ok(matches_shards && others_match)
    }

    /// Whether `unsharded` equals the ranks' shards, compared by the `digest` of each shard.
    pub(super) fn equals_shards<E: From<RankError>>(
        &self,
        unsharded: &Tensor,
        ranks: &ProcessGroups,
        digest: impl Fn(&Tensor) -> Result<u64, E>,
    ) -> Result<bool, E> {
        let held = self.shard.in_place().map_err(RankError::from)?;
        let sent = no_grad(|| held.detach().to_kind(unsharded.kind()));
        let device = self.shard().device();
        let own = Tensor::from_slice(&[digest(&sent)?.cast_signed()]).to_device(device);
        let all = Tensor::zeros([ranks.dp_shard() as i64], (Kind::Int64, device));
        ranks.all_gather(&all, &own)?.wait().map_err(RankError::from)?;
        for (shard, expected) in rlt_torch::to_vec::<i64>(&all).into_iter().enumerate() {
            let Range { start, end } = self.layout.range(shard);
            let gathered = digest(&unsharded.narrow(0, start as i64, (end - start) as i64))?;
            if gathered.cast_signed() != expected {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns the shard of `all` that each rank holds, in the order of ranks.
fn shards_of(all: &Tensor, shards: &DimShards) -> Vec<Tensor> {
    shards.of_ranks.iter().map(|own| of_ranges(all, &own.ranges, shards.dim as i64)).collect()
}
