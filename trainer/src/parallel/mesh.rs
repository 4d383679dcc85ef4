//! This rank's place on the mesh, and the process groups along its axes. The layout of ranks is in
//! `rlt_core::mesh`.

use std::cell::RefCell;
use std::sync::Arc;

use rlt_core::mesh::{Coordinates, Mesh};
use rlt_torch::collectives::{CollectiveError, Collectives, Pending, Reduction};
use tch::{Kind, Tensor};

use super::{EpGroup, RankError, Ranks, TpGroup};

/// This rank with its process groups: that of its replica, and that of its shard.
#[derive(Debug)]
pub struct MeshRanks {
    dp_shard: usize,
    shard: usize,
    /// Which of so many ranks this is that hold this shard.
    replica_place: (usize, usize),
    /// The ranks that hold a replica together, each a shard (FSDP).
    shard_group: RefCell<Box<dyn Collectives>>,
    /// The ranks that hold this shard, one or more of each replica (`dp_replicate`).
    replicate_group: RefCell<Box<dyn Collectives>>,
    /// The layout of the experts' weights; `None` where they are sharded like all others.
    experts: Option<Box<ExpertRanks>>,
    /// The ranks that have the other parts of every weight; `None` without tensor parallelism.
    tp_group: Option<Arc<TpGroup>>,
}

/// The same of the experts' weights with expert parallelism.
#[derive(Debug)]
pub struct ExpertRanks {
    /// The ranks that have the same experts as this one.
    pub mesh: MeshRanks,
    /// The ranks that have all experts together.
    pub group: EpGroup,
}

impl Ranks {
    /// Lets `dp_shard` ranks hold each replica of the model, and connects the groups of replicas and shards.
    /// Collective, once for each degree.
    ///
    /// # Errors
    /// [`RankError`] when replicas and sequence-parallel groups do not divide the ranks, expert-parallel
    /// groups not those of a replica, or one is lost.
    pub fn on_mesh(&self, dp_shard: usize) -> Result<MeshRanks, RankError> {
        let mesh = Mesh::new(self.size, dp_shard, self.sp_shard().num_shards)?;
        let place = mesh.coordinates(self.rank);
        let experts = self.expert_ranks(mesh)?.map(Box::new);
        // Roles may have meshes of their own, whose groups have names of their own.
        let name = format!("replica {} of {dp_shard} ranks, part {}", place.replica, place.part);
        let replica = self.connect(&name, &mesh.replica_members(self.rank))?;
        let same = mesh.shard_members(self.rank);
        let replica_place = (same.iter().position(|member| *member == self.rank).unwrap_or(0), same.len());
        let replicate_group = self.connect(&format!("shard {} of {dp_shard}", place.shard), &same)?;
        let (shard_group, replicate_group) = (RefCell::new(replica), RefCell::new(replicate_group));
        let Coordinates { shard, .. } = place;
        let tp_group = self.tp_group();
        Ok(MeshRanks { dp_shard, shard, replica_place, shard_group, replicate_group, experts, tp_group })
    }

    /// Connects the groups of the experts' weights; `None` without expert parallelism.
    fn expert_ranks(&self, mesh: Mesh) -> Result<Option<ExpertRanks>, RankError> {
        if self.ep == 1 {
            return Ok(None);
        }
        let (rank, experts) = (self.rank, mesh.experts(self.ep)?);
        let (dp_shard, shard, replica) = (experts.dp_shard(), experts.shard(rank), experts.replica(rank));
        let name = format!("experts by {} of {dp_shard} shards", self.ep);
        let group = EpGroup::connect(self, experts, &name)?;
        let place = group.shard().place;
        let shards = format!("{name}, replica {replica}, place {place}");
        let shard_group = RefCell::new(self.connect(&shards, &experts.replica_members(rank))?);
        let same = experts.shard_members(rank);
        let copies = format!("{name}, shard {shard}, place {place}");
        let replicate_group = RefCell::new(self.connect(&copies, &same)?);
        let replica_place = (replica, same.len());
        let (experts, tp_group) = (None, None);
        let mesh =
            MeshRanks { dp_shard, shard, replica_place, shard_group, replicate_group, experts, tp_group };
        Ok(Some(ExpertRanks { mesh, group }))
    }
}

impl MeshRanks {
    /// Ranks that hold a replica of the model together.
    pub fn dp_shard(&self) -> usize {
        self.dp_shard
    }

    /// Which shard this rank holds.
    pub fn shard(&self) -> usize {
        self.shard
    }

    /// Which rank this is of those that hold the same shard, from 0, and how many they are.
    pub fn replica_place(&self) -> (usize, usize) {
        self.replica_place
    }

    /// The ranks that have the other parts of every weight; `None` without tensor parallelism.
    pub fn tp_group(&self) -> Option<&Arc<TpGroup>> {
        self.tp_group.as_ref()
    }

    /// The layout of the experts' weights; `None` where they are sharded like all others.
    pub fn experts(&self) -> Option<&ExpertRanks> {
        self.experts.as_deref()
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
