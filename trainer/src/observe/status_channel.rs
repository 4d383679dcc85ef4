//! Reports of a run to the operator: progress, metrics, checkpoints and the end of the run.
//!
//! Events of the training update one state, which [`rlt_channel::client`] sends. Outside of a cluster all
//! calls do nothing. No call blocks or fails.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rlt_api::ExitCode;
use rlt_channel::client::{Client, Settings, Urgency};
use rlt_channel::{
    Checkpoint, Ending, ModelCommit, Outcome, Phase, Progress, ReportRequest, Stage, TimeSpent, environment,
};
use rlt_storage::checkpoint::CommittedCheckpoint;

use crate::observe::tracking::{self, StepMetrics, console};

/// Maximum time that the end of a process waits for the operator to receive the last report.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// Connection to the operator; without a cluster it does nothing.
#[derive(Debug, Default)]
pub struct StatusChannel {
    client: Option<Client>,
    pace: Mutex<Pace>,
}

/// Steps and times from which the remaining time is estimated.
#[derive(Debug)]
struct Pace {
    process_started: Instant,
    stage_started: Instant,
    steps_at_stage_start: u64,
    has_stepped: bool,
}

impl Default for Pace {
    fn default() -> Self {
        let now = Instant::now();
        Self { process_started: now, stage_started: now, steps_at_stage_start: 0, has_stepped: false }
    }
}

impl StatusChannel {
    /// Creates the channel that this process's environment describes. A channel that cannot be created is
    /// logged as a warning and does not end the run.
    pub fn from_environment() -> Self {
        let settings = Settings::from_environment(|name| std::env::var(name).ok());
        let client = match settings {
            Ok(settings) => settings.and_then(|settings| {
                let started = Client::start(settings);
                started
                    .inspect_err(|error| tracing::warn!(%error, "nothing is reported to the operator"))
                    .ok()
            }),
            Err(error) => {
                tracing::warn!(%error, "this process does not report to the operator");
                None
            }
        };
        let channel = Self { client, pace: Mutex::default() };
        channel.change(Urgency::AtOnce, |report| {
            report.restarts = restarts_before();
            report.progress.get_or_insert_default().set_phase(Phase::Setup);
        });
        channel
    }

    /// Reports that a stage of `num_steps` steps begins, of which `num_done` were finished before.
    pub(crate) fn begin_stage(&self, stage: tracking::Stage, num_done: u64, num_steps: u64) {
        let setup_seconds = {
            let mut pace = self.pace();
            pace.stage_started = Instant::now();
            pace.steps_at_stage_start = num_done;
            pace.process_started.elapsed().as_secs_f64()
        };
        self.change(Urgency::AtOnce, |report| {
            let progress = report.progress.get_or_insert_default();
            progress.set_stage(stage_of(stage));
            (progress.step, progress.num_steps) = (num_done, num_steps);
            let time_spent = progress.time_spent.get_or_insert_default();
            if time_spent.setup_seconds == 0.0 {
                time_spent.setup_seconds = setup_seconds;
                time_spent.resumed_after_step = num_done;
            }
        });
    }

    /// Whether there is an operator to which this process reports.
    pub(crate) fn has_operator(&self) -> bool {
        self.client.is_some()
    }

    /// Reports a result of `num_steps` steps that an earlier process has left, with the values of its last
    /// steps. The operator sees that this process has finished none of them.
    pub(crate) fn report_result(&self, num_steps: u64, last_steps: &[StepMetrics]) {
        self.change(Urgency::AtOnce, |report| take_result(report, num_steps, last_steps));
    }

    /// Reports the warnings of a run that continues, with the reason of each.
    pub(crate) fn warn(&self, warning: &str, reasons: &[String]) {
        self.change(Urgency::AtOnce, |report| {
            let progress = report.progress.get_or_insert_default();
            warning.clone_into(&mut progress.warning);
            progress.warning_reasons = reasons.to_vec();
        });
    }

    /// Reports the commits at which models from the hub were read.
    pub(crate) fn report_commits(&self, commits: &[ModelCommit]) {
        self.change(Urgency::Routine, |report| report.commits = commits.to_vec());
    }

    /// Reports that another phase begins.
    pub(crate) fn begin_phase(&self, phase: console::Phase) {
        self.change(Urgency::Routine, |report| {
            report.progress.get_or_insert_default().set_phase(phase_of(phase));
        });
    }

    /// Reports a finished step. The first one of a process is sent at once, because it shows that the start
    /// has succeeded.
    pub(crate) fn end_step(&self, metrics: &StepMetrics) {
        let (urgency, process_seconds, remaining_seconds) = {
            let mut pace = self.pace();
            let urgency = if pace.has_stepped { Urgency::Routine } else { Urgency::AtOnce };
            pace.has_stepped = true;
            let num_steps_here = metrics.step.saturating_sub(pace.steps_at_stage_start);
            let seconds_here = pace.stage_started.elapsed().as_secs_f64();
            let seconds_per_step = (num_steps_here > 0).then(|| seconds_here / num_steps_here as f64);
            (urgency, pace.process_started.elapsed().as_secs_f64(), seconds_per_step)
        };
        self.change(urgency, |report| {
            report.metrics = values_of(metrics);
            let progress = report.progress.get_or_insert_default();
            take_step(progress, metrics);
            let num_missing = progress.num_steps.saturating_sub(progress.step);
            progress.remaining_seconds = remaining_seconds.map(|seconds| seconds * num_missing as f64);
            progress.time_spent.get_or_insert_default().process_seconds = process_seconds;
        });
    }

