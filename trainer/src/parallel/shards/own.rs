//! This rank's shard of a flat buffer: on the device, or offloaded and fetched only while it is written.

use rlt_torch::{Error, FlatBuffer, OffloadStorage, Offloaded};
use tch::Tensor;

/// The numbers of a shard, `[shard_len]`, with views of them that stay.
#[derive(Debug)]
pub(super) enum OwnShard {
    Here(Tensor),
    Offloaded { buffer: FlatBuffer, offloaded: Offloaded },
}

impl OwnShard {
    /// Takes a filled buffer, whose numbers are offloaded to `storage` where there is one.
    pub(super) fn new(buffer: FlatBuffer, storage: Option<&mut OffloadStorage>) -> Result<Self, Error> {
        let Some(storage) = storage else { return Ok(Self::Here(buffer.tensor().shallow_clone())) };
        let offloaded = storage.offload(buffer.tensor())?;
        buffer.release()?;
        Ok(Self::Offloaded { buffer, offloaded })
    }

    /// The shard's tensor, whose values can be read unless it is offloaded.
    pub(super) fn tensor(&self) -> &Tensor {
        match self {
            Self::Here(shard) => shard,
            Self::Offloaded { buffer, .. } => buffer.tensor(),
        }
    }

    /// The offloaded values; `None` where they stay on the device.
    pub(super) fn offloaded(&self) -> Option<&Offloaded> {
        match self {
            Self::Here(_) => None,
            Self::Offloaded { offloaded, .. } => Some(offloaded),
        }
    }

    /// The values, to be read.
    pub(super) fn values(&self) -> Result<Tensor, Error> {
        match self {
            Self::Here(shard) => Ok(shard.shallow_clone()),
            Self::Offloaded { offloaded, .. } => offloaded.bring(),
        }
    }

    /// The values to be read where they are: offloaded ones take memory of the host as they are read, and
    /// change with the next write.
    pub(super) fn in_place(&self) -> Result<Tensor, Error> {
        match self {
            Self::Here(shard) => Ok(shard.shallow_clone()),
            Self::Offloaded { offloaded, .. } => offloaded.in_place(),
        }
    }

    /// Lets `change` read and write the values through the tensor and its views.
    pub(super) fn change<E: From<Error>>(&self, change: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let Self::Offloaded { buffer, offloaded } = self else { return change() };
        buffer.take()?;
        drop(offloaded.prefetch(buffer.tensor())?.wait()?);
        let changed = change().and_then(|()| Ok(offloaded.write(buffer.tensor())?));
        buffer.release()?;
        changed
    }
}
