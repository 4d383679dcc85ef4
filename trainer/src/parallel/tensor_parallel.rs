//! Tensor parallelism of training: the ranks of one place in all tensor-parallel groups are ranks of their
//! own, which replicate and shard the model and share tokens as if they were alone; the ranks of a group
//! compute the same tokens with different parts of every weight.
//!
//! ```text
//! rank = number among the ranks of a place * tp + place        8 ranks, tp 2:
//!
//!     place 0    0  2  4  6      dp_replicate, dp_shard, sp and ep are laid out along these
//!     place 1    1  3  5  7
//! ```
//! The ranks of a group are neighbours, because they exchange the most. Which rows and columns of a weight a
//! place has is in `model::tp_cuts`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rlt_core::mesh::Mesh;
use rlt_core::tensor_parallel::TpShard;
use rlt_torch::collectives::Collectives;

use super::{Link, RankError, Ranks, TpGroup};

/// The ranks of this rank's place, and its group.
#[derive(Debug)]
pub(super) struct TensorParallelRanks {
    group: Arc<TpGroup>,
    of_place: Mutex<Box<dyn Collectives>>,
    /// This rank among all ranks, and how many these are.
    world: (usize, usize),
}

impl TensorParallelRanks {
    /// All ranks of the place.
    pub(super) fn of_place(&self) -> MutexGuard<'_, Box<dyn Collectives>> {
        self.of_place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects some of the ranks of the place.
    pub(super) fn connect(
        &self,
        link: &Link,
        name: &str,
        members: &[usize],
    ) -> Result<Box<dyn Collectives>, RankError> {
        let TpShard { place, num_shards } = self.group.shard();
        let members: Vec<usize> = members.iter().map(|member| member * num_shards + place).collect();
        link.connect(&format!("tensor-parallel place {place} of {num_shards}, {name}"), &members)
    }
}

impl Ranks {
    /// The ranks of this rank's place in the tensor-parallel groups of `tp` neighbours. Collective, once.
    ///
    /// # Errors
    /// [`RankError`] when `tp` does not divide the ranks, or one is lost.
    pub fn with_tensor_parallel(self, tp: usize) -> Result<Self, RankError> {
        let mesh = Mesh::new(self.size, tp, 1)?;
        if tp == 1 {
            return Ok(self);
        }
        let (world, shard) = ((self.rank, self.size), TpShard { place: self.rank % tp, num_shards: tp });
        let name = format!("tensor-parallel group {} of {tp}", self.rank / tp);
        let group = Arc::new(TpGroup::new(shard, self.connect(&name, &mesh.replica_members(self.rank))?));
        let members: Vec<usize> = (0..self.size / tp).map(|number| number * tp + shard.place).collect();
        let of_place = self.connect(&format!("tensor-parallel place {} of {tp}", shard.place), &members)?;
        let ranks = TensorParallelRanks { group, of_place: Mutex::new(of_place), world };
        let (rank, size) = (self.rank / tp, self.size / tp);
        Ok(Self { rank, size, tensor_parallel: Some(Arc::new(ranks)), ..self })
    }

    /// This rank's tensor-parallel group; `None` without tensor parallelism.
    pub fn tp_group(&self) -> Option<Arc<TpGroup>> {
        self.tensor_parallel.as_ref().map(|ranks| Arc::clone(&ranks.group))
    }

    /// All ranks, of every place, without sequence-parallel groups.
    #[must_use]
    pub fn of_all_places(&self) -> Self {
        match &self.tensor_parallel {
            None => self.clone(),
            Some(ranks) => {
                let (rank, size) = ranks.world;
                Self { rank, size, tensor_parallel: None, sp_group: None, ..self.clone() }
            }
        }
    }

    /// This rank among all ranks.
    pub(super) fn world_rank(&self) -> usize {
        self.tensor_parallel.as_ref().map_or(self.rank, |ranks| ranks.world.0)
    }
}
