//! Verification of gathered values: whether they equal the ranks' shards, by digests of these.

use std::ops::Range;

use tch::{Kind, Tensor, no_grad};

use super::super::place::FlatSlot;
use super::super::whole::WeightDtype;
use super::{FlatParameter, Parameter};
use crate::model::of_ranges;
use crate::parallel::{ProcessGroups, RankError};

impl FlatParameter {
    /// Whether the unsharded buffer equals the shards, see
    /// [`super::super::ShardedParameters::matches_shards`].
    pub(in crate::parallel::shards) fn matches_shards<E: From<RankError>>(
        &self,
        ranks: &ProcessGroups,
        digest: impl Fn(&Tensor) -> Result<u64, E>,
    ) -> Result<bool, E> {
        let dtype = self.state.borrow().dtype().unwrap_or(WeightDtype::Master);
        let whole = self.whole(dtype);
        let matches_shards = self.equals_shards(whole.buffer.tensor(), self.own_ranks(ranks), &digest)?;
        if !self.has_others.get() {
            return Ok(matches_shards);
        }
        let mut others_match = true;
        for (Parameter { leaf, place, .. }, own) in self.parameters.iter().zip(&whole.views) {
            let mut expected =
                Tensor::from_slice(&[digest(&own.detach().contiguous().view(-1))?.cast_signed()]);
            if let Some(group) = self.tp_group(ranks) {
                expected = group.all_gather(&expected)?.view(-1);
            }
            let mut of_experts = vec![leaf.detach()];
            if let Some(group) = self.ep_group(ranks) {
                expected = group.all_gather(&expected)?.view(-1);
                of_experts = leaf.detach().chunk(group.place().size as i64, 0);
            }
            let parts = of_experts.iter().flat_map(|all| shards_of(all, place));
            for (part, expected) in parts.zip(rlt_torch::to_vec::<i64>(&expected)) {
                let got = digest(&part.contiguous().view(-1))?.cast_signed();
                others_match &= got == expected;
            }
        }
        Ok(matches_shards && others_match)
    }

    /// Whether `whole` equals the ranks' shards, by the `digest` of each.
    pub(super) fn equals_shards<E: From<RankError>>(
        &self,
        whole: &Tensor,
        ranks: &ProcessGroups,
        digest: impl Fn(&Tensor) -> Result<u64, E>,
    ) -> Result<bool, E> {
        let held = self.shard.in_place().map_err(RankError::from)?;
        let sent = no_grad(|| held.detach().to_kind(whole.kind()));
        let device = self.shard().device();
        let own = Tensor::from_slice(&[digest(&sent)?.cast_signed()]).to_device(device);
        let all = Tensor::zeros([ranks.dp_shard() as i64], (Kind::Int64, device));
        ranks.all_gather(&all, &own)?.wait().map_err(RankError::from)?;
        for (shard, expected) in rlt_torch::to_vec::<i64>(&all).into_iter().enumerate() {
            let Range { start, end } = self.layout.range(shard);
            let gathered = digest(&whole.narrow(0, start as i64, (end - start) as i64))?;
            if gathered.cast_signed() != expected {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The tensor-parallel shards of `all`, which has the local experts of one rank, in the order of ranks.
fn shards_of(all: &Tensor, place: &FlatSlot) -> Vec<Tensor> {
    let Some(tp) = &place.tp else { return vec![all.shallow_clone()] };
    tp.of_ranks.iter().map(|own| of_ranges(all, &own.ranges, tp.dim as i64)).collect()
}
