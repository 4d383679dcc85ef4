//! Weights & Biases: the files of an offline run, which `wandb sync` uploads.
//!
//! ```text
//! FOLDER/offline-run-<date>_<time>-<id>/run-<id>.wandb
//! ```
//! The file is a log in blocks (`log_file`) of messages (`messages`): header, run, then a history record and
//! the summary for each step, and the exit once the run has ended. Its content is derived only from
//! `metrics.jsonl`. When a run resumes, the file is truncated after the steps that are kept, or rewritten.
//!
//! W&B has one step axis. `_step` counts the steps of the cold start, if there was one, and then those of the
//! training. Metrics of a cold start begin with `cold_start/`.

mod log_file;
mod messages;

use std::fs;
use std::path::{Path, PathBuf};

use jiff::{Timestamp, tz::TimeZone};
use messages::{HistoryStep, Item, Items, Record};
use serde_json::Value;

use crate::append_file::{AppendFile, RecordSink};
use crate::{History, RunDescription, RunEnd, Stage, StepMetrics, Tracker, TrackingError};

/// Names of a run at Weights & Biases.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WandbOptions {
    /// Name of the project; by default the job's name.
    pub project: Option<String>,
    /// Name of the team or user; by default the account that uploads the run.
    pub entity: Option<String>,
    /// Name of the run; by default the job's name.
    pub run_name: Option<String>,
}

/// Files of one offline run.
pub struct OfflineRun {
    folder: PathBuf,
    options: WandbOptions,
    run: RunDescription,
    /// Open file and position; `None` before the first step, which gives the start time of the run.
    log: Option<(AppendFile, Cursor)>,
}

/// Position in a log, from which the next record follows.
struct Cursor {
    /// Number of the last record, from 1.
    num: i64,
    started: f64,
    /// Time of the last step in seconds since 1970.
    last: f64,
    num_cold_start_steps: u64,
}

impl OfflineRun {
    /// Opens the run with all steps of `history`. An existing file of the same run in `folder` is truncated
    /// after them.
    ///
    /// # Errors
    /// [`TrackingError::File`]; the file is then unchanged.
    pub fn open(
        folder: &Path,
        options: &WandbOptions,
        run: RunDescription,
        history: &History,
    ) -> Result<Self, TrackingError> {
        let mut opened = Self { folder: folder.to_path_buf(), options: options.clone(), run, log: None };
        if let Some(first) = history.first()? {
            opened.log = Some(opened.begin(&first, history)?);
        }
        Ok(opened)
    }

    /// Opens the run as [`Self::open`] does, in a folder of its own, from which files of other runs are
    /// removed.
    ///
    /// # Errors
    /// [`TrackingError::File`].
    pub fn open_alone(
        folder: &Path,
        options: &WandbOptions,
        run: RunDescription,
        history: &History,
    ) -> Result<Self, TrackingError> {
        let opened = Self::open(folder, options, run, history)?;
        if folder.exists() {
            let kept = history.first()?.map(|first| opened.run_folder(&first));
            remove_runs_but(folder, kept.as_deref()).map_err(TrackingError::file("clean folder", folder))?;
        }
        Ok(opened)
    }

    /// Id of the run, which like W&B's own ids has eight characters.
    fn id(&self, first: &StepMetrics) -> String {
        self.run.id(first).chars().take(8).collect()
    }

    fn run_folder(&self, first: &StepMetrics) -> PathBuf {
        let date = moment(first).to_zoned(TimeZone::UTC).strftime("%Y%m%d_%H%M%S");
        self.folder.join(format!("offline-run-{date}-{}", self.id(first)))
    }

    /// Creates the file with header, run and `history`. The start time of the run is that of its first step.
    fn begin(&self, first: &StepMetrics, history: &History) -> Result<(AppendFile, Cursor), TrackingError> {
        let folder = self.run_folder(first);
        let files = folder.join("files");
        fs::create_dir_all(&files).map_err(TrackingError::file("create folder", &files))?;
        let path = folder.join(format!("run-{}.wandb", self.id(first)));
        let begun =
            || Cursor { num: 0, started: first.timestamp, last: first.timestamp, num_cold_start_steps: 0 };
        let mut cursor = begun();
        let file = AppendFile::restore(&path, |log| {
            cursor = begun();
            log_file::begin(log)?;
            cursor.write(log, Record::header())?;
            let run = self.run_record(self.id(first), moment(first));
            cursor.write(log, Record { run: Some(run), ..Record::default() })?;
            history.for_each(|metrics| cursor.write_step(log, metrics))
        })?;
        Ok((file, cursor))
    }

