//! Weights & Biases: the files of an offline run, which `wandb sync` uploads.
//!
//! ```text
//! FOLDER/offline-run-<date>_<time>-<id>/run-<id>.wandb
//! ```
//! The file is a log in blocks (`log_file`) of messages (`messages`): header, run, then a history
//! record and the summary for each step, and the exit once the run has ended. It follows from
//! `metrics.jsonl` alone: when a run resumes it is written again.
//!
//! W&B has one step axis. `_step` is the step of the training, behind those of a cold start if there was
//! one; metrics of a cold start begin with `cold_start/`.

mod log_file;
mod messages;

use std::fs;
use std::path::{Path, PathBuf};

use jiff::{Timestamp, tz::TimeZone};
use log_file::LogFile;
use messages::{HistoryStep, Item, Items, Record};
use serde_json::Value;

use crate::{RunDescription, RunEnd, Stage, StepMetrics, Tracker, TrackingError};

/// How a run is named at Weights & Biases.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WandbOptions {
    /// The project; by default the job's name.
    pub project: Option<String>,
    /// The team or user; by default that of the account that uploads.
    pub entity: Option<String>,
    /// The run's name; by default the job's.
    pub run_name: Option<String>,
}

/// The files of one offline run.
pub struct OfflineRun {
    folder: PathBuf,
    options: WandbOptions,
    run: RunDescription,
    file: Option<OpenRun>,
}

/// What is known once the first step is.
struct OpenRun {
    file: LogFile,
    /// Number of the latest record, from 1.
    num: i64,
    started: f64,
    /// Seconds since 1970 of the latest step.
    last: f64,
    num_cold_start_steps: u64,
}

impl OfflineRun {
    /// The run with all steps of `history`, replacing a file of the same run in `folder`.
    ///
    /// # Errors
    /// [`TrackingError::File`].
    pub fn open(
        folder: &Path,
        options: &WandbOptions,
        run: RunDescription,
        history: &[StepMetrics],
    ) -> Result<Self, TrackingError> {
        let mut opened = Self { folder: folder.to_path_buf(), options: options.clone(), run, file: None };
        history.iter().try_for_each(|metrics| opened.log_step(metrics))?;
        Ok(opened)
    }

    /// The same in a folder that no other run uses: files of earlier runs are removed.
    ///
    /// # Errors
    /// [`TrackingError::File`].
    pub fn open_alone(
        folder: &Path,
        options: &WandbOptions,
        run: RunDescription,
        history: &[StepMetrics],
    ) -> Result<Self, TrackingError> {
        if folder.exists() {
            remove_runs(folder).map_err(TrackingError::file("clean folder", folder))?;
        }
        Self::open(folder, options, run, history)
    }

    /// The file with header and run, once the first step says when the run began.
    fn create(&self, first: &StepMetrics) -> Result<OpenRun, TrackingError> {
        // W&B's own ids have eight characters.
        let id: String = self.run.id(first).chars().take(8).collect();
        let started = Timestamp::from_millisecond((first.timestamp * 1e3) as i64).unwrap_or_default();
        let date = started.to_zoned(TimeZone::UTC).strftime("%Y%m%d_%H%M%S");
        let folder = self.folder.join(format!("offline-run-{date}-{id}"));
        let path = folder.join(format!("run-{id}.wandb"));
        if path.exists() {
            fs::remove_file(&path).map_err(TrackingError::file("replace", &path))?;
        }
        let files = folder.join("files");
        fs::create_dir_all(&files).map_err(TrackingError::file("create folder", &files))?;
        let file = LogFile::create(&path)?;
        let mut opened = OpenRun {
            file,
            num: 0,
            started: first.timestamp,
            last: first.timestamp,
            num_cold_start_steps: 0,
        };
        opened.write(Record::header())?;
        opened.write(Record { run: Some(self.run_record(id, started)), ..Record::default() })?;
        Ok(opened)
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

impl OpenRun {
    fn write(&mut self, record: Record) -> Result<(), TrackingError> {
        self.num += 1;
        self.file.append(&Record { num: self.num, ..record })
    }

    /// Position of a step on the run's one axis.
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
        if self.file.is_none() {
            self.file = Some(self.create(metrics)?);
        }
        let Some(run) = &mut self.file else { return Ok(()) };
        run.last = metrics.timestamp;
        let step = run.step_of(metrics);
        let items = run.items(metrics, step);
        let summary = Some(Items { update: items.clone() });
        run.write(Record { summary, ..Record::default() })?;
        let step = Some(HistoryStep { num: step as i64 });
        run.write(Record { history: Some(messages::History { item: items, step }), ..Record::default() })
    }

    fn sync(&mut self) -> Result<(), TrackingError> {
        self.file.as_mut().map_or(Ok(()), |run| run.file.sync())
    }

    fn end(&mut self, end: RunEnd) -> Result<(), TrackingError> {
        let Some(run) = &mut self.file else { return Ok(()) };
        let exit_code = i32::from(end != RunEnd::Complete);
        let runtime = (run.last - run.started) as i32;
        run.write(Record { exit: Some(messages::Exit { exit_code, runtime }), ..Record::default() })?;
        run.file.sync()
    }
}

fn remove_runs(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("offline-run-") {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
