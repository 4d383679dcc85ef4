//! The device mesh: which ranks form which group along which axes. This module communicates nothing.
//!
//! ```text
//! rank = ((replica * dp_shard + shard) * sp + part) * tp + place      8 ranks, dp_shard 2, sp 2, tp 1:
//!
//!                       shard 0          shard 1
//!                    part 0  part 1   part 0  part 1
//!     replica 0        0       1        2       3
//!     replica 1        4       5        6       7
//! ```
//! Ranks along `Sp` (0 and 1) form a sequence-parallel group and compute shards of the same tokens; other
//! groups have other tokens. Ranks along `DpShard` (0 and 2) hold a replica of the model together, each a
//! shard of it. Ranks along `DpReplicate` and `Sp` (0, 1, 4 and 5) hold the same parameters. Ranks along `Tp`
//! are innermost, because they communicate the most.
//!
//! Expert parallelism arranges the ranks of a replica a second time, for the experts alone (torchtitan's `ep`
//! and `efsdp`). Each `ep` consecutive ranks hold all experts together:
//!
//! ```text
//! rank = ((replica * ep_shard + shard) * ep + place) * tp + ..        8 ranks, dp_shard 2, sp 2, ep 2:
//!
//!                    shard 0            shard 1
//!                place 0  place 1   place 0  place 1
//!     replica 0     0        1         2        3
//!     replica 1     4        5         6        7
//! ```
//! Ranks along `EpShard` (0 and 2) have the same experts, a shard of their weights each.

use thiserror::Error;

use super::axis_place::AxisPlace;

/// A mesh whose axes do not divide the number of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "cannot lay out {world_size} ranks in replicas of {} ranks, sequence-parallel groups of {} and tensor-parallel groups of {}, \
     expected numbers whose product divides the ranks", .degrees.dp_shard, .degrees.sp, .degrees.tp
)]
pub struct MeshError {
    /// Number of ranks in total.
    pub world_size: usize,
    /// Degrees of the axes.
    pub degrees: Degrees,
}

/// An expert-parallel degree that does not divide the ranks of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "cannot distribute experts over {ep} ranks of the {dp_shard} x {sp} that hold a replica of the model, expected a divisor of \
     their number"
)]
pub struct ExpertMeshError {
    /// Number of ranks that hold a replica of the model together.
    pub dp_shard: usize,
    /// Number of ranks in a sequence-parallel group.
    pub sp: usize,
    /// Expert-parallel degree: number of ranks with different experts.
    pub ep: usize,
}

/// An axis along which ranks are laid out, outermost first. `EpShard` and `Ep` lay out the ranks of `DpShard`
/// and `Sp` a second time, for experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Axis {
    /// Replicas of the model.
    DpReplicate,
    /// FSDP shards of a replica.
    DpShard,
    /// Shards of the tokens of a micro-batch.
    Sp,
    /// FSDP shards of the weights of the same experts.
    EpShard,
    /// Shards of a layer's experts.
    Ep,
    /// Shards of every weight.
    Tp,
}

/// Degrees of the axes that a job gives; the others follow from the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Degrees {
    /// Number of ranks that hold a replica of the model together, each an FSDP shard.
    pub dp_shard: usize,
    /// Number of ranks in a sequence-parallel group.
    pub sp: usize,
    /// Number of ranks in a tensor-parallel group.
    pub tp: usize,
}

impl Default for Degrees {
    /// Returns degrees of 1: each rank holds a full replica of the model.
    fn default() -> Self {
        Self { dp_shard: 1, sp: 1, tp: 1 }
    }
}

/// Ranks arranged along axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    dp_replicate: usize,
    degrees: Degrees,
    ep: usize,
}

/// The axes of all parameters but experts, outermost first.
const DENSE: [Axis; 4] = [Axis::DpReplicate, Axis::DpShard, Axis::Sp, Axis::Tp];
/// The axes of experts, outermost first.
const EXPERTS: [Axis; 4] = [Axis::DpReplicate, Axis::EpShard, Axis::Ep, Axis::Tp];

impl Mesh {
    /// Arranges `world_size` ranks in a mesh, on which every rank has all experts.
    ///
    /// # Errors
    /// [`MeshError`] if the product of the degrees is 0 or does not divide `world_size`.
    pub fn new(world_size: usize, degrees: Degrees) -> Result<Self, MeshError> {
        let Degrees { dp_shard, sp, tp } = degrees;
        match dp_shard.checked_mul(sp).and_then(|block| block.checked_mul(tp)) {
            Some(inner) if inner > 0 && world_size > 0 && world_size.is_multiple_of(inner) => {
                Ok(Self { dp_replicate: world_size / inner, degrees, ep: 1 })
            }
            _ => Err(MeshError { world_size, degrees }),
        }
    }

