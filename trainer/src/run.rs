//! A run: everything around the algorithm, such as folder, checkpoints, trackers, stop requests and progress.
//!
//! Every rank has one, with [`crate::roles::Roles`] and [`rlt_data::Pipeline`], all built by
//! [`crate::run::setup`]. The training loop is in `train`.

pub(crate) mod best;
pub(crate) mod checkpoint_writer;
pub mod consent;
pub mod demonstration_limit;
pub mod device_failure;
pub mod error;
pub mod evaluate;
pub mod finish;
pub mod identity;
pub mod out_of_memory;
pub(crate) mod prefetch;
pub mod recipe;
pub(crate) mod saver;
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
use rlt_decoder::{BaseModel, Weights};
use rlt_parallel::Ranks;
use rlt_storage::checkpoint::RunIdentity;
use rlt_storage::run_folder::RunFolder;

use crate::observe::stop::StopReason;
use crate::roles::step_context::StepContext;
use crate::run::error::TrainError;
use crate::run::recipe::Recipes;
use crate::run::saver::Saver;

/// Progress of a run, as stored in checkpoints besides tensors and data positions.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Progress {
    /// Number of completed training steps, which is also the policy version.
    pub step: u64,
    /// Number of completed steps of the cold start.
    pub cold_start_steps: u64,
    /// Number of consecutive steps whose update was skipped.
    pub consecutive_non_finite: u32,
    /// Mean held-out reward before the first step; `None` without an evaluation.
    pub first_evaluation: Option<f64>,
    /// Mean held-out reward of the latest evaluation; `None` without one.
    pub last_evaluation: Option<f64>,
    /// Step after which the latest evaluation took place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_evaluated_step: Option<u64>,
    /// Evaluation with the highest mean held-out reward so far, the first of equal ones; the evaluation
    /// before the first step does not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_evaluation: Option<StepReward>,
    /// Training time of all attempts up to the checkpoint, in seconds.
    pub elapsed_seconds: f64,
    /// Number of prompt and completion tokens trained on so far.
    pub num_tokens: u64,
}

/// Mean held-out reward after a step.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StepReward {
    /// Number of completed steps.
    pub step: u64,
    /// Mean reward over all held-out prompts and samples.
    pub reward: f64,
}

impl Progress {
    /// Records the mean held-out reward after the present step; `None` if it was not evaluated.
    fn take_evaluation(&mut self, reward: Option<f64>) {
        (self.last_evaluation, self.last_evaluated_step) = (reward, Some(self.step));
        let Some(reward) = reward else { return };
        if self.best_evaluation.is_none_or(|best| reward > best.reward) {
            self.best_evaluation = Some(StepReward { step: self.step, reward });
        }
    }

    /// Returns the mean held-out reward after the present step; `None` if it was not evaluated.
    pub fn evaluation(&self) -> Option<f64> {
        self.last_evaluation.filter(|_| self.last_evaluated_step == Some(self.step))
    }
}

/// The run of a job on one rank.
pub struct Run {
    pub(crate) job: ValidatedJob,
    pub(crate) folder: RunFolder,
    /// Ranks that run this job together.
    pub(crate) ranks: Ranks,
    pub(crate) recipes: Recipes,
    /// Shared state of the steps, with trackers and stop requests, to which roles report.
    pub(crate) context: Rc<StepContext>,
    /// Identity of the run, which its checkpoints contain.
    pub(crate) identity: RunIdentity,
    /// Saver of checkpoints, shared with the hook that commits a checkpoint after sampling.
    pub(crate) saver: Rc<RefCell<Saver>>,
    pub(crate) progress: Progress,
    pub(crate) num_steps: u64,
    /// Warning of a run that continues; `None` without one.
    pub(crate) warning: Option<String>,
    /// Warnings about rows that are left out, cut or repeated, each as the end of a sentence that begins with
    /// "this run".
    pub(crate) data_warnings: Vec<String>,
    /// Whether a warning says that rows repeat within a step.
    pub(crate) warns_of_repeats: bool,
    /// Numbers of training rows that are left out or cut, which every step reports as metrics.
    pub(crate) data_metrics: Metrics,
    pub(crate) source: ModelOrigin,
    /// Weights before quantization, for an adapter that starts from the quantization error; `None` once no
    /// adapter needs them.
    pub(crate) unquantized: Option<Weights>,
    pub(crate) started: Instant,
}

/// Sources of a run's models.
#[derive(Clone, Debug)]
pub(crate) struct ModelOrigin {
    /// Model that the policy was initialized from; `None` for a model that exists only in this run.
    pub base: Option<BaseModel>,
    /// Dtype in which the source stores the policy.
    pub kind: tch::Kind,
    /// Commits at which the models were read from the hub.
    pub commits: Vec<ModelCommit>,
}

impl Run {
    pub(crate) fn spec(&self) -> &ResolvedSpec {
        self.job.spec()
    }

    /// Returns the reason to stop now; `None` if no rank was asked to stop. All ranks get the same answer.
    /// Collective.
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

    /// Adds a warning that rows repeat within a step, unless there is one already.
    pub(crate) fn warn_of_repeats(&mut self, warning: Option<String>) {
        let Some(warning) = warning.filter(|_| !self.warns_of_repeats) else { return };
        if self.ranks.is_leader() {
            tracing::warn!("this run {warning}");
        }
        self.data_warnings.push(warning);
        self.warns_of_repeats = true;
    }

    /// Counts a step whose updates were skipped, because a loss or gradient was not finite; any other step
    /// resets the count.
    pub(crate) fn count_skipped(&mut self, num_skipped: usize) {
        let count = &mut self.progress.consecutive_non_finite;
        *count = if num_skipped > 0 { *count + 1 } else { 0 };
    }

    /// Fails if too many consecutive steps were skipped.
    pub(crate) fn check_divergence(&self) -> Result<(), TrainError> {
        let num_steps = self.progress.consecutive_non_finite;
        if num_steps < self.spec().training.max_consecutive_non_finite {
            return Ok(());
        }
        Err(TrainError::Diverged { num_steps, last_step: self.progress.step })
    }

    /// Returns the training time of all attempts so far, in seconds.
    pub(crate) fn elapsed_seconds(&self) -> f64 {
        self.progress.elapsed_seconds + self.started.elapsed().as_secs_f64()
    }
}
