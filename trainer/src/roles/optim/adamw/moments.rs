//! The moments of one parameter, float32 in its shape: here, or at rest between steps. What is done with them
//! is AdamW's.

use rlt_torch::{Coming, Error, Resting, RestingPlace};
use tch::{Kind, Tensor};

/// Both moments, by the names that they have in a checkpoint.
pub(super) const NAMES: [&str; 2] = ["exp_avg", "exp_avg_sq"];

/// Where the moments are.
#[derive(Debug)]
pub(super) enum Moments {
    Here([Tensor; 2]),
    Resting([Resting; 2]),
}

/// Moments on their way to the parameter.
pub(super) enum Departed {
    Here([Tensor; 2]),
    Coming([Coming; 2]),
}

impl Moments {
    /// Zeros beside a parameter, laid down in `place` where there is one.
    pub(super) fn zeros(leaf: &Tensor, place: Option<&mut RestingPlace>) -> Result<Self, Error> {
        let zeros = || {
            Tensor::f_zeros(leaf.size(), (Kind::Float, leaf.device()))
                .map_err(|source| Error::Libtorch { act: "allocating moments", message: source.to_string() })
        };
        let Some(place) = place else { return Ok(Self::Here([zeros()?, zeros()?])) };
        let zeros = zeros()?;
        Ok(Self::Resting([place.keep(&zeros)?, place.keep(&zeros)?]))
    }

    /// Lets the moments set out.
    pub(super) fn depart(&self) -> Result<Departed, Error> {
        Ok(match self {
            Self::Here(moments) => Departed::Here(moments.each_ref().map(Tensor::shallow_clone)),
            Self::Resting([one, other]) => Departed::Coming([one.depart_anew()?, other.depart_anew()?]),
        })
    }

    /// Lays moments down that [`Departed::arrive`] gave and that have changed since.
    pub(super) fn put_back(&self, changed: &[Tensor; 2]) -> Result<(), Error> {
        match self {
            Self::Here(_) => Ok(()),
            Self::Resting(resting) => {
                resting.iter().zip(changed).try_for_each(|(resting, changed)| resting.put(changed))
            }
        }
    }

    /// Lets `change` write the moments.
    pub(super) fn change<E: From<Error>>(
        &self,
        change: impl FnOnce(&[Tensor; 2]) -> Result<(), E>,
    ) -> Result<(), E> {
        let moments = self.depart()?.arrive()?;
        change(&moments)?;
        Ok(self.put_back(&moments)?)
    }

    /// The moments to be read: where they rest they take memory as they are read.
    pub(super) fn in_place(&self) -> Result<[Tensor; 2], Error> {
        Ok(match self {
            Self::Here(moments) => moments.each_ref().map(Tensor::shallow_clone),
            Self::Resting([one, other]) => [one.in_place()?, other.in_place()?],
        })
    }
}

impl Departed {
    /// The moments, to be read and written.
    pub(super) fn arrive(self) -> Result<[Tensor; 2], Error> {
        Ok(match self {
            Self::Here(moments) => moments,
            Self::Coming([one, other]) => [one.arrive()?, other.arrive()?],
        })
    }
}
