//! This rank's coordinates on the mesh, and the process groups along its axes. The layout of ranks is in
//! `rlt_layout`.

use std::sync::Arc;

use rlt_layout::{Axis, AxisPlace, Degrees, Mesh};
use rlt_torch::collectives::{CollectiveError, Pending, Reduction};
use tch::{Kind, Tensor};

use super::{AxisGroup, RankError, Ranks};

/// Process groups of this rank for a sharded model: the ranks of its replica, and the ranks that hold its
/// shard.
#[derive(Debug)]
pub struct ProcessGroups {
    /// Ranks that together hold one replica, one shard each (FSDP).
    shards: AxisGroup,
    /// Ranks that hold the same shard, one or more of each replica (`dp_replicate`).
    copies: AxisGroup,
    /// Groups of the ranks that hold the same experts, for the experts' weights; `None` if these are sharded
    /// like all others.
    experts: Option<Box<ProcessGroups>>,
    /// Expert-parallel group, whose ranks together hold all experts; `None` if every rank holds all.
    ep_group: Option<AxisGroup>,
    /// Tensor-parallel group, whose ranks hold the shards of every weight; `None` without tensor parallelism.
    tp_group: Option<Arc<AxisGroup>>,
}

impl Ranks {
    /// Connects the groups of a model whose replicas are each sharded over `dp_shard` ranks. Collective, once
    /// for each degree.
    ///
    /// # Errors
    /// [`RankError`] if replicas and sequence-parallel groups do not divide the ranks, expert-parallel groups
    /// do not divide those of a replica, or a rank is lost.
    pub fn on_mesh(&self, dp_shard: usize) -> Result<ProcessGroups, RankError> {
        let degrees = Degrees { dp_shard, sp: self.sp_place().size, ..Degrees::default() };
        let mesh = Mesh::new(self.size, degrees)?;
        let (experts, ep_group) = self.expert_groups(mesh)?.unzip();
        let place = |axes: &[Axis]| mesh.place(self.rank, axes);
        let (replica, part) = (place(&[Axis::DpReplicate]).index, place(&[Axis::Sp]).index);
        let shard = place(&[Axis::DpShard]);
        // Roles may have meshes of their own, so the groups' names contain the degree.
        let name = format!("replica {replica} of {dp_shard} ranks, part {part}");
        let shards = AxisGroup::new(shard, self.connect(&name, &mesh.members(self.rank, &[Axis::DpShard]))?);
        let name = format!("shard {} of {dp_shard}", shard.index);
        let same = mesh.members(self.rank, &[Axis::DpReplicate, Axis::Sp]);
        let copies = AxisGroup::new(place(&[Axis::DpReplicate, Axis::Sp]), self.connect(&name, &same)?);
        let experts = experts.map(Box::new);
        Ok(ProcessGroups { shards, copies, experts, ep_group, tp_group: self.tp_group() })
    }

    /// Connects the groups of the experts' weights, and the ranks that hold all experts together; `None`
    /// without expert parallelism.
    fn expert_groups(&self, mesh: Mesh) -> Result<Option<(ProcessGroups, AxisGroup)>, RankError> {
        if self.ep == 1 {
            return Ok(None);
        }
        let (rank, mesh) = (self.rank, mesh.with_experts(self.ep)?);
        let shard = mesh.place(rank, &[Axis::EpShard]);
        let copies = mesh.place(rank, &[Axis::DpReplicate]);
        let name = format!("experts by {} of {} shards", self.ep, shard.size);
        let place = mesh.place(rank, &[Axis::Ep]);
        let all = format!("{name}, expert-parallel group {}", rank / place.size);
        let group = AxisGroup::new(place, self.connect(&all, &mesh.members(rank, &[Axis::Ep]))?);
        let place = place.index;
        let shards = format!("{name}, replica {}, place {place}", copies.index);
        let same = format!("{name}, shard {}, place {place}", shard.index);
        let shards = AxisGroup::new(shard, self.connect(&shards, &mesh.members(rank, &[Axis::EpShard]))?);
        let copies = AxisGroup::new(copies, self.connect(&same, &mesh.members(rank, &[Axis::DpReplicate]))?);
        let groups = ProcessGroups { shards, copies, experts: None, ep_group: None, tp_group: None };
        Ok(Some((groups, group)))
    }
}

