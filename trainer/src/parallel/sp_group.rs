//! Sequence-parallel groups (Ulysses), whose ranks compute the same packed tokens, each a shard of them, and
//! their all-to-alls. `parallel::layer` uses them around attention; the layout of ranks is in
//! `rlt_core::mesh`.

use std::sync::{Arc, Mutex, PoisonError};

use rlt_core::mesh::{Axis, AxisPlace, Degrees, Mesh};
use rlt_torch::collectives::{Collectives, Reduction};
use tch::Tensor;

use super::{RankError, Ranks};

/// This rank's membership in a sequence-parallel group.
#[derive(Debug)]
pub struct SpGroup {
    place: AxisPlace,
    group: Mutex<Box<dyn Collectives>>,
}

impl SpGroup {
    /// This rank's place in the group, which is also that of its tokens.
    pub fn place(&self) -> AxisPlace {
        self.place
    }

    /// All-to-all: sends block `r` of `blocks`, `[size, ..]`, to rank `r` of the group, and returns the
    /// blocks received from all ranks, in their order.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_to_all(&self, blocks: &Tensor) -> Result<Tensor, RankError> {
        let sent = blocks.detach().contiguous();
        let received = sent.empty_like();
        let splits = vec![1; self.place.size];
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
        let mesh = Mesh::new(self.size, Degrees { sp, ..Degrees::default() })?;
        if sp == 1 {
            return Ok(Self { sp_group: None, ..self });
        }
        let name = format!("sequence-parallel group {} of {sp}", self.rank / sp);
        let group = Mutex::new(self.connect(&name, &mesh.members(self.rank, &[Axis::Sp]))?);
        let place = mesh.place(self.rank, &[Axis::Sp]);
        Ok(Self { sp_group: Some(Arc::new(SpGroup { place, group })), ..self })
    }

    /// This rank's sequence-parallel group; `None` if every rank has tokens of its own.
    pub fn sp_group(&self) -> Option<&SpGroup> {
        self.sp_group.as_deref()
    }

    /// This rank's place in its sequence-parallel group, by which it computes a shard of the packed tokens.
    pub fn sp_place(&self) -> AxisPlace {
        self.sp_group().map_or(AxisPlace::ALONE, SpGroup::place)
    }

    /// Whether this is the first rank of its group, which alone counts values that all of them have.
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
}

#[cfg(test)]
mod tests;
