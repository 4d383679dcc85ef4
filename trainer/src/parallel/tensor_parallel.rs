//! Tensor parallelism of training. The ranks with the same index in their tensor-parallel groups form a set
//! of ranks of its own, which replicates and shards the model and distributes tokens as if it were alone. The
//! ranks of one group compute the same tokens with different shards of every weight.
//!
//! ```text
//! rank = number among the ranks of a place * tp + place        8 ranks, tp 2:
//!
//!     place 0    0  2  4  6      dp_replicate, dp_shard, sp and ep are laid out along these
//!     place 1    1  3  5  7
//! ```
//! The ranks of a group are adjacent, because they exchange the most. Which rows and columns of a weight a
//! rank holds is in `model::tp_cuts`.

use std::sync::Arc;

use rlt_core::mesh::AxisPlace;
use rlt_torch::collectives::Collectives;

use super::connection::Connection;
use super::{AxisGroup, RankError};

/// Tensor-parallel group of this rank, and the ranks with the same index in their groups.
#[derive(Debug)]
pub(super) struct TensorParallelRanks {
    /// Tensor-parallel group of this rank.
    pub(super) group: Arc<AxisGroup>,
    /// Ranks with this rank's index in their groups.
    pub(super) same_index: AxisGroup,
    /// Index of this rank among all ranks of the job.
    pub(super) world_rank: usize,
    /// Number of all ranks of the job.
    pub(super) world_size: usize,
}

impl TensorParallelRanks {
    /// Connects some of the ranks with this rank's index.
    pub(super) fn connect(
        &self,
        connection: &Connection,
        name: &str,
        members: &[usize],
    ) -> Result<Box<dyn Collectives>, RankError> {
        let AxisPlace { index, size } = self.group.place();
        let members: Vec<usize> = members.iter().map(|member| member * size + index).collect();
        connection.connect(&format!("tensor-parallel place {index} of {size}, {name}"), &members)
    }
}
