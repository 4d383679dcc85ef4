//! Ranks that sample as one on GPUs. Sums and logits travel as work of the decoder's stream, and so does what
//! each rank has drawn, by which all know that they drew the same and whether one of them wants the end.

use rlt_core::slice::Slice;
use rlt_torch::collectives::{CollectiveError, Reduction, StreamGroup, Traffic};
use rlt_torch::cuda::Event;
use tch::Tensor;

use crate::parallel::{RankError, SliceRanks};

/// The ranks of which this is one.
#[derive(Debug)]
pub(super) struct Peers {
    group: StreamGroup,
    slice: Slice,
}

impl Peers {
    pub(super) fn new(ranks: &SliceRanks, device_idx: usize) -> Result<Self, RankError> {
        Ok(Self { group: ranks.in_stream(device_idx)?, slice: ranks.slice() })
    }

    pub(super) fn num(&self) -> usize {
        self.slice.num_slices
    }

    /// The longest slice of `len`.
    pub(super) fn longest(&self, len: usize) -> usize {
        self.slice.longest(len)
    }

    /// Notes that a step begins; returns its number.
    pub(super) fn begin(&self) -> u64 {
        self.group.begin()
    }

    /// Adds the tensors of all ranks in place.
    pub(super) fn sum(&self, tensor: &Tensor) -> Result<(), CollectiveError> {
        self.group.all_reduce(tensor, Reduction::Sum)
    }

    /// Lays what each rank has end to end.
    pub(super) fn gather(&self, of_all: &Tensor, own: &Tensor) -> Result<(), CollectiveError> {
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
