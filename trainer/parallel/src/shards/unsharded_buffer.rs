//! Memory of a flat buffer's unsharded parameters, and the all-gather or prefetch that fills it. The schedule
//! decides when.

use rlt_layout::EvenSplit;
use rlt_torch::collectives::Pending;
use rlt_torch::{FlatBuffer, Prefetch};
use tch::{Device, Kind, Tensor, no_grad};

use super::flat_slot::FlatSlot;
use crate::RankError;

/// Dtype in which a unit is unsharded. A unit that is unsharded in the master dtype is not gathered again for
/// the compute dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WeightDtype {
    /// The dtype that layers compute in.
    Compute,
    /// The master dtype of the shards.
    Master,
}

/// Memory of all parameters of a buffer in one dtype, `[padded_len]`.
#[derive(Debug)]
pub(super) struct UnshardedBuffer {
    pub(super) buffer: FlatBuffer,
    /// View of each parameter.
    pub(super) views: Vec<Tensor>,
}

impl UnshardedBuffer {
    /// Makes the buffer without memory, which is allocated when the unit is prefetched.
    pub(super) fn new(
        layout: EvenSplit,
        places: &[FlatSlot],
        dtype: (Kind, Device),
    ) -> Result<Self, rlt_torch::Error> {
        let buffer = FlatBuffer::new(layout.padded_len(), dtype)?;
        let views = places.iter().map(|place| buffer.view(place.range.start, &place.size)).collect();
        buffer.release()?;
        Ok(Self { buffer, views })
    }

    /// Bytes that the buffer takes while it is allocated.
    pub(super) fn num_bytes(&self) -> usize {
        let tensor = self.buffer.tensor();
        tensor.numel() * tensor.kind().elt_size_in_bytes()
    }
}

/// Whether the parameters are sharded, being gathered or prefetched, or unsharded.
#[derive(Debug)]
pub(super) enum UnshardState {
    Resharded,
    Prefetch(WeightDtype, PendingAllGather),
    Unsharded(WeightDtype),
}

impl UnshardState {
    /// The dtype in which the buffer is, or will be, unsharded.
    pub(super) fn dtype(&self) -> Option<WeightDtype> {
        match self {
            Self::Resharded => None,
            Self::Prefetch(dtype, _) | Self::Unsharded(dtype) => Some(*dtype),
        }
    }
}

/// The operation that fills the buffer.
#[derive(Debug)]
pub(super) enum PendingAllGather {
    /// An all-gather of the shards.
    Gathered(Pending),
    /// A prefetch from offload storage; values are cast if dtypes differ.
    Fetched(Prefetch),
}

impl PendingAllGather {
    /// Waits until the values are in `unsharded`.
    pub(super) fn complete(self, unsharded: &Tensor) -> Result<(), RankError> {
        match self {
            Self::Gathered(pending) => pending.wait()?,
            Self::Fetched(coming) => {
                let fetched = coming.wait()?;
                if fetched.kind() != unsharded.kind() {
                    no_grad(|| unsharded.shallow_clone().copy_(&fetched));
                }
            }
        }
        Ok(())
    }

    /// Cancels the fill. An all-gather is still completed, because other ranks need this rank's shard.
    pub(super) fn give_up(self) -> Result<(), RankError> {
        match self {
            Self::Gathered(pending) => Ok(pending.wait()?),
            Self::Fetched(_) => Ok(()),
        }
    }
}
