//! Explanation of a run folder: its files are read here, and a pure function explains them.

use std::fs::TryLockError;
use std::io::{self, BufReader};
use std::path::Path;

use anyhow::Context as _;
use k8s_openapi::jiff::Timestamp;
use rlt_api::symptoms::Course;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::explanation::Explanation;
use crate::measure::duration;

/// Minimum number of seconds without a step that count as unusual, however short steps are.
const PATIENCE_SECONDS: f64 = 60.0;
/// Factor of a step's duration after which the next step is considered missing.
const PATIENCE_STEPS: f64 = 10.0;

/// Maximum size of a line of the metrics, in bytes.
const MAX_LINE_BYTES: u64 = 64 << 20;

/// Input of an explanation of a local run.
#[derive(Debug, Default)]
pub(super) struct LocalRun {
    /// Path of the folder, as given.
    pub(super) name: String,
    /// Whether a process works on the run.
    pub(super) is_locked: bool,
    /// Contents of the file that a run writes when it ends in an orderly way. While a process works on the
    /// run, the file is from an earlier attempt.
    pub(super) result: Option<RunResult>,
    /// Number of finished training steps, and the time at which the last one ended, in seconds since 1970.
    pub(super) last_step: Option<(u64, f64)>,
    pub(super) course: Course,
    /// Present time, in seconds since 1970.
    pub(super) now: f64,
}

/// Fields of `result.json` that are used here.
#[derive(Debug, Deserialize)]
pub(super) struct RunResult {
    pub(super) outcome: String,
    pub(super) step: u64,
    pub(super) num_steps: u64,
    pub(super) held_out_reward_before: Option<f64>,
    pub(super) held_out_reward_after: Option<f64>,
}

/// Whether `name` is the folder of a run, or a path, and not the name of a job, which has no slash.
pub(super) fn is_run(name: &str) -> bool {
    name.contains('/') || Path::new(name).join("manifest.yaml").is_file()
}

impl LocalRun {
    /// Reads the files of a run folder.
    pub(super) fn read(name: &str) -> anyhow::Result<Self> {
        let folder = Path::new(name);
        anyhow::ensure!(
            folder.join("manifest.yaml").is_file(),
            "{name} is no run folder: it has no manifest.yaml"
        );
        let mut run = Self {
            name: name.to_owned(),
            is_locked: is_locked(&folder.join(".lock")),
            result: read_result(&folder.join("result.json"))?,
            now: Timestamp::now().as_millisecond() as f64 / 1e3,
            ..Self::default()
        };
        for_each_line(&folder.join("metrics.jsonl"), |line| run.take(line))?;
        Ok(run)
    }

    fn take(&mut self, line: &Map<String, Value>) {
        let number = |name: &str| line.get(name).and_then(Value::as_f64);
        if number("training/phase") == Some(0.0) {
            return;
        }
        self.course.push(line.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_f64()?))));
        if let (Some(step), Some(timestamp)) = (line.get("step").and_then(Value::as_u64), number("timestamp"))
        {
            self.last_step = Some((step, timestamp));
        }
    }
}

/// Whether a process holds the lock. The shared lock is taken only for a moment: a running trainer holds it
/// exclusively.
fn is_locked(lock: &Path) -> bool {
    rlt_files::open(lock).is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}

fn read_result(file: &Path) -> anyhow::Result<Option<RunResult>> {
    if !file.exists() {
        return Ok(None);
    }
    let read = || anyhow::Ok(serde_json::from_slice(&rlt_files::read(file, rlt_files::MAX_LOG_BYTES)?)?);
    Ok(Some(read().with_context(|| format!("read {}", file.display()))?))
}

/// Calls `take` with each line of a log, without a partially written last one; never if the file is missing.
/// Lines are read one by one, because the log of a long run may not fit into memory.
fn for_each_line(file: &Path, mut take: impl FnMut(&Map<String, Value>)) -> anyhow::Result<()> {
    let mut log = match rlt_files::open(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => BufReader::new(opened.with_context(|| format!("read {}", file.display()))?),
    };
    loop {
        let line = rlt_files::read_line(&mut log, MAX_LINE_BYTES);
        let line = line.with_context(|| format!("read {}", file.display()))?;
        let Some(line) = line.strip_suffix('\n') else { return Ok(()) };
        let line: Result<Map<String, Value>, _> = serde_json::from_str(line);
        take(&line.with_context(|| format!("read a line of {}", file.display()))?);
    }
}

/// Explains the state of the run, and the symptoms that its metrics show.
pub(super) fn explain(run: &LocalRun) -> Explanation {
    let said = match &run.result {
        _ if run.is_locked => working(run),
        Some(result) => ended(result),
        None => broken_off(run),
    };
    let symptoms = run.course.symptoms();
    let evidence = symptoms.iter().map(|symptom| format!("{}: it {}", symptom.kind.name(), symptom.evidence));
    let explanation = said.because(evidence);
    let changes = symptoms.iter().flat_map(|symptom| symptom.kind.changes());
    let explanation = changes.fold(explanation, |explanation, change| explanation.so(*change));
    Explanation { summary: format!("{} {}", run.name, explanation.summary), ..explanation }
}

