//! All observers of a run behind one interface: trackers, the progress on the terminal, the operator.
//!
//! The training loop reports events to this interface and does not depend on the observers.

use std::sync::Arc;
use std::time::Duration;

use rlt_api::spec::{MlflowSpec, TrackingSpec, TrackioSpec, WandbSpec};
use rlt_core::metrics::Metrics;
use rlt_core::types::RolloutGroup;
use rlt_storage::checkpoint::CommittedCheckpoint;
use rlt_storage::run_folder::RunFolder;
use rlt_tracking::RemoteTrackers;
use rlt_tracking::mlflow::MlflowOptions;
use rlt_tracking::trackio::TrackioOptions;
use rlt_tracking::wandb::WandbOptions;

use crate::observe::completions;
use crate::observe::status_channel::StatusChannel;
use crate::observe::tracking::console::{Console, Phase, Progress, Silent};
use crate::observe::tracking::{
    self, CompletionRecord, RunEnd, Stage, StepMetrics, Trackers, TrackersOptions,
};
use crate::observe::warnings::Warnings;

/// Maximum time that a checkpoint waits for the logs.
const LOG_SYNC_TIMEOUT: Duration = Duration::from_secs(60);

/// Trackers, progress and status channel of one run.
pub struct Observers {
    trackers: Option<Trackers>,
    prometheus: Option<tracking::Endpoint>,
    progress: Box<dyn Progress>,
    completions_per_step: usize,
    channel: Arc<StatusChannel>,
    warnings: Warnings,
}

impl Observers {
    /// Creates a value without observers, for the time before the run is set up.
    pub fn none() -> Self {
        Self {
            trackers: None,
            prometheus: None,
            progress: Box::new(Silent),
            completions_per_step: 0,
            channel: Arc::default(),
            warnings: Warnings::default(),
        }
    }

    /// Adds the status channel, so that the operator gets reports, too.
    pub fn report_to(&mut self, channel: &Arc<StatusChannel>) {
        self.channel = Arc::clone(channel);
    }

    /// Opens the job's trackers. `resumed_after` is the last finished step of the checkpoint from which the
    /// run resumes.
    pub fn open(&mut self, spec: &TrackingSpec, folder: &RunFolder, resumed_after: Option<(Stage, u64)>) {
        let remote = remote_trackers(spec);
        let mut trackers = Trackers::open(&TrackersOptions { folder: folder.root(), resumed_after, remote });
        self.progress = match Console::start() {
            Ok(console) => Box::new(console),
            Err(_) => Box::new(Silent),
        };
        if let Some(prometheus) = &spec.prometheus {
            self.serve_prometheus(&mut trackers, prometheus.port);
        }
        self.completions_per_step = spec.completions_per_step as usize;
        self.trackers = Some(trackers);
        self.warnings = std::mem::take(&mut self.warnings).open(folder.root());
    }

    fn serve_prometheus(&mut self, trackers: &mut Trackers, port: u16) {
        match tracking::serve_prometheus(port) {
            Ok((tracker, endpoint)) => {
                let address = endpoint.address();
                self.progress.message(&format!("metrics for Prometheus on http://{address}/metrics"));
                self.prometheus = Some(endpoint);
                trackers.add(tracking::PROMETHEUS, Ok(Box::new(tracker)));
            }
            Err(error) => trackers.add(tracking::PROMETHEUS, Err(error)),
        }
    }

    /// Reports that a stage of `num_steps` steps begins, of which `num_done` were finished before.
    pub fn begin_stage(&self, stage: Stage, num_done: u64, num_steps: u64) {
        self.progress.begin_stage(stage, num_done, num_steps);
        self.channel.begin_stage(stage, num_done, num_steps);
    }

    /// Reports that a phase of `total` units begins within the step.
    pub fn begin_phase(&self, phase: Phase, total: u64) {
        self.progress.begin_phase(phase, total);
        self.channel.begin_phase(phase);
    }

    /// Reports the progress of the phase since it began.
    pub fn advance(&self, num_done: u64, num_tokens: u64) {
        self.progress.advance(num_done, num_tokens);
    }

