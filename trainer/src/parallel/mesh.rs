//! This rank's place on the mesh, and the process groups along its axes. The layout of ranks is in
//! `rlt_core::mesh`.

use std::cell::RefCell;

use rlt_core::mesh::{Coordinates, Mesh};
use rlt_torch::collectives::{CollectiveError, Collectives, Pending, Reduction};
use tch::{Kind, Tensor};

use super::{RankError, Ranks};

/// This rank with its process groups: that of its replica, and that of its shard.
#[derive(Debug)]
pub struct MeshRanks {
    mesh: Mesh,
    place: Coordinates,
    /// Which of so many ranks this is that hold this shard.
    replica_place: (usize, usize),
    /// The ranks that hold a replica together, each a shard (FSDP).
    shard_group: RefCell<Box<dyn Collectives>>,
    /// The ranks that hold this shard, one or more of each replica (`dp_replicate`).
    replicate_group: RefCell<Box<dyn Collectives>>,
}

impl Ranks {
    /// Lets `dp_shard` ranks hold each replica of the model, and connects the groups of replicas and shards.
    /// Collective, once for each degree.
    ///
    /// # Errors
    /// [`RankError`] when replicas and sequence-parallel groups do not divide the ranks, or one is lost.
    pub fn on_mesh(&self, dp_shard: usize) -> Result<MeshRanks, RankError> {
        let mesh = Mesh::new(self.size, dp_shard, self.sp_shard().num_shards)?;
        let place = mesh.coordinates(self.rank);
        let link = self.lock();
        // Roles may have meshes of their own, whose groups have names of their own.
        let name = format!("replica {} of {dp_shard} ranks, part {}", place.replica, place.part);
        let replica = link.connect(&name, &mesh.replica_members(self.rank))?;
        let same = mesh.shard_members(self.rank);
        let replica_place = (same.iter().position(|member| *member == self.rank).unwrap_or(0), same.len());
        let replicate_group = link.connect(&format!("shard {} of {dp_shard}", place.shard), &same)?;
        let (shard_group, replicate_group) = (RefCell::new(replica), RefCell::new(replicate_group));
        Ok(MeshRanks { mesh, place, replica_place, shard_group, replicate_group })
    }
}

impl MeshRanks {
    /// Ranks that hold a replica of the model together.
    pub fn dp_shard(&self) -> usize {
        self.mesh.dp_shard()
    }

    /// Which shard this rank holds.
    pub fn shard(&self) -> usize {
        self.place.shard
    }

    /// Which rank this is of those that hold the same shard, from 0, and how many they are.
    pub fn replica_place(&self) -> (usize, usize) {
        self.replica_place
    }

    /// Starts to all-gather the replica's shards, `[n]` each, into `whole`, `[dp_shard * n]`.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_gather(&self, whole: &Tensor, shard: &Tensor) -> Result<Pending, RankError> {
        Ok(self.shard_group.borrow_mut().all_gather(whole, shard)?)
    }

    /// Starts to reduce-scatter the `whole` of the ranks of this replica, `[dp_shard * n]`; this rank's
    /// shard, `[n]`, is written to `shard`.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn reduce_scatter(&self, shard: &Tensor, whole: &Tensor) -> Result<Pending, RankError> {
        Ok(self.shard_group.borrow_mut().reduce_scatter(shard, whole)?)
    }

    /// All-reduces tensors in place over the ranks of this shard; all of them get the same bits.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_reduce_over_replicas<'a>(
        &self,
        tensors: impl IntoIterator<Item = &'a Tensor>,
    ) -> Result<(), RankError> {
        let mut group = self.replicate_group.borrow_mut();
        let started: Result<Vec<Pending>, CollectiveError> =
            tensors.into_iter().map(|tensor| group.all_reduce(tensor, Reduction::Sum)).collect();
        started?.into_iter().try_for_each(Pending::wait)?;
        Ok(())
    }

    /// The sum of the numbers of this replica's ranks, all-gathered and added in the order of shards: the
    /// same bits on every rank.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn sum_over_shards(&self, number: f64) -> Result<f64, RankError> {
        let own = Tensor::from_slice(&[number]);
        let all = Tensor::zeros([self.dp_shard() as i64], (Kind::Double, own.device()));
        self.all_gather(&all, &own)?.wait()?;
        Ok((0..self.dp_shard() as i64).map(|shard| all.double_value(&[shard])).sum())
    }
}
