//! The device mesh: which ranks form which group, and the arithmetic of shards. This module communicates
//! nothing.
//!
//! ```text
//! rank = (replica * dp_shard + shard) * sp + part            8 ranks, dp_shard 2, sp 2:
//!
//!                       shard 0          shard 1
//!                    part 0  part 1   part 0  part 1
//!     replica 0        0       1        2       3
//!     replica 1        4       5        6       7
//! ```
//! Adjacent ranks (0 and 1) form a sequence-parallel group and compute parts of the same tokens; other groups
//! have other tokens. Ranks of one replica and part (0 and 2) hold a replica of the model together, each a
//! shard of it. All ranks of one shard (0, 1, 4 and 5) hold the same parameters. The sequence-parallel axis
//! is innermost because its ranks communicate the most.
//!
//! Expert parallelism ([`ExpertMesh`]) arranges the same ranks a second time, for the experts alone.

use std::ops::Range;

use thiserror::Error;

/// A mesh whose axes do not divide the number of ranks.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "cannot lay out {world_size} ranks in replicas of {dp_shard} ranks and sequence-parallel groups of {sp}, expected two numbers \
     whose product divides the ranks"
)]
pub struct MeshError {
    /// Number of ranks in total.
    pub world_size: usize,
    /// Number of ranks that hold a replica of the model together.
    pub dp_shard: usize,
    /// Number of ranks in a sequence-parallel group.
    pub sp: usize,
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

/// The coordinates of a rank in a [`Mesh`], each from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coordinates {
    /// Index of the model replica.
    pub replica: usize,
    /// Index of the shard of the model.
    pub shard: usize,
    /// Index within the sequence-parallel group, which is also that of its tokens' shard.
    pub part: usize,
}

/// Ranks arranged along three axes: replicas, shards and sequence-parallel groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    dp_replicate: usize,
    dp_shard: usize,
    sp: usize,
}

impl Mesh {
    /// Arranges `world_size` ranks in a mesh.
    ///
    /// # Errors
    /// [`MeshError`] if `dp_shard * sp` is 0 or does not divide `world_size`.
    pub fn new(world_size: usize, dp_shard: usize, sp: usize) -> Result<Self, MeshError> {
        match dp_shard.checked_mul(sp) {
            Some(inner) if inner > 0 && world_size > 0 && world_size.is_multiple_of(inner) => {
                Ok(Self { dp_replicate: world_size / inner, dp_shard, sp })
            }
            _ => Err(MeshError { world_size, dp_shard, sp }),
        }
    }

    /// Number of ranks that hold a replica of the model together.
    pub fn dp_shard(&self) -> usize {
        self.dp_shard
    }

    /// Number of sequence-parallel groups in total.
    pub fn num_sp_groups(&self) -> usize {
        self.dp_replicate * self.dp_shard
    }

    /// Index of the sequence-parallel group of `rank`.
    pub fn sp_group(&self, rank: usize) -> usize {
        rank / self.sp
    }

    /// The coordinates of `rank`.
    pub fn coordinates(&self, rank: usize) -> Coordinates {
        let sp_group = self.sp_group(rank);
        Coordinates {
            replica: sp_group / self.dp_shard,
            shard: sp_group % self.dp_shard,
            part: rank % self.sp,
        }
    }

    /// The ranks that hold a replica of the model together with `rank`, ascending.
    pub fn replica_members(&self, rank: usize) -> Vec<usize> {
        let Coordinates { replica, part, .. } = self.coordinates(rank);
        (0..self.dp_shard).map(|shard| (replica * self.dp_shard + shard) * self.sp + part).collect()
    }

    /// The ranks that hold the same shard as `rank`, ascending.
    pub fn shard_members(&self, rank: usize) -> Vec<usize> {
        let shard = self.coordinates(rank).shard;
        let streams = (0..self.dp_replicate).map(|replica| replica * self.dp_shard + shard);
        streams.flat_map(|sp_group| self.members_of(sp_group)).collect()
    }

    /// The ranks of the sequence-parallel group of `rank`, ascending.
    pub fn sp_members(&self, rank: usize) -> Vec<usize> {
        self.members_of(self.sp_group(rank)).collect()
    }

