//! This rank's part of a flat buffer: here, or at rest elsewhere and here only while it is written.

use rlt_torch::{Error, FlatBuffer, Resting, RestingPlace};
use tch::Tensor;

/// The numbers of a shard, `[shard_len]`, with views of them that stay.
#[derive(Debug)]
pub(super) enum OwnShard {
    Here(Tensor),
    Resting { buffer: FlatBuffer, resting: Resting },
}

impl OwnShard {
    /// Takes a filled buffer, whose numbers are laid down in `place` where there is one.
    pub(super) fn new(buffer: FlatBuffer, place: Option<&mut RestingPlace>) -> Result<Self, Error> {
        let Some(place) = place else { return Ok(Self::Here(buffer.tensor().shallow_clone())) };
        let resting = place.keep(buffer.tensor())?;
        buffer.release()?;
        Ok(Self::Resting { buffer, resting })
    }

    /// The shard's tensor, of which the values can be read where it does not rest.
    pub(super) fn tensor(&self) -> &Tensor {
        match self {
            Self::Here(shard) => shard,
            Self::Resting { buffer, .. } => buffer.tensor(),
        }
    }

    /// Where it rests.
    pub(super) fn resting(&self) -> Option<&Resting> {
        match self {
            Self::Here(_) => None,
            Self::Resting { resting, .. } => Some(resting),
        }
    }

    /// The values, to be read.
    pub(super) fn values(&self) -> Result<Tensor, Error> {
        match self {
            Self::Here(shard) => Ok(shard.shallow_clone()),
            Self::Resting { resting, .. } => resting.bring(),
        }
    }

    /// The values to be read where they are: those that rest take memory of the host as they are read, and
    /// change with what is laid down later.
    pub(super) fn in_place(&self) -> Result<Tensor, Error> {
        match self {
            Self::Here(shard) => Ok(shard.shallow_clone()),
            Self::Resting { resting, .. } => resting.in_place(),
        }
    }

    /// Lets `change` read and write the values through the tensor and its views.
    pub(super) fn change<E: From<Error>>(&self, change: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let Self::Resting { buffer, resting } = self else { return change() };
        buffer.take()?;
        drop(resting.depart(buffer.tensor())?.arrive()?);
        let changed = change().and_then(|()| Ok(resting.put(buffer.tensor())?));
        buffer.release()?;
        changed
    }
}
