//! Summands of a micro-batch in the critic's report. They are known at once on the CPU, and on a GPU only
//! when the stream has evaluated the loss.

use std::sync::{Arc, Mutex, PoisonError};

use rlt_core::loss::LossError;
use rlt_torch::HostCallbacks;
use tch::Tensor;

use super::CriticError;
use crate::roles::actor::scaled;
use crate::roles::learner::{LearnerError, MicroBatch};

/// Sums of one micro-batch, which may still be computed in the stream.
pub(super) struct PendingSums<S> {
    calls: HostCallbacks,
    sums: Sums<S>,
}

/// Sums of a loss; `None` until it was evaluated.
type Sums<S> = Arc<Mutex<Option<Result<S, LossError>>>>;

impl<S> Default for PendingSums<S> {
    fn default() -> Self {
        Self { calls: HostCallbacks::new(), sums: Arc::default() }
    }
}

fn keep<S>(sums: &Sums<S>, evaluated: Result<(Vec<f64>, S), LossError>) -> Vec<f64> {
    let (derivatives, kept) = match evaluated {
        Ok((derivatives, counted)) => (derivatives, Ok(counted)),
        Err(error) => (Vec::new(), Err(error)),
    };
    *sums.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
    derivatives
}

impl<S: Send + 'static> PendingSums<S> {
    /// Stores an evaluated result, and returns its derivatives.
    pub(super) fn here(&mut self, derivatives: Vec<f64>, sums: S) -> Vec<f64> {
        keep(&self.sums, Ok((derivatives, sums)))
    }

    /// Makes the stream call `derivative_of` with the values of a micro-batch, f32 `[c]` on a GPU, and
    /// returns the tensor to which the derivatives are written.
    pub(super) fn in_stream(
        &mut self,
        values_c: &Tensor,
        micro_batch: &MicroBatch,
        factor: f64,
        derivative_of: impl FnOnce(&[f64]) -> Result<(Vec<f64>, S), LossError> + Send + 'static,
    ) -> Result<Tensor, rlt_torch::Error> {
        let (predicted, num_tokens) = (micro_batch.predicted.clone(), micro_batch.rows.num_tokens());
        let sums = Arc::clone(&self.sums);
        self.calls.compute(values_c, values_c.numel(), move |values, derivatives| {
            let all = keep(&sums, derivative_of(&predicted.spread(values, num_tokens)));
            if !all.is_empty() {
                derivatives.copy_from_slice(&scaled(&predicted.own(&all), factor));
            }
        })
    }

    /// Waits for the stream, if needed, and returns the sums.
    pub(super) fn finish(mut self) -> Result<S, CriticError> {
        self.calls.wait().map_err(LearnerError::from)?;
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(sums.ok_or(LearnerError::LossPanicked)??)
    }
}
