//! This rank's place on the mesh, and the groups along its axes. How ranks are laid out is `rlt_core::mesh`.

use std::cell::RefCell;

use rlt_core::mesh::{Coordinates, Mesh};
use rlt_torch::collectives::{CollectiveError, Collectives, Pending, Reduction};
use tch::{Kind, Tensor};

use super::{RankError, Ranks};

/// A rank that holds one shard of a copy of the model, with its link to the others of each kind.
#[derive(Debug)]
pub struct MeshRanks {
    mesh: Mesh,
    place: Coordinates,
    /// Which of so many ranks this is that hold this shard.
    copy: (usize, usize),
    /// The ranks that hold this copy together.
    replica: RefCell<Box<dyn Collectives>>,
    /// The ranks that hold this shard.
    copies: RefCell<Box<dyn Collectives>>,
}

impl Ranks {
    /// Lets `dp_shard` ranks hold each copy of the model, and connects those of a copy and those of a shard.
    /// All ranks do so once.
    ///
    /// # Errors
    /// [`RankError`] when copies and streams do not divide the ranks, or one is lost.
    pub fn on_mesh(&self, dp_shard: usize) -> Result<MeshRanks, RankError> {
        let mesh = Mesh::new(self.size, dp_shard, self.stream_part().num_parts)?;
        let place = mesh.coordinates(self.rank);
        let link = self.lock();
        let name = format!("replica {}, part {}", place.replica, place.part);
        let replica = link.connect(&name, &mesh.replica_members(self.rank))?;
        let same = mesh.shard_members(self.rank);
        let copy = (same.iter().position(|member| *member == self.rank).unwrap_or(0), same.len());
        let copies = link.connect(&format!("shard {}", place.shard), &same)?;
        Ok(MeshRanks { mesh, place, copy, replica: RefCell::new(replica), copies: RefCell::new(copies) })
    }
}

impl MeshRanks {
    /// Ranks that hold a copy of the model together.
    pub fn dp_shard(&self) -> usize {
        self.mesh.dp_shard()
    }

    /// Which shard this rank holds.
    pub fn shard(&self) -> usize {
        self.place.shard
    }

    /// Which rank this is of those that hold the same shard, from 0, and how many they are.
    pub fn copy(&self) -> (usize, usize) {
        self.copy
    }

    /// Starts to lay the copy's shards, `[n]` each, end to end in `whole`, `[dp_shard * n]`.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_gather(&self, whole: &Tensor, shard: &Tensor) -> Result<Pending, RankError> {
        Ok(self.replica.borrow_mut().all_gather(whole, shard)?)
    }

    /// Starts to add up the `whole` of the ranks of this copy, `[dp_shard * n]`, of which this rank's part,
    /// `[n]`, comes to `shard`.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn reduce_scatter(&self, shard: &Tensor, whole: &Tensor) -> Result<Pending, RankError> {
        Ok(self.replica.borrow_mut().reduce_scatter(shard, whole)?)
    }

    /// Adds the tensors of all ranks of this shard in place; all of them get the same bits.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn sum_over_copies<'a>(
        &self,
        tensors: impl IntoIterator<Item = &'a Tensor>,
    ) -> Result<(), RankError> {
        let mut group = self.copies.borrow_mut();
        let started: Result<Vec<Pending>, CollectiveError> =
            tensors.into_iter().map(|tensor| group.all_reduce(tensor, Reduction::Sum)).collect();
        started?.into_iter().try_for_each(Pending::wait)?;
        Ok(())
    }

    /// The sum of the numbers of this copy's ranks, in the order of shards: the same bits on every rank of
    /// every copy.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn sum_in_replica(&self, number: f64) -> Result<f64, RankError> {
        let own = Tensor::from_slice(&[number]);
        let all = Tensor::zeros([self.dp_shard() as i64], (Kind::Double, own.device()));
        self.all_gather(&all, &own)?.wait()?;
        Ok((0..self.dp_shard() as i64).map(|shard| all.double_value(&[shard])).sum())
    }
}
