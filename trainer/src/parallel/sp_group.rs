//! Sequence-parallel groups (Ulysses), whose ranks compute the same packed tokens, each a shard of them, and
//! their all-to-alls. `parallel::layer` uses them around attention; the layout of ranks is in
//! `rlt_core::mesh`.

use std::sync::{Arc, Mutex, PoisonError};

use rlt_core::mesh::{Mesh, SpShard};
use rlt_torch::collectives::{Collectives, Reduction};
use tch::Tensor;

use super::{RankError, Ranks};

/// This rank's membership in a sequence-parallel group.
#[derive(Debug)]
pub struct SpGroup {
    part: SpShard,
    group: Mutex<Box<dyn Collectives>>,
}

impl SpGroup {
    /// The shard of the tokens that this rank computes.
    pub fn shard(&self) -> SpShard {
        self.part
    }

    /// All-to-all: sends block `r` of `blocks`, `[num_shards, ..]`, to rank `r` of the group, and returns the
    /// blocks received from all ranks, in their order.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_to_all(&self, blocks: &Tensor) -> Result<Tensor, RankError> {
        let sent = blocks.detach().contiguous();
        let received = sent.empty_like();
        let splits = vec![1; self.part.num_shards];
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        group.all_to_all(&received, &sent, &splits, &splits)?.wait()?;
        Ok(received)
    }

    fn all_reduce(&self, tensor: &Tensor) -> Result<(), RankError> {
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(group.all_reduce(tensor, Reduction::Sum)?.wait()?)
    }
}

impl Ranks {
    /// Connects the sequence-parallel groups, each of `sp` adjacent ranks. Collective, once for each `sp`.
    ///
    /// # Errors
    /// [`RankError`] when `sp` does not divide the ranks, or one is lost.
    pub fn with_sequence_parallel(self, sp: usize) -> Result<Self, RankError> {
        let mesh = Mesh::new(self.size, 1, sp)?;
        if sp == 1 {
            return Ok(Self { sp_group: None, ..self });
        }
        let name = format!("sequence-parallel group {} of {sp}", mesh.sp_group(self.rank));
        let group = self.connect(&name, &mesh.sp_members(self.rank))?;
        let part = SpShard { place: mesh.coordinates(self.rank).part, num_shards: sp };
        Ok(Self { sp_group: Some(Arc::new(SpGroup { part, group: Mutex::new(group) })), ..self })
    }

    /// This rank's sequence-parallel group; `None` if every rank has tokens of its own.
    pub fn sp_group(&self) -> Option<&SpGroup> {
        self.sp_group.as_deref()
    }

    /// The shard of its group's packed tokens that this rank computes.
    pub fn sp_shard(&self) -> SpShard {
        self.sp_group().map_or(SpShard::WHOLE, SpGroup::shard)
    }

    /// Whether this is the first rank of its group, which alone counts values that all of them have.
    pub fn is_sp_leader(&self) -> bool {
        self.sp_shard().place == 0
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
}

#[cfg(test)]
mod tests;