fn working(run: &LocalRun) -> Explanation {
    let Some((step, timestamp)) = run.last_step else {
        return Explanation::new("works on its first step");
    };
    let since = (run.now - timestamp).max(0.0);
    let ago = duration(since as u64);
    let step_seconds = run.course.step_seconds().unwrap_or(since);
    if since <= PATIENCE_SECONDS.max(PATIENCE_STEPS * step_seconds) {
        return Explanation::new(format!("trains: step {step} ended {ago} ago"));
    }
    let took = format!("steps took {step_seconds:.1} s before");
    Explanation::new(format!("makes no step: step {step} ended {ago} ago")).because([took]).so(
        "end it with SIGTERM, and run it again with the same command: it resumes from its last checkpoint",
    )
}

fn ended(result: &RunResult) -> Explanation {
    let rewards = match (result.held_out_reward_before, result.held_out_reward_after) {
        (Some(before), Some(after)) => Some(format!("held-out reward {before:.3} -> {after:.3}")),
        (None, Some(after)) => Some(format!("held-out reward {after:.3}")),
        _ => None,
    };
    let RunResult { outcome, step, num_steps, .. } = result;
    if outcome == "complete" {
        return Explanation::new(format!("is complete: {step} of {num_steps} steps")).because(rewards);
    }
    Explanation::new(format!("was {outcome} after step {step} of {num_steps}"))
        .because(rewards)
        .so("run it again with the same command: it resumes from its last checkpoint")
}

fn broken_off(run: &LocalRun) -> Explanation {
    let steps =
        run.last_step.map_or("before its first step".into(), |(step, _)| format!("after step {step}"));
    Explanation::new(format!("broke off {steps}: no process works on it, and it left no result"))
        .so("read what it said last on its terminal, or in the log of whatever started it")
        .so("run it again with the same command: it resumes from its last checkpoint")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A run whose last step of two seconds ended five minutes ago.
    fn run() -> LocalRun {
        let mut run = LocalRun { name: "runs/sum".into(), now: 1000.0, ..LocalRun::default() };
        for step in 1..=20 {
            let line = serde_json::json!({
                "step": step, "training/phase": 1, "timestamp": 660.0 + 2.0 * f64::from(step), "timing_s/step": 2.0,
                "train/frac_reward_zero_std": 1.0, "critic/score/mean": 0.0, "critic/score/min": 0.0,
                "critic/score/max": 0.0, "actor/lr": null,
            });
            run.take(line.as_object().unwrap());
        }
        run
    }

    fn said(run: &LocalRun) -> String {
        explain(run).to_string()
    }

    #[test]
    fn a_run_without_progress_is_distinguished_from_one_with_it() {
        let mut run = LocalRun { is_locked: true, ..run() };
        insta::assert_snapshot!(said(&run));
        run.now = 705.0;
        assert!(said(&run).starts_with("runs/sum trains: step 20 ended 5s ago\n"), "{}", said(&run));
        run.last_step = None;
        assert!(said(&run).starts_with("runs/sum works on its first step\n"), "{}", said(&run));
    }

    #[test]
    fn an_ended_run_reports_its_result_and_one_without_was_interrupted() {
        let mut run = run();
        insta::assert_snapshot!(said(&run));
        let result = |outcome: &str| RunResult {
            outcome: outcome.into(),
            step: 20,
            num_steps: 40,
            held_out_reward_before: Some(0.25),
            held_out_reward_after: Some(0.5),
        };
        run.course = Course::default();
        run.result = Some(result("stopped by a signal"));
        insta::assert_snapshot!(said(&run));
        run.result = Some(result("complete"));
        insta::assert_snapshot!(said(&run));
    }

    #[test]
    fn a_folder_is_read_during_a_write_and_its_lock_shows_whether_a_process_works_on_it() {
        let folder = tempfile::tempdir().unwrap();
        let (name, path) = (folder.path().to_str().unwrap(), |file: &str| folder.path().join(file));
        assert!(is_run(name) && !is_run("a-job"));
        assert!(LocalRun::read(name).unwrap_err().to_string().contains("has no manifest.yaml"));
        fs::write(path("manifest.yaml"), "").unwrap();
        fs::write(path("metrics.jsonl"), "{\"step\":3,\"timestamp\":1.0}\n{\"step\":4,\"ti").unwrap();
        let lock = fs::File::create(path(".lock")).unwrap();
        lock.lock().unwrap();
        let run = LocalRun::read(name).unwrap();
        assert_eq!((run.is_locked, run.last_step), (true, Some((3, 1.0))));
        lock.unlock().unwrap();
        assert!(!LocalRun::read(name).unwrap().is_locked);
        fs::write(path("result.json"), "{").unwrap();
        assert!(format!("{:#}", LocalRun::read(name).unwrap_err()).contains("result.json"));
    }
}
