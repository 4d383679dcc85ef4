//! Warnings of a run that continues, and symptoms in its metrics. They are written to the run folder, and
//! returned for the terminal and the job's status. `rlt-api` defines the symptoms.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use rlt_api::Reason;
use rlt_api::symptoms::{Course, Symptom, SymptomKind};
use rlt_storage::run_folder::{WARNINGS, write_atomically};

use super::tracking::{Stage, StepMetrics, for_each_step};

/// Number of steps between two checks for symptoms.
const INTERVAL: usize = 10;

/// The warnings of one run.
#[derive(Debug, Default)]
pub(super) struct Warnings(RefCell<State>);

#[derive(Debug, Default)]
struct State {
    /// Run folder to which warnings are written; `None` before it is known.
    folder: Option<PathBuf>,
    /// Warnings that apply to the rest of the attempt.
    standing: Vec<String>,
    /// Warning that checkpoints cannot be saved; `None` if they can.
    unsaved: Option<String>,
    course: Course,
    symptoms: Vec<Symptom>,
}

/// Change of a run's warnings.
#[derive(Debug)]
pub(super) struct Change {
    /// Text of all warnings; empty if there are none.
    pub(super) text: String,
    /// Reasons of the warnings, in the order of the text.
    pub(super) reasons: Vec<String>,
    /// Symptoms that have just appeared.
    pub(super) new: Vec<Symptom>,
}

impl Warnings {
    /// Opens the warnings of a run in `folder`, which continues after the steps in its `metrics.jsonl`.
    /// Earlier warnings are kept.
    pub(super) fn open(self, folder: &Path) -> Self {
        let mut course = Course::default();
        // If the log cannot be read, its tracker reports the error.
        let _ = for_each_step(&folder.join("metrics.jsonl"), |step| push(&mut course, step));
        let state = State { folder: Some(folder.to_owned()), course, ..self.0.into_inner() };
        state.keep();
        Self(RefCell::new(state))
    }

    /// Adds a warning that applies from now on.
    pub(super) fn stand(&self, warning: &str) -> Change {
        let mut state = self.0.borrow_mut();
        state.standing.push(warning.to_owned());
        state.keep();
        state.change(Vec::new())
    }

    /// Sets or removes the warning that checkpoints cannot be saved.
    pub(super) fn unsaved(&self, warning: Option<&str>) -> Change {
        let mut state = self.0.borrow_mut();
        state.unsaved = warning.map(str::to_owned);
        state.keep();
        state.change(Vec::new())
    }

    /// Adds a finished step; returns the change of warnings, if any.
    pub(super) fn end_step(&self, metrics: &StepMetrics) -> Option<Change> {
        let mut state = self.0.borrow_mut();
        push(&mut state.course, metrics);
        if !state.course.num_steps().is_multiple_of(INTERVAL) {
            return None;
        }
        let found = state.course.symptoms();
        let known: Vec<SymptomKind> = state.symptoms.iter().map(|symptom| symptom.kind).collect();
        if found.iter().map(|symptom| symptom.kind).eq(known.iter().copied()) {
            return None;
        }
        let new = found.iter().filter(|symptom| !known.contains(&symptom.kind)).cloned().collect();
        state.symptoms = found;
        state.keep();
        Some(state.change(new))
    }
}

impl State {
    fn all(&self) -> Vec<&str> {
        let symptoms = self.symptoms.iter().map(|symptom| symptom.evidence.as_str());
        self.standing.iter().chain(&self.unsaved).map(String::as_str).chain(symptoms).collect()
    }

    /// Returns the text and the reasons of all warnings, with the symptoms `new`.
    fn change(&self, new: Vec<Symptom>) -> Change {
        Change { text: self.all().join("; "), reasons: self.reasons(), new }
    }

    /// Returns the reasons of all warnings, as a job's status names them. A warning of the whole attempt
    /// always has the reason that the job computes on the CPU although the machine has a GPU.
    fn reasons(&self) -> Vec<String> {
        let standing = self.standing.first().map(|_| Reason::RunsOnCpu);
        let unsaved = self.unsaved.as_ref().map(|_| Reason::CheckpointNotSaved);
        let symptoms = self.symptoms.iter().map(|symptom| Reason::Symptom(symptom.kind));
        standing.into_iter().chain(unsaved).chain(symptoms).map(Reason::name).collect()
    }