    /// Arranges the same ranks for the experts' weights, with expert-parallel degree `ep`.
    ///
    /// # Errors
    /// [`ExpertMeshError`] if `ep` is 0 or does not divide the ranks of a replica.
    pub fn experts(&self, ep: usize) -> Result<ExpertMesh, ExpertMeshError> {
        let block = self.dp_shard * self.sp;
        if ep == 0 || !block.is_multiple_of(ep) {
            return Err(ExpertMeshError { dp_shard: self.dp_shard, sp: self.sp, ep });
        }
        Ok(ExpertMesh { num_blocks: self.dp_replicate, dp_shard: block / ep, ep })
    }

    fn members_of(&self, sp_group: usize) -> Range<usize> {
        sp_group * self.sp..(sp_group + 1) * self.sp
    }
}

/// The ranks of a [`Mesh`] as they hold experts (torchtitan's `ep` and `efsdp`). The `dp_shard * sp` ranks of
/// a replica are split into groups of `ep` adjacent ranks, each of which has all experts.
///
/// ```text
/// rank = (replica * dp_shard * sp / ep + shard) * ep + place      8 ranks, dp_shard 2, sp 2, ep 2:
///
///                    shard 0            shard 1
///                place 0  place 1   place 0  place 1
///     replica 0     0        1         2        3
///     replica 1     4        5         6        7
/// ```
/// Ranks of one place (0, 2, 4 and 6) have the same experts. Those of them in one replica (0 and 2) hold a
/// shard each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertMesh {
    num_blocks: usize,
    dp_shard: usize,
    ep: usize,
}

impl ExpertMesh {
    /// Number of ranks that hold the weights of the same experts together, a shard each.
    pub fn dp_shard(&self) -> usize {
        self.dp_shard
    }

    /// Index of the shard of its experts that `rank` holds.
    pub fn shard(&self, rank: usize) -> usize {
        rank / self.ep % self.dp_shard
    }

    /// Index of the model replica that `rank` belongs to.
    pub fn replica(&self, rank: usize) -> usize {
        rank / self.ep / self.dp_shard
    }

    /// The shard of the experts that `rank` holds.
    pub fn ep_shard(&self, rank: usize) -> EpShard {
        EpShard { place: rank % self.ep, num_shards: self.ep }
    }

    /// Index of the expert-parallel group of `rank`.
    pub fn ep_group(&self, rank: usize) -> usize {
        rank / self.ep
    }

    /// The ranks of the expert-parallel group of `rank`, in the order of their experts.
    pub fn ep_members(&self, rank: usize) -> Vec<usize> {
        let group = self.ep_group(rank);
        (group * self.ep..(group + 1) * self.ep).collect()
    }

    /// The ranks of the same replica that hold shards of the same experts as `rank`, in the order of shards.
    pub fn replica_members(&self, rank: usize) -> Vec<usize> {
        let (first, place) = (self.replica(rank) * self.dp_shard, rank % self.ep);
        (0..self.dp_shard).map(|shard| (first + shard) * self.ep + place).collect()
    }

    /// The ranks of all replicas that hold the same shard of the same experts as `rank`, ascending.
    pub fn shard_members(&self, rank: usize) -> Vec<usize> {
        let block = self.dp_shard * self.ep;
        (0..self.num_blocks).map(|replica| replica * block + rank % block).collect()
    }
}

/// A rank's shard of a layer's experts, within its expert-parallel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpShard {
    /// Index of the shard, from 0.
    pub place: usize,
    /// Number of shards, at least one.
    pub num_shards: usize,
}

impl EpShard {
    /// The shard of all experts, without expert parallelism.
    pub const WHOLE: Self = Self { place: 0, num_shards: 1 };

    /// The experts of this shard, out of `num_experts`, which must be a multiple of the shards.
    pub fn experts(self, num_experts: usize) -> Range<usize> {
        let num_own = num_experts / self.num_shards;
        self.place * num_own..(self.place + 1) * num_own
    }
}

