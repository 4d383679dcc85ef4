//! Full copies of parameters, and of tensors that belong to them, in new memory. The unsharded buffer is not
//! touched.

use rlt_decoder::NamedTensors;
use tch::{Tensor, no_grad};

use super::{FlatParameter, Parameter};
use crate::{ProcessGroups, RankError};

impl FlatParameter {
    /// Gathers a tensor for each parameter, see [`super::super::ShardedParameters::gather`].
    pub(in crate::shards) fn gather(
        &self,
        ranks: &ProcessGroups,
        mut local_shard_of: impl FnMut(&str) -> Option<Tensor>,
    ) -> Result<Vec<(String, Tensor)>, RankError> {
        let shard = Tensor::zeros([self.layout.shard_len() as i64], self.dtype());
        for Parameter { name, place, .. } in &self.parameters {
            if let Some(local_shard) = local_shard_of(name) {
                no_grad(|| place.in_shard(&shard, &self.own).copy_(&local_shard.detach()));
            }
        }
        self.gather_shards(ranks, &shard)
    }

    /// Gathers the parameters into new memory, by name.
    pub(in crate::shards) fn gather_parameters(
        &self,
        ranks: &ProcessGroups,
    ) -> Result<Vec<(String, Tensor)>, RankError> {
        self.gather_shards(ranks, &self.shard.values()?)
    }

    /// Gathers the parameters and verifies them, see [`super::super::ShardedParameters::gather_verified`].
    pub(in crate::shards) fn gather_verified<E: From<RankError>>(
        &self,
        ranks: &ProcessGroups,
        digest: impl Fn(&Tensor) -> Result<u64, E>,
    ) -> Result<(NamedTensors, bool), E> {
        let values = self.shard.values().map_err(RankError::from)?;
        let unsharded = self.gather_unsharded(ranks, &values)?;
        let matches_shards = self.equals_shards(&unsharded, self.own_ranks(ranks), digest)?;
        Ok((self.parameters_in(&unsharded, ranks)?, matches_shards))
    }

    fn gather_shards(&self, ranks: &ProcessGroups, shard: &Tensor) -> Result<NamedTensors, RankError> {
        self.parameters_in(&self.gather_unsharded(ranks, shard)?, ranks)
    }

    fn gather_unsharded(&self, ranks: &ProcessGroups, shard: &Tensor) -> Result<Tensor, RankError> {
        let unsharded = Tensor::empty([self.layout.padded_len() as i64], self.dtype());
        self.own_ranks(ranks).all_gather(&unsharded, shard)?.wait()?;
        Ok(unsharded)
    }

    /// Returns the full parameters of an unsharded buffer, gathered along the axes that split them.
    fn parameters_in(&self, unsharded: &Tensor, ranks: &ProcessGroups) -> Result<NamedTensors, RankError> {
        let one = |Parameter { name, place, .. }: &Parameter| {
            Ok((name.clone(), self.with_others(&place.in_unsharded(unsharded), place, ranks)?))
        };
        self.parameters.iter().map(one).collect()
    }
}
