//! Tensor parallelism of training. The ranks with the same index in their tensor-parallel groups form a set
//! of ranks of its own, which replicates and shards the model and distributes tokens as if it were alone. The
//! ranks of one group compute the same tokens with different shards of every weight.
//!
//! ```text
//! rank = number among the ranks of a place * tp + place        8 ranks, tp 2:
//!
//!     place 0    0  2  4  6      dp_replicate, dp_shard, sp and ep are laid out along these
//!     place 1    1  3  5  7
//! ```
//! The ranks of a group are adjacent, because they exchange the most. Which rows and columns of a weight a
//! rank holds is in `model::tp_cuts`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rlt_core::mesh::{Axis, AxisPlace, Degrees, Mesh};
use rlt_torch::collectives::Collectives;

use super::{Connection, RankError, Ranks, TpGroup};

/// Tensor-parallel group of this rank, and the ranks with the same index in their groups.
#[derive(Debug)]
pub(super) struct TensorParallelRanks {
    group: Arc<TpGroup>,
    of_place: Mutex<Box<dyn Collectives>>,
    /// Index of this rank among all ranks of the job.
    world_rank: usize,
    /// Number of all ranks of the job.
    world_size: usize,
}

impl TensorParallelRanks {
    /// All ranks with this rank's index in their groups.
    pub(super) fn of_place(&self) -> MutexGuard<'_, Box<dyn Collectives>> {
        self.of_place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects some of the ranks with this rank's index.
    pub(super) fn connect(
        &self,
        connection: &Connection,
        name: &str,
        members: &[usize],
    ) -> Result<Box<dyn Collectives>, RankError> {
        let AxisPlace { index, size } = self.group.place();
        let members: Vec<usize> = members.iter().map(|member| member * size + index).collect();
        connection.connect(&format!("tensor-parallel place {index} of {size}, {name}"), &members)
    }
}

impl Ranks {
    /// Connects tensor-parallel groups of `tp` adjacent ranks; returns the ranks with this rank's index in
    /// their groups. Collective, once.
    ///
    /// # Errors
    /// [`RankError`] when `tp` does not divide the ranks, or one is lost.
    pub fn with_tensor_parallel(self, tp: usize) -> Result<Self, RankError> {
        let mesh = Mesh::new(self.size, Degrees { tp, ..Degrees::default() })?;
        if tp == 1 {
            return Ok(self);
        }
        let (world_rank, world_size) = (self.rank, self.size);
        let place = mesh.place(self.rank, &[Axis::Tp]);
        let name = format!("tensor-parallel group {} of {tp}", self.rank / tp);
        let members = mesh.members(self.rank, &[Axis::Tp]);
        let group = Arc::new(TpGroup::new(place, self.connect(&name, &members)?));
        let members = mesh.members(self.rank, &[Axis::DpReplicate]);
        let of_place = self.connect(&format!("tensor-parallel place {} of {tp}", place.index), &members)?;
        let ranks = TensorParallelRanks { group, of_place: Mutex::new(of_place), world_rank, world_size };
        let (rank, size) = (self.rank / tp, self.size / tp);
        Ok(Self { rank, size, tensor_parallel: Some(Arc::new(ranks)), ..self })
    }

    /// This rank's tensor-parallel group; `None` without tensor parallelism.
    pub fn tp_group(&self) -> Option<Arc<TpGroup>> {
        self.tensor_parallel.as_ref().map(|ranks| Arc::clone(&ranks.group))
    }

    /// All ranks of the job, whatever their tensor-parallel index, without sequence-parallel groups.
    #[must_use]
    pub fn world(&self) -> Self {
        match &self.tensor_parallel {
            None => self.clone(),
            Some(ranks) => {
                let (rank, size) = (ranks.world_rank, ranks.world_size);
                Self { rank, size, tensor_parallel: None, sp_group: None, ..self.clone() }
            }
        }
    }

    /// Index of this rank among all ranks of the job.
    pub(super) fn world_rank(&self) -> usize {
        self.tensor_parallel.as_ref().map_or(self.rank, |ranks| ranks.world_rank)
    }
}