/// A rank's shard of the tokens of its sequence-parallel group; the last shards may hold padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpShard {
    /// Index of the shard, from 0.
    pub place: usize,
    /// Number of shards, at least one.
    pub num_shards: usize,
}

impl SpShard {
    /// The shard of all tokens, without sequence parallelism.
    pub const WHOLE: Self = Self { place: 0, num_shards: 1 };

    /// The range of the shard among `num_tokens`, padded to a multiple of the shards.
    pub fn range(self, num_tokens: usize) -> Range<usize> {
        Shards::new(num_tokens, self.num_shards).range(self.place)
    }
}

/// A flat buffer split into shards of equal length; the last shards may hold padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    len: usize,
    num_shards: usize,
}

impl Shards {
    /// Splits `len` elements into `num_shards` shards, at least one.
    pub fn new(len: usize, num_shards: usize) -> Self {
        Self { len, num_shards: num_shards.max(1) }
    }

    /// Number of elements of each shard, padding included.
    pub fn shard_len(&self) -> usize {
        self.len.div_ceil(self.num_shards)
    }

    /// Number of elements of all shards, padding included.
    pub fn padded_len(&self) -> usize {
        self.shard_len() * self.num_shards
    }

    /// The range of a shard in the padded buffer.
    pub fn range(&self, shard: usize) -> Range<usize> {
        shard * self.shard_len()..(shard + 1) * self.shard_len()
    }

