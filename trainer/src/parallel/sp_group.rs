//! Sequence-parallel groups (Ulysses), whose ranks compute the same packed tokens, each a shard of them, and
//! their all-to-alls. `parallel::layer` uses them around attention; the layout of ranks is in
//! `rlt_core::mesh`.

use std::sync::{Mutex, PoisonError};

use rlt_core::mesh::AxisPlace;
use rlt_torch::collectives::{Collectives, Reduction};
use tch::Tensor;

use super::RankError;

/// This rank's membership in a sequence-parallel group.
#[derive(Debug)]
pub struct SpGroup {
    place: AxisPlace,
    group: Mutex<Box<dyn Collectives>>,
}

impl SpGroup {
    pub(super) fn new(place: AxisPlace, group: Box<dyn Collectives>) -> Self {
        Self { place, group: Mutex::new(group) }
    }

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

    /// All-reduces a contiguous tensor in place; all ranks get the same bits.
    pub(super) fn all_reduce(&self, tensor: &Tensor) -> Result<(), RankError> {
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(group.all_reduce(tensor, Reduction::Sum)?.wait()?)
    }
}

#[cfg(test)]
mod tests;