    /// Reports the checkpoints that exist, oldest first.
    pub(crate) fn checkpoints(&self, committed: &[CommittedCheckpoint]) {
        self.change(Urgency::AtOnce, |report| {
            report.knows_checkpoints = true;
            report.checkpoints = committed.iter().map(checkpoint).collect();
            if let Some(latest) = report.checkpoints.last_mut() {
                latest.is_latest = true;
            }
        });
    }

    /// Returns the termination message of a run that has finished all steps, with the last report of rank 0:
    /// the operator may not run when the process ends. `None` for other ranks and outside of a cluster.
    pub(crate) fn termination_message(&self) -> Option<String> {
        let report = self.client.as_ref()?.newest();
        let is_first = report.source.as_ref().is_some_and(|source| source.rank == 0);
        is_first.then(|| rlt_channel::termination::message(&report))
    }

    /// Reports the exit code of the process, and the causes of a failure; waits briefly until the operator
    /// has received it.
    pub(crate) fn finish(&self, outcome: Result<ExitCode, (ExitCode, String)>) {
        let Some(client) = &self.client else { return };
        if !client.finish(ending(outcome), FINISH_TIMEOUT) {
            tracing::warn!("the end of this process was not reported to the operator");
        }
    }

    fn change(&self, urgency: Urgency, change: impl FnOnce(&mut ReportRequest)) {
        if let Some(client) = &self.client {
            client.update(urgency, change);
        }
    }

    fn pace(&self) -> std::sync::MutexGuard<'_, Pace> {
        self.pace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the number of restarts in place before this process started, by cause, as counted by its launcher.
fn restarts_before() -> HashMap<String, u32> {
    let text = std::env::var(environment::RESTARTS).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

/// Updates the progress from the metrics of a step. Values that the step does not have, such as the held-out
/// reward, are kept.
fn take_step(progress: &mut Progress, metrics: &StepMetrics) {
    let value = |names: &[&str]| names.iter().find_map(|name| metrics.values.get(*name)).copied();
    progress.set_stage(stage_of(metrics.stage));
    progress.step = metrics.step;
    progress.step_finished_ms = Some((metrics.timestamp * 1000.0) as i64);
    progress.reward = value(&["critic/rewards/mean"]).or(progress.reward);
    progress.held_out_reward = value(&["val-core/reward/mean"]).or(progress.held_out_reward);
    progress.kl = value(&["actor/kl_loss", "actor/reward_kl_penalty"]).or(progress.kl);
    progress.tokens_per_second = value(&["perf/throughput"]).or(progress.tokens_per_second);
    let seconds = |name| value(&[name]).unwrap_or(0.0);
    let time_spent: &mut TimeSpent = progress.time_spent.get_or_insert_default();
    time_spent.step_seconds += seconds("timing_s/step");
    time_spent.evaluation_seconds += seconds("timing_s/testing");
    time_spent.checkpoint_seconds += seconds("timing_s/save_checkpoint");
}

/// Sets a report to the result of an earlier process. The time of its steps is not that of this process.
fn take_result(report: &mut ReportRequest, num_steps: u64, last_steps: &[StepMetrics]) {
    let progress = report.progress.get_or_insert_default();
    last_steps.iter().for_each(|metrics| take_step(progress, metrics));
    progress.set_stage(Stage::Training);
    (progress.step, progress.num_steps) = (num_steps, num_steps);
    progress.time_spent = Some(TimeSpent { resumed_after_step: num_steps, ..TimeSpent::default() });
    report.metrics = last_steps.last().map(values_of).unwrap_or_default();
}

fn values_of(metrics: &StepMetrics) -> HashMap<String, f64> {
    metrics.values.iter().map(|(name, value)| (name.clone(), *value)).collect()
}

fn checkpoint(committed: &CommittedCheckpoint) -> Checkpoint {
    Checkpoint {
        step: committed.step,
        path: committed.path.display().to_string(),
        digest: committed.digest.clone(),
        world_size: committed.num_shards,
        committed_ms: milliseconds(committed.time),
        is_latest: false,
    }
}

fn ending(outcome: Result<ExitCode, (ExitCode, String)>) -> Ending {
    let (kind, code, message) = match outcome {
        Ok(code @ ExitCode::Success) => (Outcome::Complete, code, String::new()),
        Ok(code) => (Outcome::Stopped, code, String::new()),
        Err((code, causes)) => (Outcome::Failed, code, causes),
    };
    let time_ms = milliseconds(SystemTime::now());
    Ending { outcome: kind.into(), exit_code: code.code().into(), message, time_ms }
}

fn milliseconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn stage_of(stage: tracking::Stage) -> Stage {
    match stage {
        tracking::Stage::ColdStart => Stage::ColdStart,
        tracking::Stage::Training => Stage::Training,
    }
}

fn phase_of(phase: console::Phase) -> Phase {
    match phase {
        console::Phase::Rollout => Phase::Rollout,
        console::Phase::Reward => Phase::Reward,
        console::Phase::LogProbs => Phase::LogProbs,
        console::Phase::Update => Phase::Update,
        console::Phase::Evaluation => Phase::Evaluation,
        console::Phase::Saving => Phase::Saving,
    }
}

#[cfg(test)]
mod tests;
