//! Memory for all parameters of a flat buffer, which comes and goes, and how numbers come there. When they do
//! is not decided here.

use rlt_core::mesh::Shards;
use rlt_torch::collectives::Pending;
use rlt_torch::{Coming, FlatBuffer};
use tch::{Device, Kind, Tensor, no_grad};

use super::place::Place;
use crate::parallel::RankError;

/// In which numbers a whole is wanted; the later covers the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Numbers {
    /// As layers compute with them.
    Computed,
    /// As shards hold them.
    Exact,
}

/// Memory for all parameters.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) buffer: FlatBuffer,
    /// Of each parameter.
    pub(super) views: Vec<Tensor>,
}

impl Whole {
    /// Without memory until it is taken.
    pub(super) fn new(
        layout: Shards,
        places: &[Place],
        numbers: (Kind, Device),
    ) -> Result<Self, rlt_torch::Error> {
        let buffer = FlatBuffer::new(layout.padded_len(), numbers)?;
        let views = places.iter().map(|place| buffer.view(place.range.start, &place.size)).collect();
        buffer.release()?;
        Ok(Self { buffer, views })
    }

    /// Bytes that it takes while it is there.
    pub(super) fn num_bytes(&self) -> usize {
        let tensor = self.buffer.tensor();
        tensor.numel() * tensor.kind().elt_size_in_bytes()
    }
}

/// Where the whole is.
#[derive(Debug)]
pub(super) enum Presence {
    Away,
    Coming(Numbers, Arrival),
    Here(Numbers),
}

impl Presence {
    /// What it is there in, or will be.
    pub(super) fn numbers(&self) -> Option<Numbers> {
        match self {
            Self::Away => None,
            Self::Coming(numbers, _) | Self::Here(numbers) => Some(*numbers),
        }
    }
}

/// How the whole comes.
#[derive(Debug)]
pub(super) enum Arrival {
    /// From the shards of all ranks.
    Gathered(Pending),
    /// From where it rests, there or to be cast there.
    Fetched(Coming),
}

impl Arrival {
    /// Returns when the numbers are in `whole`.
    pub(super) fn complete(self, whole: &Tensor) -> Result<(), RankError> {
        match self {
            Self::Gathered(pending) => pending.wait()?,
            Self::Fetched(coming) => {
                let fetched = coming.arrive()?;
                if fetched.kind() != whole.kind() {
                    no_grad(|| whole.shallow_clone().copy_(&fetched));
                }
            }
        }
        Ok(())
    }

    /// Lets go of what nobody wants any more; other ranks may need this one's part of it.
    pub(super) fn give_up(self) -> Result<(), RankError> {
        match self {
            Self::Gathered(pending) => Ok(pending.wait()?),
            Self::Fetched(_) => Ok(()),
        }
    }
}