impl ProcessGroups {
    /// Number of ranks that hold a replica of the model together.
    pub fn dp_shard(&self) -> usize {
        self.shards.place().size
    }

    /// Index of the shard that this rank holds.
    pub fn shard(&self) -> usize {
        self.shards.place().index
    }

    /// Index of this rank among the ranks that hold the same shard, and their number.
    pub fn copies(&self) -> AxisPlace {
        self.copies.place()
    }

    /// Groups of the ranks that hold the same experts, for the experts' weights; `None` if these are sharded
    /// like all others.
    pub fn experts(&self) -> Option<&ProcessGroups> {
        self.experts.as_deref()
    }

    /// Expert-parallel group, whose ranks together hold all experts; `None` if every rank holds all.
    pub fn ep_group(&self) -> Option<&AxisGroup> {
        self.ep_group.as_ref()
    }

    /// Group of the ranks that hold the shards of weights split along `axis`; `None` if no weight is.
    pub(super) fn group_along(&self, axis: Axis) -> Option<&AxisGroup> {
        match axis {
            Axis::Tp => self.tp_group.as_deref(),
            Axis::Ep => self.ep_group(),
            _ => None,
        }
    }

    /// Groups over which weights split along `axes` are sharded and replicated: those of the experts if
    /// `axes` contain `Axis::Ep`.
    pub(super) fn of_weights(&self, axes: &[Axis]) -> &Self {
        self.experts().filter(|_| axes.contains(&Axis::Ep)).unwrap_or(self)
    }

    /// All groups that [`Self::of_weights`] may return, each once.
    pub(super) fn of_all_weights(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.experts())
    }

    /// Starts to all-gather the replica's shards, `[n]` each, into `unsharded`, `[dp_shard * n]`.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn all_gather(&self, unsharded: &Tensor, shard: &Tensor) -> Result<Pending, RankError> {
        Ok(self.shards.collectives().all_gather(unsharded, shard)?)
    }

    /// Starts to reduce-scatter the tensors `unsharded` of this replica's ranks, `[dp_shard * n]`; the sum of
    /// this rank's shard, `[n]`, is written to `shard`.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn reduce_scatter(&self, shard: &Tensor, unsharded: &Tensor) -> Result<Pending, RankError> {
        Ok(self.shards.collectives().reduce_scatter(shard, unsharded)?)
    }

    /// All-reduces tensors in place over the ranks that hold this shard; all of them get the same bits.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub(crate) fn all_reduce_over_replicas<'a>(
        &self,
        tensors: impl IntoIterator<Item = &'a Tensor>,
    ) -> Result<(), RankError> {
        let mut group = self.copies.collectives();
        let started: Result<Vec<Pending>, CollectiveError> =
            tensors.into_iter().map(|tensor| group.all_reduce(tensor, Reduction::Sum)).collect();
        started?.into_iter().try_for_each(Pending::wait)?;
        Ok(())
    }

    /// Returns the sum of `number` over this replica's ranks. Values are added in the order of shards, so
    /// every rank gets the same bits.
    ///
    /// # Errors
    /// [`RankError`] when a rank is lost.
    pub fn sum_over_shards(&self, number: f64) -> Result<f64, RankError> {
        let own = Tensor::from_slice(&[number]);
        let all = Tensor::zeros([self.dp_shard() as i64], (Kind::Double, own.device()));
        self.all_gather(&all, &own)?.wait()?;
        Ok(rlt_torch::to_vec::<f64>(&all).iter().sum())
    }
}