    /// Writes the warnings to the run folder. Errors are logged, because the run continues without the file.
    fn keep(&self) {
        let Some(folder) = &self.folder else { return };
        let (file, all) = (folder.join(WARNINGS), self.all());
        if all.is_empty() && !file.exists() {
            return;
        }
        let text = format!("{:#}\n", serde_json::json!(all));
        if let Err(error) = write_atomically(&file, text.as_bytes()) {
            tracing::warn!(%error, "{WARNINGS} is not written");
        }
    }
}

fn push(course: &mut Course, metrics: &StepMetrics) {
    if metrics.stage == Stage::Training {
        course.push(metrics.values.iter().map(|(name, value)| (name.as_str(), *value)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rlt_core::metrics::Metrics;

    fn step(step: u64, stage: Stage, equal: f64) -> StepMetrics {
        let values = [
            ("timing_s/step", 1.0),
            ("train/frac_reward_zero_std", equal),
            ("critic/score/mean", 0.2),
            ("critic/score/min", 0.0),
            ("critic/score/max", 1.0),
        ];
        let values: Metrics = values.map(|(name, value)| (name.to_owned(), value)).into();
        StepMetrics::new(stage, step, values)
    }

    fn stored_warnings(folder: &Path) -> Vec<String> {
        serde_json::from_str(&std::fs::read_to_string(folder.join(WARNINGS)).unwrap()).unwrap()
    }

    #[test]
    fn a_symptom_is_reported_once_and_withdrawn_when_it_is_over() {
        let folder = tempfile::tempdir().unwrap();
        let warnings = Warnings::default();
        // Devices are chosen before the run has a folder.
        let standing = warnings.stand("computes on the CPU");
        assert_eq!(
            (&*standing.text, &*standing.reasons),
            ("computes on the CPU", &["RunsOnCpu".to_owned()][..])
        );
        let warnings = warnings.open(folder.path());
        assert_eq!(stored_warnings(folder.path()), ["computes on the CPU"]);
        let until = |last: u64, equal: f64| -> Vec<Change> {
            let steps = last - 19..=last;
            steps.filter_map(|idx| warnings.end_step(&step(idx, Stage::Training, equal))).collect()
        };
        let [begun] = until(20, 1.0).try_into().unwrap();
        assert_eq!(begun.new[0].kind, SymptomKind::EqualRewards);
        assert_eq!(begun.reasons, ["RunsOnCpu", "EqualRewards"]);
        assert!(begun.text.starts_with("computes on the CPU; learns next to nothing"), "{}", begun.text);
        assert_eq!(stored_warnings(folder.path()).len(), 2);
        let failed = warnings.unsaved(Some("has lost 2 saves: the disk is full"));
        assert_eq!(failed.reasons, ["RunsOnCpu", "CheckpointNotSaved", "EqualRewards"]);
        assert_eq!(warnings.unsaved(None).text, begun.text);
        let [gone] = until(40, 0.1).try_into().unwrap();
        assert_eq!((gone.text.as_str(), gone.new.len()), ("computes on the CPU", 0));
        assert_eq!(stored_warnings(folder.path()), ["computes on the CPU"]);
    }

    #[test]
    fn a_resumed_run_counts_the_logged_steps_without_the_cold_start() {
        let folder = tempfile::tempdir().unwrap();
        let lines =
            (1..=9).map(|idx| serde_json::to_string(&step(idx, Stage::Training, 1.0)).unwrap() + "\n");
        std::fs::write(folder.path().join("metrics.jsonl"), lines.collect::<String>()).unwrap();
        let warnings = Warnings::default().open(folder.path());
        assert!(warnings.end_step(&step(10, Stage::ColdStart, 1.0)).is_none());
        assert!(warnings.end_step(&step(10, Stage::Training, 1.0)).is_some());
    }
}
