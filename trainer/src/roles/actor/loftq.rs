//! LoftQ: initialization of an adapter from the quantization error. Ranks divide the modules and exchange the
//! matrices, because decompositions take long, and LAPACK's signs may differ from one machine to another.

use rlt_decoder::{ModelError, NamedTensors, Weights};
use rlt_parallel::RankError;

use super::Actor;

impl Actor {
    /// Sets the matrices of a fresh adapter that starts from the quantization error of `weights`. Collective.
    ///
    /// # Errors
    /// [`ModelError`] if the weights cannot be read, [`RankError`] when a rank is lost or an offloaded
    /// parameter cannot be written.
    pub(crate) fn start_from_error<E: From<ModelError> + From<RankError>>(
        &mut self,
        weights: &Weights,
    ) -> Result<(), E> {
        let (rank, size) = (self.learner.ranks().rank(), self.learner.ranks().size());
        let started: NamedTensors =
            self.learner.decoder().adapter_from_error(weights, |idx| idx % size == rank)?;
        let (names, matrices): (Vec<_>, Vec<_>) = started.into_iter().unzip();
        self.learner.ranks().all_reduce_tensors(&matrices)?;
        self.learner.train_state().overwrite(&names.into_iter().zip(matrices).collect())?;
        Ok(())
    }
}
