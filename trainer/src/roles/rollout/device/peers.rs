//! Tensor-parallel rollout on GPUs. Partial sums, logits and drawn tokens are exchanged by collectives on the
//! decoder's stream; by the tokens all ranks verify that they drew the same, and learn of stop requests.

use rlt_core::tensor_parallel::TpShard;
use rlt_torch::collectives::{CollectiveError, Reduction, StreamGroup, Traffic};
use rlt_torch::cuda::Event;
use tch::Tensor;

use crate::parallel::{RankError, TpGroup};

/// The ranks of which this is one.
#[derive(Debug)]
pub(super) struct Peers {
    group: StreamGroup,
    shard: TpShard,
}

impl Peers {
    pub(super) fn new(ranks: &TpGroup, device_idx: usize) -> Result<Self, RankError> {
        Ok(Self { group: ranks.in_stream(device_idx)?, shard: ranks.shard() })
    }

    pub(super) fn num(&self) -> usize {
        self.shard.num_shards
    }

    /// The longest shard of `len`.
    pub(super) fn longest(&self, len: usize) -> usize {
        self.shard.longest(len)
    }

    /// Notes that a step begins; returns its number.
    pub(super) fn begin(&self) -> u64 {
        self.group.begin()
    }

    /// All-reduces a tensor in place.
    pub(super) fn all_reduce(&self, tensor: &Tensor) -> Result<(), CollectiveError> {
        self.group.all_reduce(tensor, Reduction::Sum)
    }

    /// All-gathers what each rank has, end to end.
    pub(super) fn all_gather(&self, of_all: &Tensor, own: &Tensor) -> Result<(), CollectiveError> {
        self.group.all_gather(of_all, own)
    }

    /// Waits for an event behind the step of that number.
    pub(super) fn wait(&self, sequence: u64, event: &Event) -> Result<(), CollectiveError> {
        self.group.wait("a rollout step", sequence, event)
    }

    pub(super) fn traffic(&self) -> Traffic {
        self.group.traffic()
    }

    /// Counts a graph's exchanges once more.
    pub(super) fn count_again(&self, traffic: Traffic) {
        self.group.count_again(traffic);
    }
}
