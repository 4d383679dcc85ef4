//! Supervised fine-tuning: the likelihood of demonstrated tokens is raised.

use rlt_core::batch::Batch;

use super::Recipe;
use crate::data::Data;
use crate::roles::{Roles, StepError};

/// Mean negative log-likelihood of demonstrations, one update a batch: SFT, and the cold start of other
/// trainings.
pub struct Supervised {
    /// Demonstrations of one step.
    pub batch_size: usize,
}

impl Recipe for Supervised {
    fn step(&mut self, roles: &mut Roles, data: &mut Data) -> Result<(), StepError> {
        let demonstrations = data.next_demonstrations(self.batch_size)?.ok_or(StepError::NoDemonstrations)?;
        let batch = Batch::from_demonstrations(demonstrations.iter().map(AsRef::as_ref));
        roles.actor.fit(&batch)
    }
}