    /// The part of the range `wanted` that is in a shard, by its offsets in the buffer; may be empty.
    pub fn part_of(&self, wanted: &Range<usize>, shard: usize) -> Range<usize> {
        let own = self.range(shard);
        let start = wanted.start.clamp(own.start, own.end);
        start..wanted.end.clamp(start, own.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_rank_is_in_one_group_of_each_axis_at_the_index_of_its_coordinates(
            dp_replicate in 1_usize..5,
            dp_shard in 1_usize..5,
            sp in 1_usize..5,
        ) {
            let world_size = dp_replicate * dp_shard * sp;
            let mesh = Mesh::new(world_size, dp_shard, sp).unwrap();
            prop_assert_eq!(mesh.num_sp_groups() * sp, world_size);
            for rank in 0..world_size {
                let Coordinates { replica, shard, part } = mesh.coordinates(rank);
                let (copy, same, sp_group) =
                    (mesh.replica_members(rank), mesh.shard_members(rank), mesh.sp_members(rank));
                prop_assert_eq!((copy.len(), same.len(), sp_group.len()), (dp_shard, dp_replicate * sp, sp));
                prop_assert_eq!((copy[shard], same[replica * sp + part], sp_group[part]), (rank, rank, rank));
                for members in [&copy, &same, &sp_group] {
                    prop_assert!(members.is_sorted_by(|one, next| one < next));
                }
                prop_assert!(copy.iter().all(|other| mesh.replica_members(*other) == copy));
                prop_assert!(same.iter().all(|other| mesh.shard_members(*other) == same));
                prop_assert!(sp_group.iter().all(|other| mesh.sp_members(*other) == sp_group));
            }
        }

        #[test]
        fn a_replica_has_one_rank_of_each_shard_and_a_sequence_parallel_group_is_within_it(
            dp_replicate in 1_usize..5,
            dp_shard in 1_usize..5,
            sp in 1_usize..5,
        ) {
            let mesh = Mesh::new(dp_replicate * dp_shard * sp, dp_shard, sp).unwrap();
            for rank in 0..dp_replicate * dp_shard * sp {
                let same = mesh.shard_members(rank);
                let both: Vec<_> =
                    mesh.replica_members(rank).into_iter().filter(|other| same.contains(other)).collect();
                prop_assert_eq!(both, vec![rank]);
                prop_assert!(mesh.sp_members(rank).iter().all(|other| same.contains(other)));
            }
        }

        #[test]
        fn sequence_parallel_shards_are_equally_long_and_contiguous(num_tokens in 0_usize..100, num_shards in 1_usize..9) {
            let parts: Vec<_> =
                (0..num_shards).map(|place| SpShard { place, num_shards }.range(num_tokens)).collect();
            prop_assert_eq!(parts[0].start, 0);
            prop_assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(parts.iter().all(|part| part.len() == num_tokens.div_ceil(num_shards)));
            prop_assert_eq!(SpShard::WHOLE.range(num_tokens), 0..num_tokens);
        }

        #[test]
        fn shards_of_one_length_cover_the_buffer_with_less_padding_than_shards(
            len in 0_usize..1000,
            num_shards in 1_usize..9,
        ) {
            let shards = Shards::new(len, num_shards);
            let ranges: Vec<_> = (0..num_shards).map(|shard| shards.range(shard)).collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(ranges.iter().all(|range| range.len() == shards.shard_len()));
            prop_assert_eq!(ranges[num_shards - 1].end, shards.padded_len());
            prop_assert!(shards.padded_len() >= len && shards.padded_len() < len + num_shards);
        }
    }

    proptest! {
        #[test]
        fn the_parts_of_a_range_in_all_shards_are_the_range_in_order(
            lens in prop::collection::vec(0_usize..40, 1..8),
            num_shards in 1_usize..9,
        ) {
            let shards = Shards::new(lens.iter().sum(), num_shards);
            let mut start = 0;
            for len in lens {
                let wanted = start..start + len;
                let parts = (0..num_shards).map(|shard| (shards.range(shard), shards.part_of(&wanted, shard)));
                let mut elements = Vec::new();
                for (own, part) in parts {
                    prop_assert!(own.start <= part.start && part.start <= part.end && part.end <= own.end);
                    elements.extend(part);
                }
                prop_assert_eq!(elements, wanted.collect::<Vec<_>>());
                start += len;
            }
        }
    }

    proptest! {
        #[test]
        fn experts_are_laid_over_the_ranks_of_a_replica_and_each_group_has_all_of_them(
            dp_replicate in 1_usize..4,
            dp_shard in 1_usize..7,
            sp in 1_usize..5,
            ep in 1_usize..9,
        ) {
            let (size, block) = (dp_replicate * dp_shard * sp, dp_shard * sp);
            let mesh = Mesh::new(size, dp_shard, sp).unwrap();
            let Ok(experts) = mesh.experts(ep) else {
                prop_assert!(!block.is_multiple_of(ep));
                return Ok(());
            };
            prop_assert_eq!(experts.dp_shard() * ep, block);
            for rank in 0..size {
                let (group, shards, copies) =
                    (experts.ep_members(rank), experts.replica_members(rank), experts.shard_members(rank));
                prop_assert_eq!((group.len(), shards.len(), copies.len()), (ep, block / ep, dp_replicate));
                let place = experts.ep_shard(rank).place;
                prop_assert_eq!((group[place], shards[experts.shard(rank)]), (rank, rank));
                prop_assert_eq!(copies[experts.replica(rank)], rank);
                // A replica's ranks are in one block, and shards and copies have the same experts.
                prop_assert!(group.iter().chain(&shards).all(|other| other / block == rank / block));
                let same_experts = |other: &usize| experts.ep_shard(*other).place == place;
                prop_assert!(shards.iter().chain(&copies).all(same_experts));
                prop_assert!(copies.iter().all(|other| experts.shard(*other) == experts.shard(rank)));
            }
            let of_groups: Vec<usize> = (0..ep)
                .flat_map(|place| EpShard { place, num_shards: ep }.experts(3 * ep))
                .collect();
            prop_assert_eq!(of_groups, (0..3 * ep).collect::<Vec<_>>());
        }
    }

    #[test]
    fn ranks_that_make_no_whole_copies_and_streams_are_refused() {
        assert_eq!(Mesh::new(6, 4, 1), Err(MeshError { world_size: 6, dp_shard: 4, sp: 1 }));
        assert_eq!(Mesh::new(6, 2, 2), Err(MeshError { world_size: 6, dp_shard: 2, sp: 2 }));
        assert!(Mesh::new(6, 0, 1).is_err() && Mesh::new(6, 1, 0).is_err() && Mesh::new(0, 1, 1).is_err());
        assert!(Mesh::new(6, usize::MAX, 2).is_err());
    }
}
