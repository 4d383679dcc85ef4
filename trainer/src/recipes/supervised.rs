//! Supervised fine-tuning: raises the likelihood of demonstrated tokens.

use rlt_core::batch::Batch;
use rlt_data::Pipeline;

use super::Recipe;
use crate::roles::{Roles, StepError};

/// Supervised fine-tuning (SFT) on the mean negative log-likelihood of demonstrations, with one update per
/// batch. Also the cold start of other trainings.
pub struct Supervised {
    /// Number of demonstrations per step.
    pub batch_size: usize,
}

impl Recipe for Supervised {
    fn step(&mut self, roles: &mut Roles, data: &mut Pipeline) -> Result<(), StepError> {
        let demonstrations = data.next_demonstrations(self.batch_size)?.ok_or(StepError::NoDemonstrations)?;
        let batch = Batch::from_demonstrations(demonstrations.iter().map(AsRef::as_ref));
        roles.actor.update_supervised(&batch)
    }
}