    /// Distributes experts over `ep` adjacent ranks of a replica.
    ///
    /// # Errors
    /// [`ExpertMeshError`] if `ep` is 0 or does not divide the ranks of a replica.
    pub fn with_experts(self, ep: usize) -> Result<Self, ExpertMeshError> {
        let Degrees { dp_shard, sp, .. } = self.degrees;
        match ep > 0 && (dp_shard * sp).is_multiple_of(ep) {
            true => Ok(Self { ep, ..self }),
            false => Err(ExpertMeshError { dp_shard, sp, ep }),
        }
    }

    /// Number of ranks along an axis.
    pub(crate) fn degree(&self, axis: Axis) -> usize {
        match axis {
            Axis::DpReplicate => self.dp_replicate,
            Axis::DpShard => self.degrees.dp_shard,
            Axis::Sp => self.degrees.sp,
            Axis::EpShard => self.degrees.dp_shard * self.degrees.sp / self.ep,
            Axis::Ep => self.ep,
            Axis::Tp => self.degrees.tp,
        }
    }

    /// Returns the index of `rank` among the ranks that differ from it along `axes` only, and their number.
    pub fn place(&self, rank: usize, axes: &[Axis]) -> AxisPlace {
        let members = self.members(rank, axes);
        let index = members.iter().position(|member| *member == rank).unwrap_or(0);
        AxisPlace { index, size: members.len() }
    }

    /// Lists the ranks that differ from `rank` along `axes` only, ascending. `axes` are either axes of
    /// experts or axes of all other parameters.
    pub fn members(&self, rank: usize, axes: &[Axis]) -> Vec<usize> {
        let is_of_experts = axes.iter().any(|axis| matches!(axis, Axis::EpShard | Axis::Ep));
        let layout = if is_of_experts { EXPERTS } else { DENSE };
        let mut members = vec![0];
        for axis in layout {
            let degree = self.degree(axis);
            let own = self.index(rank, layout, axis);
            let indices = if axes.contains(&axis) { 0..degree } else { own..own + 1 };
            let along = |before: usize| indices.clone().map(move |index| before * degree + index);
            members = members.into_iter().flat_map(along).collect();
        }
        members
    }

