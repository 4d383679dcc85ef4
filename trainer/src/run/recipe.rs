//! The interface between recipe and run: one training step on roles and data.

use rlt_core::metrics::Metrics;
use rlt_data::Pipeline;
use serde_json::Value;

use crate::roles::{Roles, StepError};

/// A training algorithm, step by step. The run calls [`Self::step`] until the training is over. It also
/// times, logs, saves and resumes, and returns the prompts of an interrupted step to the data.
pub trait Recipe {
    /// Runs one step, from the next prompts or demonstrations to updated weights. Collective.
    ///
    /// # Errors
    /// [`StepError`]; the step does not count then.
    fn step(&mut self, roles: &mut Roles, data: &mut Pipeline) -> Result<(), StepError>;

    /// Measures held-out rows other than prompts, which the run samples and scores itself. The metrics are
    /// logged below `val-core/`.
    ///
    /// # Errors
    /// [`StepError`].
    fn evaluate(&self, _roles: &mut Roles, _data: &Pipeline) -> Result<Metrics, StepError> {
        Ok(Metrics::new())
    }

    /// Returns the state of the recipe for a checkpoint, besides weights, optimizer and data positions.
    fn state(&self) -> Value {
        Value::Null
    }

    /// Restores the [`Self::state`] of a checkpoint.
    ///
    /// # Errors
    /// When the state is not this recipe's.
    fn resume(&mut self, _state: Value) -> Result<(), serde_json::Error> {
        Ok(())
    }
}

/// Recipes of a run, in the order in which they run.
pub struct Recipes {
    /// Recipe of the supervised steps before the training, see `spec.algorithm.coldStart`.
    pub cold_start: Option<Box<dyn Recipe>>,
    /// Recipe of the training itself.
    pub training: Box<dyn Recipe>,
}