    fn run_record(&self, run_id: String, started: Timestamp) -> messages::Run {
        let WandbOptions { project, entity, run_name } = &self.options;
        let fields = self.run.spec.as_object().into_iter().flatten();
        let config = fields.map(|(name, value)| Item::of_config(name, value)).collect();
        messages::Run {
            run_id,
            entity: entity.clone().unwrap_or_default(),
            project: project.clone().unwrap_or_else(|| self.run.name.clone()),
            config: Some(Items { update: config }),
            display_name: run_name.clone().unwrap_or_else(|| self.run.name.clone()),
            start_time: Some(messages::Time {
                seconds: started.as_second(),
                nanos: started.subsec_nanosecond(),
            }),
        }
    }
}

/// Time at which a step finished.
fn moment(metrics: &StepMetrics) -> Timestamp {
    Timestamp::from_millisecond((metrics.timestamp * 1e3) as i64).unwrap_or_default()
}

impl Cursor {
    fn write(&mut self, log: &mut dyn RecordSink, record: Record) -> Result<(), TrackingError> {
        self.num += 1;
        log_file::append(log, &Record { num: self.num, ..record })
    }

    fn write_step(&mut self, log: &mut dyn RecordSink, metrics: &StepMetrics) -> Result<(), TrackingError> {
        self.last = metrics.timestamp;
        let step = self.step_of(metrics);
        let items = self.items(metrics, step);
        let summary = Some(Items { update: items.clone() });
        self.write(log, Record { summary, ..Record::default() })?;
        let step = Some(HistoryStep { num: step as i64 });
        self.write(
            log,
            Record { history: Some(messages::History { item: items, step }), ..Record::default() },
        )
    }

    /// Index of a step on the run's only step axis.
    fn step_of(&mut self, metrics: &StepMetrics) -> u64 {
        match metrics.stage {
            Stage::ColdStart => {
                self.num_cold_start_steps = metrics.step;
                metrics.step
            }
            Stage::Training if self.num_cold_start_steps == 0 => metrics.step,
            // The evaluation before the first step is step 0.
            Stage::Training => self.num_cold_start_steps + 1 + metrics.step,
        }
    }

    fn items(&self, metrics: &StepMetrics, step: u64) -> Vec<Item> {
        let prefix = metrics.stage.prefix();
        let finite = metrics.values.iter().filter(|(_, value)| value.is_finite());
        let item =
            |(name, value): (&String, &f64)| Item::of(&format!("{prefix}{name}"), &Value::from(*value));
        let own = [
            ("_timestamp", Value::from(metrics.timestamp)),
            ("_runtime", Value::from(metrics.timestamp - self.started)),
            ("_step", Value::from(step)),
        ];
        finite.map(item).chain(own.iter().map(|(name, value)| Item::of(name, value))).collect()
    }
}

impl Tracker for OfflineRun {
    fn log_step(&mut self, metrics: &StepMetrics) -> Result<(), TrackingError> {
        if self.log.is_none() {
            self.log = Some(self.begin(metrics, &History::default())?);
        }
        let Some((file, cursor)) = &mut self.log else { return Ok(()) };
        cursor.write_step(file, metrics)
    }

    fn sync(&mut self) -> Result<(), TrackingError> {
        self.log.as_mut().map_or(Ok(()), |(file, _)| file.sync())
    }

    fn end(&mut self, end: RunEnd) -> Result<(), TrackingError> {
        let Some((file, cursor)) = &mut self.log else { return Ok(()) };
        let exit_code = i32::from(end != RunEnd::Complete);
        let runtime = (cursor.last - cursor.started) as i32;
        let exit = Some(messages::Exit { exit_code, runtime });
        cursor.write(file, Record { exit, ..Record::default() })?;
        file.sync()
    }
}

fn remove_runs_but(folder: &Path, kept: Option<&Path>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("offline-run-") && kept != Some(&path) {
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
