//! This rank's shard of a flat buffer: on the device, or offloaded and fetched only while it is written.

use rlt_torch::{Error, FlatBuffer, OffloadStorage, Offloaded};
use tch::Tensor;

/// Values of this rank's shard, `[shard_len]`; views of them stay valid.
#[derive(Debug)]
pub(super) enum ShardStorage {
    Resident(Tensor),
    Offloaded { buffer: FlatBuffer, offloaded: Offloaded },
}

impl ShardStorage {
    /// Takes a filled buffer, and offloads its values to `storage` if there is one.
    pub(super) fn new(buffer: FlatBuffer, storage: Option<&mut OffloadStorage>) -> Result<Self, Error> {
        let Some(storage) = storage else { return Ok(Self::Resident(buffer.tensor().shallow_clone())) };
        let offloaded = storage.offload(buffer.tensor())?;
        buffer.release()?;
        Ok(Self::Offloaded { buffer, offloaded })
    }

    /// The shard's tensor, whose values can be read unless it is offloaded.
    pub(super) fn tensor(&self) -> &Tensor {
        match self {
            Self::Resident(shard) => shard,
            Self::Offloaded { buffer, .. } => buffer.tensor(),
        }
    }

    /// The offloaded values; `None` if they stay on the device.
    pub(super) fn offloaded(&self) -> Option<&Offloaded> {
        match self {
            Self::Resident(_) => None,
            Self::Offloaded { offloaded, .. } => Some(offloaded),
        }
    }

    /// The values on the device, fetched if they are offloaded.
    pub(super) fn values(&self) -> Result<Tensor, Error> {
        match self {
            Self::Resident(shard) => Ok(shard.shallow_clone()),
            Self::Offloaded { offloaded, .. } => offloaded.bring(),
        }
    }

    /// Returns the values where they are stored. Offloaded values take host memory while they are read, and
    /// change with the next write.
    pub(super) fn in_place(&self) -> Result<Tensor, Error> {
        match self {
            Self::Resident(shard) => Ok(shard.shallow_clone()),
            Self::Offloaded { offloaded, .. } => offloaded.in_place(),
        }
    }

    /// Lets `change` read and write the values through the tensor and its views; offloaded ones are fetched
    /// first and written back.
    pub(super) fn with_resident_shards<E: From<Error>>(
        &self,
        change: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        let Self::Offloaded { buffer, offloaded } = self else { return change() };
        buffer.take()?;
        drop(offloaded.prefetch(buffer.tensor())?.wait()?);
        let changed = change().and_then(|()| Ok(offloaded.write(buffer.tensor())?));
        buffer.release()?;
        changed
    }
}
