//! What the forward pass keeps of a layer for its backward pass: the graph itself, or the layer's input
//! alone, here or at rest away from the device. When it goes and comes is the schedule's.
//!
//! Legend of shapes: t tokens, d hidden size.

use rlt_torch::{Coming, Resting, RestingPlace};
use tch::Tensor;

use super::pass::LayerPass;
use crate::parallel::RankError;

/// What is kept of a layer, wherever it is.
#[derive(Debug)]
pub(super) enum Island {
    Here(Held),
    Resting { input_td: Resting, wants_gradient: bool },
}

/// What is kept of a layer, at hand.
#[derive(Debug)]
pub(super) enum Held {
    /// The graph itself: nothing is computed again.
    Graph(LayerPass),
    /// The input alone, `[t, d]`: the layer runs again in the backward pass.
    Input(Tensor),
}

/// What is kept of a layer, on its way.
pub(super) enum Departed {
    Here(Held),
    Coming { input_td: Coming, wants_gradient: bool },
}

impl Island {
    /// Keeps a layer's input alone, in `place` where there is one.
    pub(super) fn of_input(input_td: Tensor, place: Option<&mut RestingPlace>) -> Result<Self, RankError> {
        let Some(place) = place else { return Ok(Self::Here(Held::Input(input_td))) };
        let wants_gradient = input_td.requires_grad();
        let input_td = place.keep(&input_td.detach().contiguous()).map_err(RankError::Activations)?;
        Ok(Self::Resting { input_td, wants_gradient })
    }

    /// Lets it set out for the device.
    pub(super) fn depart(self) -> Result<Departed, RankError> {
        Ok(match self {
            Self::Here(held) => Departed::Here(held),
            Self::Resting { input_td, wants_gradient } => {
                let input_td = input_td.depart_anew().map_err(RankError::Activations)?;
                Departed::Coming { input_td, wants_gradient }
            }
        })
    }
}

impl Departed {
    /// Returns when it is at hand.
    pub(super) fn arrive(self) -> Result<Held, RankError> {
        Ok(match self {
            Self::Here(held) => held,
            Self::Coming { input_td, wants_gradient } => {
                let input_td = input_td.arrive().map_err(RankError::Activations)?;
                Held::Input(input_td.set_requires_grad(wants_gradient))
            }
        })
    }
}

impl Held {
    /// The layer's pass, with its graph: as it ran, or as `run` runs it again on the same input.
    pub(super) fn pass(
        self,
        run: impl FnOnce(Tensor) -> Result<LayerPass, RankError>,
    ) -> Result<LayerPass, RankError> {
        match self {
            Self::Graph(pass) => Ok(pass),
            Self::Input(input_td) => run(input_td),
        }
    }
}
