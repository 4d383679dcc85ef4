//! State that the forward pass keeps of a layer for its backward pass: the autograd graph, or (activation
//! checkpointing) only the layer's input, on the device or offloaded. The schedule decides when it is
//! offloaded and prefetched.
//!
//! Legend of shapes: t tokens, d hidden size.

use rlt_torch::{OffloadStorage, Offloaded, Prefetch};
use tch::Tensor;

use crate::{LayerPass, RankError};

/// A saved layer, on the device or offloaded.
#[derive(Debug)]
pub(super) enum SavedLayer<'a> {
    Resident(SavedState<'a>),
    Offloaded { input_td: Offloaded, wants_gradient: bool },
}

/// A saved layer on the device.
#[derive(Debug)]
pub(super) enum SavedState<'a> {
    /// The autograd graph; nothing is recomputed.
    Graph(LayerPass<'a>),
    /// Only the input, `[t, d]`: the layer runs again in the backward pass.
    Input(Tensor),
}

/// A saved layer whose input is being prefetched.
pub(super) enum Prefetched<'a> {
    Resident(SavedState<'a>),
    Prefetch { input_td: Prefetch, wants_gradient: bool },
}

impl<'a> SavedLayer<'a> {
    /// Keeps only a layer's input, offloaded to `storage` if there is one.
    pub(super) fn of_input(
        input_td: Tensor,
        storage: Option<&mut OffloadStorage>,
    ) -> Result<Self, RankError> {
        let Some(storage) = storage else { return Ok(Self::Resident(SavedState::Input(input_td))) };
        let wants_gradient = input_td.requires_grad();
        let input_td = storage.offload(&input_td.detach().contiguous()).map_err(RankError::Activations)?;
        Ok(Self::Offloaded { input_td, wants_gradient })
    }

    /// Starts to prefetch the layer's input to the device.
    pub(super) fn prefetch(self) -> Result<Prefetched<'a>, RankError> {
        Ok(match self {
            Self::Resident(held) => Prefetched::Resident(held),
            Self::Offloaded { input_td, wants_gradient } => {
                let input_td = input_td.prefetch_new().map_err(RankError::Activations)?;
                Prefetched::Prefetch { input_td, wants_gradient }
            }
        })
    }
}

impl<'a> Prefetched<'a> {
    /// Waits for the layer's input on the device.
    pub(super) fn wait(self) -> Result<SavedState<'a>, RankError> {
        Ok(match self {
            Self::Resident(held) => held,
            Self::Prefetch { input_td, wants_gradient } => {
                let input_td = input_td.wait().map_err(RankError::Activations)?;
                SavedState::Input(input_td.set_requires_grad(wants_gradient))
            }
        })
    }
}

impl<'a> SavedState<'a> {
    /// The layer's pass with its graph: the kept one, or the result of `run` on the same input.
    pub(super) fn pass(
        self,
        run: impl FnOnce(Tensor) -> Result<LayerPass<'a>, RankError>,
    ) -> Result<LayerPass<'a>, RankError> {
        match self {
            Self::Graph(pass) => Ok(pass),
            Self::Input(input_td) => run(input_td),
        }
    }
}
