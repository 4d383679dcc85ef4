//! The run: everything around the algorithm. Folder, checkpoints, trackers, stop requests, and progress.
//!
//! Built once by [`crate::run::setup`]; every rank has one, beside [`crate::roles::Roles`] and
//! [`crate::data::Data`]. The loop is in `train`.

pub(crate) mod best;
pub mod consent;
pub mod device_failure;
pub mod error;
pub mod evaluate;
pub mod finish;
pub mod identity;
pub mod out_of_memory;
pub(crate) mod prefetch;
pub mod recipe;
pub(crate) mod saver;
pub(crate) mod saving;
pub mod setup;
pub mod state;
pub mod train;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use rlt_api::ValidatedJob;
use rlt_api::resolved::ResolvedSpec;
use rlt_channel::ModelCommit;
use rlt_core::metrics::Metrics;

use crate::model::{BaseModel, Weights};
use crate::observe::stop::StopReason;
use crate::parallel::Ranks;
use crate::roles::step_context::StepContext;
use crate::run::error::TrainError;
use crate::run::recipe::Recipes;
use crate::run::saver::Saver;
use crate::storage::checkpoint::RunIdentity;
use crate::storage::run_folder::RunFolder;

/// The progress of a run: what a checkpoint has besides tensors and the data's position.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Progress {
    /// Steps that are complete; also the policy's version.
    pub step: u64,
    /// Supervised steps that are complete.
    pub cold_start_steps: u64,
    /// Steps in a row whose update was skipped.
    pub consecutive_non_finite: u32,
    /// Mean held-out reward before the first step.
    pub first_evaluation: Option<f64>,
    /// Mean held-out reward of the latest evaluation.
    pub last_evaluation: Option<f64>,
    /// The step after which that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_evaluated_step: Option<u64>,
    /// The evaluation with the highest mean held-out reward so far, the first of equal ones; the one before
    /// the first step does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_evaluation: Option<StepReward>,
    /// Seconds of training in all attempts, up to the checkpoint.
    pub elapsed_seconds: f64,
    /// Completion and prompt tokens trained on so far.
    pub num_tokens: u64,
}

/// The mean held-out reward after a step.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StepReward {
    /// Number of complete steps.
    pub step: u64,
    /// Mean over held-out prompts and samples.
    pub reward: f64,
}

impl Progress {
    /// Takes note of the mean held-out reward after the present step.
    fn take_evaluation(&mut self, reward: Option<f64>) {
        (self.last_evaluation, self.last_evaluated_step) = (reward, Some(self.step));
        let Some(reward) = reward else { return };
        if self.best_evaluation.is_none_or(|best| reward > best.reward) {
            self.best_evaluation = Some(StepReward { step: self.step, reward });
        }
    }

    /// The mean held-out reward after the present step, where it was evaluated.
    pub fn evaluation(&self) -> Option<f64> {
        self.last_evaluation.filter(|_| self.last_evaluated_step == Some(self.step))
    }
}

/// One rank's run of a job.
pub struct Run {
    pub(crate) job: ValidatedJob,
    pub(crate) folder: RunFolder,
    /// The ranks that run this job together.
    pub(crate) ranks: Ranks,
    pub(crate) recipes: Recipes,
    /// The context to which roles report, with trackers and stop requests.
    pub(crate) context: Rc<StepContext>,
    /// The identity that its checkpoints carry.
    pub(crate) identity: RunIdentity,
    /// Shared with the hook that commits a checkpoint after sampling.
    pub(crate) saver: Rc<RefCell<Saver>>,
    pub(crate) progress: Progress,
    pub(crate) num_steps: u64,
    /// A warning of a run that continues.
    pub(crate) warning: Option<String>,
    /// Warnings about rows that are left out, cut or repeated; each follows the words "this run".
    pub(crate) data_warnings: Vec<String>,
    /// Numbers of training rows that are left out or cut, which every step reports.
    pub(crate) data_metrics: Metrics,
    pub(crate) source: ModelOrigin,
    /// The weights from whose quantization error a fresh adapter starts, until it is known whether there is a
    /// checkpoint instead.
    pub(crate) unquantized: Option<Weights>,
    pub(crate) started: Instant,
}

/// The sources of the models.
#[derive(Clone, Debug)]
pub(crate) struct ModelOrigin {
    /// The model that the policy started from; `None` for one that exists nowhere else.
    pub base: Option<BaseModel>,
    /// Dtype in which the policy was stored there.
    pub kind: tch::Kind,
    /// The commits at which the models from the hub were read.
    pub commits: Vec<ModelCommit>,
}

impl Run {
    pub(crate) fn spec(&self) -> &ResolvedSpec {
        self.job.spec()
    }

    /// Whether to stop now, and why: as soon as one rank was asked to, all agree.
    pub(crate) fn stop_reason(&self) -> Result<Option<StopReason>, TrainError> {
        let own = match self.context.stop_reason() {
            None => 0,
            Some(StopReason::Deadline) => 1,
            Some(StopReason::Signal) => 2,
        };
        Ok(match self.ranks.all_reduce_max(own)? {
            0 => None,
            1 => Some(StopReason::Deadline),
            _ => Some(StopReason::Signal),
        })
    }

    /// Takes note of updates that were skipped for a loss or gradient that was not finite.
    pub(crate) fn count_skipped(&mut self, num_skipped: usize) {
        let count = &mut self.progress.consecutive_non_finite;
        *count = if num_skipped > 0 { *count + 1 } else { 0 };
    }

    /// Fails once too many steps in a row were skipped.
    pub(crate) fn check_divergence(&self) -> Result<(), TrainError> {
        let num_steps = self.progress.consecutive_non_finite;
        if num_steps < self.spec().training.max_consecutive_non_finite {
            return Ok(());
        }
        Err(TrainError::Diverged { num_steps, last_step: self.progress.step })
    }

    /// Seconds of training in all attempts until now.
    pub(crate) fn elapsed_seconds(&self) -> f64 {
        self.progress.elapsed_seconds + self.started.elapsed().as_secs_f64()
    }
}
