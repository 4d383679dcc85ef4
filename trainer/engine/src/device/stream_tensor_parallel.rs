//! Tensor-parallel rollout on GPUs. Partial sums, logits and drawn tokens are exchanged by collectives on the
//! decoder's stream. Every rank verifies that the gathered tokens of all ranks are equal, and reads the
//! ranks' stop requests from the same buffer. Tensor parallelism adds two all-reduces per layer and three
//! launches per step.

use rlt_layout::AxisPlace;
use rlt_parallel::{AxisGroup, RankError};
use rlt_torch::collectives::{CollectiveError, Reduction, StreamGroup, Traffic};
use rlt_torch::cuda::Event;
use tch::Tensor;

/// The tensor-parallel group of this rank, in the decoder's stream.
#[derive(Debug)]
pub(super) struct StreamTensorParallel {
    group: StreamGroup,
    place: AxisPlace,
}

impl StreamTensorParallel {
    pub(super) fn new(ranks: &AxisGroup, device_idx: usize) -> Result<Self, RankError> {
        Ok(Self { group: ranks.in_stream(device_idx)?, place: ranks.place() })
    }

    pub(super) fn num(&self) -> usize {
        self.place.size
    }

    /// Length of the longest of the ranks' shards of `len` elements.
    pub(super) fn longest(&self, len: usize) -> usize {
        self.place.longest(len)
    }

    /// Records the begin of a step, and returns its number.
    pub(super) fn begin(&self) -> u64 {
        self.group.begin()
    }

    /// All-reduces a tensor in place.
    pub(super) fn all_reduce(&self, tensor: &Tensor) -> Result<(), CollectiveError> {
        self.group.all_reduce(tensor, Reduction::Sum)
    }

    /// All-gathers each rank's tensor `own` into `of_all`, in the order of ranks.
    pub(super) fn all_gather(&self, of_all: &Tensor, own: &Tensor) -> Result<(), CollectiveError> {
        self.group.all_gather(of_all, own)
    }

    /// Waits for an event that follows the step with this number.
    pub(super) fn wait(&self, sequence: u64, event: &Event) -> Result<(), CollectiveError> {
        self.group.wait("a rollout step", sequence, event)
    }

    pub(super) fn traffic(&self) -> Traffic {
        self.group.traffic()
    }

    /// Counts the exchanges of a replayed graph.
    pub(super) fn count_again(&self, traffic: Traffic) {
        self.group.count_again(traffic);
    }
}