    /// Reports a finished step.
    pub fn end_step(&self, stage: Stage, step: u64, metrics: Metrics) {
        let metrics = StepMetrics::new(stage, step, metrics);
        self.progress.end_step(&metrics);
        self.channel.end_step(&metrics);
        if let Some(trackers) = &self.trackers {
            trackers.log(&metrics);
            self.report_symptoms(&metrics);
        }
    }

    /// Reports new and resolved symptoms in the step's metrics to the user and the operator.
    fn report_symptoms(&self, metrics: &StepMetrics) {
        let Some(change) = self.warnings.end_step(metrics) else { return };
        self.channel.warn(&change.text, &change.reasons);
        for symptom in change.new {
            let lines = symptom.kind.changes().iter().map(|line| format!("\n  {line}"));
            let name = symptom.kind.name();
            let changes: String = lines.collect();
            self.progress.message(&format!("warning: this run {} ({name}){changes}", symptom.evidence));
        }
    }

    /// Returns records of the completions of the first groups of a step or evaluation: full groups, until
    /// there are as many completions as are recorded.
    pub fn completion_records(
        &self,
        step: u64,
        held_out: bool,
        groups: &[RolloutGroup],
    ) -> Vec<CompletionRecord> {
        completions::of_groups(step, held_out, groups, self.completions_per_step)
    }

    /// Writes the records of completions of a step or evaluation.
    pub fn completions(&self, records: Vec<CompletionRecord>) {
        if let Some(trackers) = self.trackers.as_ref().filter(|_| !records.is_empty()) {
            trackers.completions(records);
        }
    }

    /// Reports the checkpoints that exist, oldest first.
    pub fn checkpoints(&self, committed: &[CommittedCheckpoint]) {
        self.channel.checkpoints(committed);
    }

    /// Reports a warning of a run that continues to the operator, and writes it to the run folder for the
    /// report.
    pub fn warn(&self, warning: &str) {
        let change = self.warnings.stand(warning);
        self.channel.warn(&change.text, &change.reasons);
    }

    /// Reports that checkpoints cannot be saved, or that they can again.
    pub fn unsaved(&self, warning: Option<&str>) {
        let change = self.warnings.unsaved(warning);
        self.channel.warn(&change.text, &change.reasons);
        if let Some(warning) = warning {
            self.progress.message(&format!("warning: this run {warning}"));
        }
    }

    /// Shows a message to the user.
    pub fn message(&self, text: &str) {
        self.progress.message(text);
    }

    /// Waits until the logs would survive a power loss, before a checkpoint is committed. A disk that takes
    /// the checkpoint takes the logs within the minute of the limit.
    pub fn sync(&self) {
        if let Some(trackers) = &self.trackers
            && !trackers.sync(LOG_SYNC_TIMEOUT)
        {
            tracing::warn!("the logs may lack steps of the checkpoint after a power loss");
        }
    }

    /// Flushes the trackers at the end of the run, and reports which of them have lost steps.
    pub fn finish(&mut self, end: RunEnd) {
        let Some(trackers) = self.trackers.take() else { return };
        for report in trackers.finish(end) {
            let error = report.last_error.as_deref().unwrap_or("it was too slow");
            self.progress
                .message(&format!("tracker {} lost {} records: {error}", report.name, report.num_lost));
        }
        self.prometheus = None;
        self.progress = Box::new(Silent);
    }
}

/// Returns the trackers that a job configures, besides the files that every run has.
fn remote_trackers(spec: &TrackingSpec) -> RemoteTrackers {
    let mlflow = |MlflowSpec { url, experiment, run_name }: &MlflowSpec| MlflowOptions {
        url: url.clone(),
        experiment: experiment.clone(),
        run_name: run_name.clone(),
    };
    let trackio = |TrackioSpec { url, project, run_name }: &TrackioSpec| TrackioOptions {
        url: url.clone(),
        project: project.clone(),
        run_name: run_name.clone(),
    };
    let wandb = |WandbSpec { project, entity, run_name }: &WandbSpec| WandbOptions {
        project: project.clone(),
        entity: entity.clone(),
        run_name: run_name.clone(),
    };
    RemoteTrackers {
        mlflow: spec.mlflow.as_ref().map(mlflow),
        trackio: spec.trackio.as_ref().map(trackio),
        wandb: spec.wandb.as_ref().map(wandb),
    }
}
