//! The interface between recipe and run: one step of a training on roles and data.

use rlt_core::metrics::Metrics;
use serde_json::Value;

use crate::data::Data;
use crate::roles::{Roles, StepError};

/// An algorithm. The run calls [`Self::step`] until the training is over; it times, logs, saves and resumes
/// around it, and takes prompts back from a step that was interrupted.
pub trait Recipe {
    /// One step: from the next prompts or demonstrations to changed weights. Every rank runs it.
    ///
    /// # Errors
    /// [`StepError`]; the step does not count then.
    fn step(&mut self, roles: &mut Roles, data: &mut Data) -> Result<(), StepError>;

    /// Measures held-out rows other than prompts, which the run samples and judges itself. Metrics are logged
    /// below `val-core/`.
    ///
    /// # Errors
    /// [`StepError`].
    fn evaluate(&self, _roles: &mut Roles, _data: &Data) -> Result<Metrics, StepError> {
        Ok(Metrics::new())
    }

    /// The recipe's state beside weights, optimizer and data positions; saved in checkpoints.
    fn state(&self) -> Value {
        Value::Null
    }

    /// Continues with the [`Self::state`] of a checkpoint.
    ///
    /// # Errors
    /// When the state is not this recipe's.
    fn resume(&mut self, _state: Value) -> Result<(), serde_json::Error> {
        Ok(())
    }
}

/// The recipes of a run.
pub struct Recipes {
    /// Supervised steps before the training, see `spec.algorithm.coldStart`.
    pub cold_start: Option<Box<dyn Recipe>>,
    /// The training itself.
    pub training: Box<dyn Recipe>,
}
