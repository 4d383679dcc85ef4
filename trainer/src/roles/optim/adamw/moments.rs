//! The two moments of one parameter, float32 in its shape, on the device or offloaded.

use rlt_torch::{Error, OffloadStorage, Offloaded, Prefetch};
use tch::{Kind, Tensor};

/// Names of both moments in a checkpoint.
pub(super) const NAMES: [&str; 2] = ["exp_avg", "exp_avg_sq"];

/// Moments of a parameter, on the device or offloaded.
#[derive(Debug)]
pub(super) enum Moments {
    Resident([Tensor; 2]),
    Offloaded([Offloaded; 2]),
}

/// Moments on the device, or being prefetched to it.
pub(super) enum Prefetched {
    Resident([Tensor; 2]),
    Prefetch([Prefetch; 2]),
}

impl Moments {
    /// Creates moments of zero for a parameter, offloaded to `storage` if there is one.
    pub(super) fn zeros(leaf: &Tensor, storage: Option<&mut OffloadStorage>) -> Result<Self, Error> {
        let zeros = || {
            Tensor::f_zeros(leaf.size(), (Kind::Float, leaf.device()))
                .map_err(|source| Error::Libtorch { act: "allocating moments", message: source.to_string() })
        };
        let Some(storage) = storage else { return Ok(Self::Resident([zeros()?, zeros()?])) };
        let zeros = zeros()?;
        Ok(Self::Offloaded([storage.offload(&zeros)?, storage.offload(&zeros)?]))
    }

    /// Starts the prefetch of the moments.
    pub(super) fn prefetch(&self) -> Result<Prefetched, Error> {
        Ok(match self {
            Self::Resident(moments) => Prefetched::Resident(moments.each_ref().map(Tensor::shallow_clone)),
            Self::Offloaded([one, other]) => {
                Prefetched::Prefetch([one.prefetch_new()?, other.prefetch_new()?])
            }
        })
    }

    /// Writes the changed moments that [`Prefetched::wait`] returned back to offload storage.
    pub(super) fn put_back(&self, changed: &[Tensor; 2]) -> Result<(), Error> {
        match self {
            Self::Resident(_) => Ok(()),
            Self::Offloaded(offloaded) => {
                offloaded.iter().zip(changed).try_for_each(|(offloaded, changed)| offloaded.write(changed))
            }
        }
    }

    /// Lets `change` write the moments, and writes offloaded ones back.
    pub(super) fn change<E: From<Error>>(
        &self,
        change: impl FnOnce(&[Tensor; 2]) -> Result<(), E>,
    ) -> Result<(), E> {
        let moments = self.prefetch()?.wait()?;
        change(&moments)?;
        Ok(self.put_back(&moments)?)
    }

    /// Returns the moments for reading. Offloaded moments are not copied: they take memory of the host only
    /// while they are read.
    pub(super) fn in_place(&self) -> Result<[Tensor; 2], Error> {
        Ok(match self {
            Self::Resident(moments) => moments.each_ref().map(Tensor::shallow_clone),
            Self::Offloaded([one, other]) => [one.in_place()?, other.in_place()?],
        })
    }
}

impl Prefetched {
    /// Waits for the moments on the device, to be read and written.
    pub(super) fn wait(self) -> Result<[Tensor; 2], Error> {
        Ok(match self {
            Self::Resident(moments) => moments,
            Self::Prefetch([one, other]) => [one.wait()?, other.wait()?],
        })
    }
}
