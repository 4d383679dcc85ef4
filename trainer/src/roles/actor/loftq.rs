//! The start of an adapter from the error of quantization. Ranks divide the modules and exchange the
//! matrices: decompositions take long, and LAPACK's signs may differ from one machine to another.

use super::Actor;
use crate::model::{ModelError, NamedTensors, Weights};
use crate::parallel::RankError;
use crate::roles::learner::Learner;

impl Actor {
    /// Gives a fresh adapter that starts from the error of quantization its matrices; `weights` are those
    /// that were quantized. Collective.
    ///
    /// # Errors
    /// [`ModelError`] when they cannot be read, [`RankError`] when a rank is lost or an offloaded parameter
    /// cannot be written.
    pub(crate) fn start_from_error<E: From<ModelError> + From<RankError>>(
        &mut self,
        weights: &Weights,
    ) -> Result<(), E> {
        let (rank, size) = (self.ranks.rank(), self.ranks.size());
        let started: NamedTensors = self.decoder.adapter_from_error(weights, |idx| idx % size == rank)?;
        let (names, matrices): (Vec<_>, Vec<_>) = started.into_iter().unzip();
        self.ranks.all_reduce_tensors(&matrices)?;
        self.trainable().overwrite(&names.into_iter().zip(matrices).collect())?;
        Ok(())
    }
}
