//! Sequence-parallel and tensor-parallel groups of this rank. `rlt_layout` has the layout of ranks.
//!
//! The ranks of a tensor-parallel group compute the same tokens with different shards of every weight. The
//! ranks with the same index in their tensor-parallel groups form one set, within which the other axes are
//! laid out as if there were no other ranks.
//!
//! ```text
//! rank = index in the set * tp + tensor-parallel index        8 ranks, tp 2:
//!
//!     index 0    0  2  4  6      one set: dp_replicate, dp_shard, sp and ep are laid out along it
//!     index 1    1  3  5  7
//! ```
//! The ranks of a tensor-parallel group are adjacent, because they exchange the most data. `rlt_decoder`
//! decides which rows and columns of a weight a rank holds.

use std::sync::Arc;

use rlt_layout::{Axis, AxisPlace, Degrees, Mesh};
use tch::Tensor;

use super::{AxisGroup, RankError, Ranks};

impl Ranks {
    /// Connects the sequence-parallel groups, each of `sp` adjacent ranks. Collective, once for each `sp`.
    ///
    /// # Errors
    /// [`RankError`] when `sp` does not divide the ranks, or one is lost.
    pub fn with_sequence_parallel(self, sp: usize) -> Result<Self, RankError> {
        let mesh = Mesh::new(self.size, Degrees { sp, ..Degrees::default() })?;
        if sp == 1 {
            return Ok(Self { sp_group: None, ..self });
        }
        let name = format!("sequence-parallel group {} of {sp}", self.rank / sp);
        let group = self.connect(&name, &mesh.members(self.rank, &[Axis::Sp]))?;
        let place = mesh.place(self.rank, &[Axis::Sp]);
        Ok(Self { sp_group: Some(Arc::new(AxisGroup::new(place, group))), ..self })
    }

    /// This rank's sequence-parallel group; `None` if every rank has tokens of its own.
    pub fn sp_group(&self) -> Option<&AxisGroup> {
        self.sp_group.as_deref()
    }

    /// Returns this rank's index in its sequence-parallel group, and the group's size. They select the rank's
    /// shard of the packed tokens.
    pub fn sp_place(&self) -> AxisPlace {
        self.sp_group().map_or(AxisPlace::ALONE, AxisGroup::place)
    }

    /// Whether this rank is the first of its sequence-parallel group. Only the first counts values that all
    /// ranks of the group have, so that a sum over all ranks contains them once.
    pub fn is_sp_leader(&self) -> bool {
        self.sp_place().index == 0
    }

    /// All-reduces a vector over the sequence-parallel group element by element; all its ranks get the same
    /// bits.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_reduce_over_sp(&self, vector: &mut [f64]) -> Result<(), RankError> {
        let Some(sp_group) = self.sp_group() else { return Ok(()) };
        let tensor = Tensor::from_slice(vector);
        sp_group.all_reduce(&tensor)?;
        let len = vector.len();
        tensor.copy_data(vector, len);
        Ok(())
    }

    /// Connects tensor-parallel groups of `tp` adjacent ranks. The result spans only the ranks with this
    /// rank's tensor-parallel index. Collective, once.
    ///
    /// # Errors
    /// [`RankError`] when `tp` does not divide the ranks, or one is lost.
    pub fn with_tensor_parallel(self, tp: usize) -> Result<Self, RankError> {
        let mesh = Mesh::new(self.size, Degrees { tp, ..Degrees::default() })?;
        if tp == 1 {
            return Ok(self);
        }
        let place = mesh.place(self.rank, &[Axis::Tp]);
        let name = format!("tensor-parallel group {} of {tp}", self.rank / tp);
        let members = mesh.members(self.rank, &[Axis::Tp]);
        let group = Arc::new(AxisGroup::new(place, self.connect(&name, &members)?));
        let members = mesh.members(self.rank, &[Axis::DpReplicate]);
        let same_index = self.connect(&format!("tensor-parallel place {} of {tp}", place.index), &members)?;
        let AxisPlace { index: rank, size } = mesh.place(self.rank, &[Axis::DpReplicate]);
        let same_index = AxisGroup::new(AxisPlace { index: rank, size }, same_index);
        Ok(Self { rank, size, tp_group: Some(group), same_tp_index: Some(Arc::new(same_index)), ..self })
    }

    /// This rank's tensor-parallel group; `None` without tensor parallelism.
    pub fn tp_group(&self) -> Option<Arc<AxisGroup>> {
        self.tp_group.clone()
    }

    /// Returns all ranks of the job, whatever their tensor-parallel index. With tensor parallelism the result
    /// has no sequence-parallel group.
    #[must_use]
    pub fn world(&self) -> Self {
        if self.tp_group.is_none() {
            return self.clone();
        }
        let AxisPlace { index: rank, size } = self.world;
        Self { rank, size, tp_group: None, same_tp_index: None, sp_group: None, ..self.clone() }
    }

    /// Connects the rollout tensor-parallel groups, each of `num_shards` adjacent ranks; `None` for groups of
    /// one rank. Collective, once.
    ///
    /// # Errors
    /// [`RankError`] when `num_shards` does not divide the ranks, or one is lost.
    pub fn rollout_tp_group(&self, num_shards: usize) -> Result<Option<Arc<AxisGroup>>, RankError> {
        let mesh = Mesh::new(self.size, Degrees { tp: num_shards, ..Degrees::default() })?;
        if num_shards == 1 {
            return Ok(None);
        }
        let name = format!("rollout {} of {num_shards} shards", self.rank / num_shards);
        let group = self.connect(&name, &mesh.members(self.rank, &[Axis::Tp]))?;
        Ok(Some(Arc::new(AxisGroup::new(mesh.place(self.rank, &[Axis::Tp]), group))))
    }
}
