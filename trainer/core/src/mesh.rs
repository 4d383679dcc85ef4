//! The mesh of ranks and the arithmetic of shards: who shares what with whom. Nothing here exchanges anything.
//!
//! ```text
//! rank = replica * dp_shard + shard          world size 6, dp_shard 2:     shard 0  shard 1
//!                                                            replica 0       0        1
//!                                                            replica 1       2        3
//!                                                            replica 2       4        5
//! ```
//! The ranks of one replica hold the model together, each a shard of it; ranks of one shard hold the same numbers.

use std::ops::Range;

use thiserror::Error;

/// Why a mesh cannot be laid out.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("cannot lay out {world_size} ranks in replicas of {dp_shard}, expected a divisor of the ranks")]
pub struct MeshError {
    /// Ranks in all.
    pub world_size: usize,
    /// Ranks of one replica.
    pub dp_shard: usize,
}

/// Where a rank stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coordinates {
    /// Which copy of the model.
    pub replica: usize,
    /// Which part of it.
    pub shard: usize,
}

/// Ranks as replicas of `dp_shard` ranks each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mesh {
    dp_replicate: usize,
    dp_shard: usize,
}

impl Mesh {
    /// Lays out `world_size` ranks.
    ///
    /// # Errors
    /// [`MeshError`] when `dp_shard` does not divide them.
    pub fn new(world_size: usize, dp_shard: usize) -> Result<Self, MeshError> {
        if dp_shard == 0 || world_size == 0 || !world_size.is_multiple_of(dp_shard) {
            return Err(MeshError { world_size, dp_shard });
        }
        Ok(Self { dp_replicate: world_size / dp_shard, dp_shard })
    }

    /// Ranks of one replica.
    pub fn dp_shard(&self) -> usize {
        self.dp_shard
    }

    /// Where `rank` stands.
    pub fn coordinates(&self, rank: usize) -> Coordinates {
        Coordinates { replica: rank / self.dp_shard, shard: rank % self.dp_shard }
    }

    /// The ranks that hold one replica together with `rank`, ascending.
    pub fn replica_members(&self, rank: usize) -> Vec<usize> {
        let first = self.coordinates(rank).replica * self.dp_shard;
        (first..first + self.dp_shard).collect()
    }

    /// The ranks that hold the same shard as `rank`, ascending.
    pub fn shard_members(&self, rank: usize) -> Vec<usize> {
        let shard = self.coordinates(rank).shard;
        (0..self.dp_replicate).map(|replica| replica * self.dp_shard + shard).collect()
    }
}

/// A flat buffer in shards of one length; the last ones may hold padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shards {
    len: usize,
    num_shards: usize,
}

impl Shards {
    /// `len` elements in `num_shards` shards, at least one.
    pub fn new(len: usize, num_shards: usize) -> Self {
        Self { len, num_shards: num_shards.max(1) }
    }

    /// Elements of each shard, padding included.
    pub fn shard_len(&self) -> usize {
        self.len.div_ceil(self.num_shards)
    }

    /// Elements of all shards, padding included.
    pub fn padded_len(&self) -> usize {
        self.shard_len() * self.num_shards
    }

    /// Where a shard lies in the padded buffer.
    pub fn range(&self, shard: usize) -> Range<usize> {
        shard * self.shard_len()..(shard + 1) * self.shard_len()
    }

    /// What of the elements `wanted` lies in a shard, by their places in the buffer; empty where nothing does.
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
        fn every_rank_is_in_one_group_of_each_kind_and_no_two_kinds_share_more_than_it(
            dp_replicate in 1_usize..6,
            dp_shard in 1_usize..6,
        ) {
            let mesh = Mesh::new(dp_replicate * dp_shard, dp_shard).unwrap();
            for rank in 0..dp_replicate * dp_shard {
                let (replica, shard) = (mesh.replica_members(rank), mesh.shard_members(rank));
                prop_assert_eq!((replica.len(), shard.len()), (dp_shard, dp_replicate));
                let both: Vec<usize> = replica.iter().copied().filter(|other| shard.contains(other)).collect();
                prop_assert_eq!(both, vec![rank]);
                prop_assert!(replica.iter().all(|other| mesh.replica_members(*other) == replica));
                prop_assert!(shard.iter().all(|other| mesh.shard_members(*other) == shard));
                prop_assert_eq!(replica[mesh.coordinates(rank).shard], rank);
                prop_assert_eq!(shard[mesh.coordinates(rank).replica], rank);
            }
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

    #[test]
    fn ranks_that_make_no_whole_replicas_are_refused() {
        assert_eq!(Mesh::new(6, 4), Err(MeshError { world_size: 6, dp_shard: 4 }));
        assert!(Mesh::new(6, 0).is_err());
    }
}
