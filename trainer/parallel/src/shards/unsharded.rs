//! Unsharding of units: prefetch, unshard, verification against the shards, and reshard. The schedule decides
//! when.

use tch::Tensor;

use super::flat::FlatParameter;
use super::{FsdpUnit, ShardedParameters, WeightDtype};
use crate::RankError;

impl ShardedParameters {
    /// Calls `read` for every unit in the order of [`Self::units`], while it is unsharded in `dtype` with all
    /// experts and full weights; the next one is prefetched meanwhile. Collective.
    ///
    /// # Errors
    /// The error of `read`, or [`RankError`] when a rank is lost or memory is short.
    pub fn visit<E: From<RankError>>(
        &self,
        dtype: WeightDtype,
        mut read: impl FnMut(FsdpUnit) -> Result<(), E>,
    ) -> Result<(), E> {
        let units: Vec<FsdpUnit> = self.units().collect();
        for (idx, unit) in units.iter().enumerate() {
            self.unshard_as(*unit, dtype)?;
            self.gather_full_tensors(*unit)?;
            units.get(idx + 1).map_or(Ok(()), |next| self.prefetch_as(*next, dtype))?;
            read(*unit)?;
            self.reshard(*unit)?;
        }
        Ok(())
    }

    /// Whether an unsharded unit equals the shards of the replica's ranks, by the `digest` of each shard.
    /// Collective.
    ///
    /// # Errors
    /// The error of `digest`, or [`RankError`] when a rank is lost.
    pub fn matches_shards<E: From<RankError>>(
        &self,
        unit: FsdpUnit,
        digest: impl Fn(&Tensor) -> Result<u64, E>,
    ) -> Result<bool, E> {
        let mut matches_shards = true;
        for flat in self.unit_parameters(unit).flats() {
            matches_shards &= flat.matches_shards(&self.ranks, &digest)?;
        }
        Ok(matches_shards)
    }

    /// Starts the all-gather of a sharded unit.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost or memory is short.
    pub fn prefetch(&self, unit: FsdpUnit) -> Result<(), RankError> {
        self.prefetch_as(unit, WeightDtype::Compute)
    }

    /// Waits until a unit is unsharded in the compute dtype.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost or memory is short.
    pub fn unshard(&self, unit: FsdpUnit) -> Result<(), RankError> {
        self.unshard_as(unit, WeightDtype::Compute)
    }

    /// Waits until a unit is unsharded in the master dtype of the shards, with all experts and full weights.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost or memory is short.
    pub fn unshard_master(&self, unit: FsdpUnit) -> Result<(), RankError> {
        self.unshard_as(unit, WeightDtype::Master)?;
        self.gather_full_tensors(unit)
    }

    fn gather_full_tensors(&self, unit: FsdpUnit) -> Result<(), RankError> {
        self.unit_parameters(unit).flats().try_for_each(|flat| flat.gather_full_tensors(&self.ranks))
    }

    fn prefetch_as(&self, unit: FsdpUnit, dtype: WeightDtype) -> Result<(), RankError> {
        self.unit_parameters(unit).flats().try_for_each(|flat| flat.prefetch(&self.ranks, dtype))
    }

    fn unshard_as(&self, unit: FsdpUnit, dtype: WeightDtype) -> Result<(), RankError> {
        self.prefetch_as(unit, dtype)?;
        self.unit_parameters(unit).flats().try_for_each(FlatParameter::unshard)
    }

    /// Frees the unsharded parameters of a unit.
    ///
    /// # Errors
    /// [`RankError::Shards`] if libtorch fails.
    pub fn reshard(&self, unit: FsdpUnit) -> Result<(), RankError> {
        self.unit_parameters(unit).flats().try_for_each(FlatParameter::reshard)
    }
}