    /// The index of `rank` along an axis of `layout`.
    fn index(&self, rank: usize, layout: [Axis; 4], axis: Axis) -> usize {
        let inner = layout.iter().rev().take_while(|other| **other != axis);
        let stride: usize = inner.map(|other| self.degree(*other)).product();
        rank / stride % self.degree(axis)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mesh(dp_replicate: usize, degrees: Degrees) -> (usize, Mesh) {
        let size = dp_replicate * degrees.dp_shard * degrees.sp * degrees.tp;
        (size, Mesh::new(size, degrees).unwrap())
    }

    fn degrees() -> impl Strategy<Value = Degrees> {
        (1_usize..5, 1_usize..4, 1_usize..4).prop_map(|(dp_shard, sp, tp)| Degrees { dp_shard, sp, tp })
    }

    proptest! {
        #[test]
        fn every_rank_is_in_one_group_along_any_axes_at_its_place(
            dp_replicate in 1_usize..4,
            degrees in degrees(),
            chosen in prop::collection::vec(any::<bool>(), 4),
            of_experts in any::<bool>(),
        ) {
            let (size, mesh) = mesh(dp_replicate, degrees);
            let layout = if of_experts { EXPERTS } else { DENSE };
            let axes: Vec<Axis> =
                layout.into_iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(axis, _)| axis).collect();
            let num_members: usize = axes.iter().map(|axis| mesh.degree(*axis)).product();
            for rank in 0..size {
                let (members, place) = (mesh.members(rank, &axes), mesh.place(rank, &axes));
                prop_assert_eq!((members.len(), place.size), (num_members, num_members));
                prop_assert_eq!(members[place.index], rank);
                prop_assert!(members.is_sorted_by(|one, next| one < next));
                prop_assert!(members.iter().all(|other| mesh.members(*other, &axes) == members));
            }
        }

        #[test]
        fn a_rank_has_the_indices_of_its_number(dp_replicate in 1_usize..4, degrees in degrees()) {
            let (size, mesh) = mesh(dp_replicate, degrees);
            let Degrees { dp_shard, sp, tp } = degrees;
            for rank in 0..size {
                let [replica, shard, part, place] = DENSE.map(|axis| mesh.place(rank, &[axis]).index);
                prop_assert_eq!(((replica * dp_shard + shard) * sp + part) * tp + place, rank);
                // A replica has one rank of each shard, and a sequence-parallel group is within it.
                let same = mesh.members(rank, &[Axis::DpReplicate, Axis::Sp]);
                let replica = mesh.members(rank, &[Axis::DpShard]);
                let both: Vec<_> = replica.into_iter().filter(|other| same.contains(other)).collect();
                prop_assert_eq!(both, vec![rank]);
                prop_assert!(mesh.members(rank, &[Axis::Sp]).iter().all(|other| same.contains(other)));
            }
        }

        #[test]
        fn experts_are_laid_over_the_ranks_of_a_replica_and_each_group_has_all_of_them(
            dp_replicate in 1_usize..4,
            degrees in degrees(),
            ep in 1_usize..9,
        ) {
            let (size, mesh) = mesh(dp_replicate, degrees);
            let block = degrees.dp_shard * degrees.sp;
            let Ok(mesh) = mesh.with_experts(ep) else {
                prop_assert!(!block.is_multiple_of(ep));
                return Ok(());
            };
            for rank in 0..size {
                let of = |axis: Axis| (mesh.members(rank, &[axis]), mesh.place(rank, &[axis]));
                let ((group, place), (shards, _)) = (of(Axis::Ep), of(Axis::EpShard));
                prop_assert_eq!((group.len(), shards.len()), (ep, block / ep));
                // A replica's ranks are in one block, and those with shards of the same experts at one place.
                let of_replica = block * degrees.tp;
                prop_assert!(group.iter().chain(&shards).all(|other| other / of_replica == rank / of_replica));
                prop_assert!(shards.iter().all(|other| mesh.place(*other, &[Axis::Ep]) == place));
                // Members of both are the ranks of the replica with the same tensor-parallel index.
                let both = mesh.members(rank, &[Axis::EpShard, Axis::Ep]);
                prop_assert_eq!(both, mesh.members(rank, &[Axis::DpShard, Axis::Sp]));
                let experts: Vec<usize> = place.all().flat_map(|place| place.range(3 * ep)).collect();
                prop_assert_eq!(experts, (0..3 * ep).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn groups_of_eight_ranks_are_those_of_the_documentation() {
        let degrees = Degrees { dp_shard: 2, sp: 2, tp: 1 };
        let mesh = Mesh::new(8, degrees).unwrap().with_experts(2).unwrap();
        assert_eq!(mesh.members(0, &[Axis::Sp]), [0, 1]);
        assert_eq!(mesh.members(0, &[Axis::DpShard]), [0, 2]);
        assert_eq!(mesh.members(0, &[Axis::DpReplicate, Axis::Sp]), [0, 1, 4, 5]);
        assert_eq!(mesh.members(5, &[Axis::Ep]), [4, 5]);
        assert_eq!(mesh.members(5, &[Axis::EpShard]), [5, 7]);
        assert_eq!(mesh.members(5, &[Axis::DpReplicate]), [1, 5]);
        let of_tp = Mesh::new(8, Degrees { tp: 2, ..Degrees::default() }).unwrap();
        assert_eq!(of_tp.members(5, &[Axis::Tp]), [4, 5]);
        assert_eq!(of_tp.members(5, &[Axis::DpReplicate]), [1, 3, 5, 7]);
    }

    #[test]
    fn degrees_that_do_not_divide_the_ranks_are_refused() {
        let of = |dp_shard, sp, tp| Degrees { dp_shard, sp, tp };
        let refused = |world_size, degrees| Mesh::new(world_size, degrees).unwrap_err();
        assert_eq!(refused(6, of(4, 1, 1)), MeshError { world_size: 6, degrees: of(4, 1, 1) });
        for (world_size, degrees) in [
            (6, of(2, 2, 1)),
            (6, of(1, 2, 2)),
            (6, of(0, 1, 1)),
            (6, of(1, 0, 1)),
            (6, of(1, 1, 0)),
            (0, of(1, 1, 1)),
            (6, of(usize::MAX, 2, 1)),
        ] {
            let message = refused(world_size, degrees).to_string();
            assert!(message.contains(&format!("cannot lay out {world_size} ranks")), "{message}");
        }
        let mesh = Mesh::new(8, of(2, 2, 2)).unwrap();
        assert_eq!(mesh.with_experts(3), Err(ExpertMeshError { dp_shard: 2, sp: 2, ep: 3 }));
        assert!(
            mesh.with_experts(0).is_err() && mesh.with_experts(8).is_err() && mesh.with_experts(4).is_ok()
        );
    }
}
