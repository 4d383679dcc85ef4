//! Every step is exactly once in the logs, and no tracker can delay or end the training.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use super::append_file::RecordSink as _;
use super::*;

/// Longest that a test waits for files, and for another thread; milliseconds on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(100);

fn options(folder: &Path, resumed_after: Option<(Stage, u64)>) -> TrackersOptions<'_> {
    TrackersOptions { folder, resumed_after, remote: RemoteTrackers::default() }
}

fn step(stage: Stage, step: u64, reward: f64) -> StepMetrics {
    StepMetrics::new(stage, step, BTreeMap::from([("critic/rewards/mean".to_owned(), reward)]))
}

fn completion(step: u64) -> CompletionRecord {
    let tokens = vec![step as u32; 2];
    CompletionRecord {
        step,
        token_ids: tokens,
        rollout_logprobs: vec![-0.1; 2],
        ..CompletionRecord::default()
    }
}

fn positions(folder: &Path) -> Vec<(Stage, u64)> {
    let text = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let parse = |line: &str| serde_json::from_str::<StepMetrics>(line).unwrap().position();
    text.lines().map(parse).collect()
}

fn events(folder: &Path) -> Vec<(String, u64, f32)> {
    let entry = fs::read_dir(folder.join("events")).unwrap().next().unwrap().unwrap();
    tensorboard::tests::read_scalars(&fs::read(entry.path()).unwrap())
}

/// Logs steps and completions of the training, ends without `finish`, as a kill would after a sync.
fn run(folder: &Path, resumed_after: Option<(Stage, u64)>, steps: std::ops::RangeInclusive<u64>) {
    let trackers = Trackers::open(&options(folder, resumed_after));
    for idx in steps {
        trackers.log(&step(Stage::Training, idx, idx as f64));
        trackers.completions(vec![completion(idx), completion(idx)]);
    }
    assert!(trackers.sync(PATIENCE));
}

#[test]
fn a_resumed_run_has_every_step_exactly_once() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), None, 0..=7);
    run(dir.path(), Some((Stage::Training, 5)), 6..=9);
    let expected: Vec<_> = (0..=9).map(|step| (Stage::Training, step)).collect();
    assert_eq!(positions(dir.path()), expected);
    let steps: Vec<u64> = events(dir.path()).iter().map(|(_, step, _)| *step).collect();
    assert_eq!(steps, (0..=9).collect::<Vec<_>>());
    let (path, mut steps) = (dir.path().join("completions.jsonl"), Vec::new());
    for_each_completion(&path, |completion| steps.push(completion.step)).unwrap();
    assert_eq!(steps, (0..=9).flat_map(|step| [step, step]).collect::<Vec<_>>());
}

#[test]
fn a_torn_last_line_is_dropped_on_resume() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), None, 1..=3);
    let path = dir.path().join("metrics.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 10]).unwrap();
    run(dir.path(), Some((Stage::Training, 3)), 4..=4);
    let steps: Vec<u64> = positions(dir.path()).into_iter().map(|(_, step)| step).collect();
    assert_eq!(steps, [1, 2, 4], "step 3 was never whole");
}

#[test]
fn a_fresh_run_forgets_the_folder_s_past() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), None, 1..=3);
    run(dir.path(), None, 1..=1);
    assert_eq!(positions(dir.path()), [(Stage::Training, 1)]);
}

#[test]
fn cold_start_and_training_count_their_steps_separately() {
    let dir = tempfile::tempdir().unwrap();
    let trackers = Trackers::open(&options(dir.path(), None));
    trackers.log(&step(Stage::ColdStart, 1, 0.0));
    trackers.log(&step(Stage::ColdStart, 2, 0.0));
    trackers.log(&step(Stage::Training, 1, 0.0));
    trackers.sync(PATIENCE);
    drop(Trackers::open(&options(dir.path(), Some((Stage::ColdStart, 1)))));
    assert_eq!(positions(dir.path()), [(Stage::ColdStart, 1)]);
}

#[test]
fn a_line_is_one_flat_object_with_null_for_what_is_not_finite() {
    let values = BTreeMap::from([("actor/kl_loss".to_owned(), f64::NAN), ("actor/lr".to_owned(), 1e-6)]);
    let metrics = StepMetrics { stage: Stage::ColdStart, step: 3, timestamp: 1.5, values };
    let line = serde_json::to_string(&metrics).unwrap();
    assert_eq!(line, r#"{"step":3,"training/phase":0,"timestamp":1.5,"actor/kl_loss":null,"actor/lr":1e-6}"#);
    let back: StepMetrics = serde_json::from_str(&line).unwrap();
    assert_eq!(back.position(), (Stage::ColdStart, 3));
    assert_eq!(back.values, BTreeMap::from([("actor/lr".to_owned(), 1e-6)]));
}

/// Hangs in its first call, as a server may, until the test ends.
struct Hanging(Receiver<()>);

impl Tracker for Hanging {
    fn log_step(&mut self, _metrics: &StepMetrics) -> Result<(), TrackingError> {
        // Receiving fails when the test has ended.
        let _ = self.0.recv();
        Ok(())
    }

    fn takes_completions(&self) -> bool {
        true
    }

    fn log_completions(&mut self, _completions: &[CompletionRecord]) -> Result<(), TrackingError> {
        let _ = self.0.recv();
        Ok(())
    }

    fn is_file(&self) -> bool {
        false
    }
}

#[test]
fn a_hanging_tracker_delays_no_other_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut trackers = Trackers::open(&options(dir.path(), None));
    let (_until_the_end, hanging) = channel();
    trackers.add("hanging", Ok(Box::new(Hanging(hanging))));
    // The calls run on a separate thread, because one that waited for the hanging tracker would never return.
    let (logged, is_logged) = channel();
    std::thread::spawn(move || {
        for idx in 0..1000 {
            trackers.log(&step(Stage::Training, idx, 0.0));
            // The test has more steps than the queues of the other trackers hold, so it syncs in between. A
            // sync waits only for trackers that are files.
            assert!(idx % 100 > 0 || trackers.sync(PATIENCE));
        }
        logged.send(trackers).unwrap();
    });
    let trackers = is_logged.recv_timeout(PATIENCE).expect("a call waits for the hanging tracker");
    let reports: Vec<_> =
        trackers.lanes.iter().map(lane::Lane::report).filter(TrackerReport::has_losses).collect();
    assert_eq!(reports.len(), 1, "{reports:?}");
    assert_eq!(reports[0].name, "hanging");
    assert!(reports[0].num_lost >= 700, "{reports:?}");
    assert!(trackers.sync(PATIENCE));
    assert_eq!(positions(dir.path()).len(), 1000);
}

#[test]
fn a_tracker_that_is_still_busy_at_the_end_is_named_though_it_lost_nothing() {
    let mut trackers = Trackers::default();
    let (_until_the_end, hanging) = channel();
    trackers.add("hanging", Ok(Box::new(Hanging(hanging))));
    trackers.log(&step(Stage::Training, 1, 0.0));
    let reports = trackers.finish_within(Duration::ZERO, RunEnd::Complete);
    let error = Some("it was still busy 0 s after the end of the run".to_owned());
    assert_eq!(reports, [TrackerReport { name: "hanging", num_lost: 0, last_error: error }]);
}

/// A hundred long completions are far fewer than the number of items that the queue holds.
#[test]
fn completions_of_more_bytes_than_may_wait_for_a_slow_tracker_are_left_out_and_counted() {
    let mut trackers = Trackers::default();
    let (_until_the_end, hanging) = channel();
    trackers.add("hanging", Ok(Box::new(Hanging(hanging))));
    let long = CompletionRecord { completion: "x".repeat(1 << 20), ..completion(1) };
    for _ in 0..100 {
        trackers.completions(vec![long.clone()]);
    }
    // 63 of them are less than 64 MiB, 64 are more.
    assert_eq!(trackers.lanes[0].report().num_lost, 37);
}

#[test]
fn completions_at_both_ends_of_a_long_log_are_read_and_those_of_a_short_one_each_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("completions.jsonl");
    let lines: Vec<String> =
        (1..=50).map(|step| serde_json::to_string(&completion(step)).unwrap() + "\n").collect();
    let text = lines.concat();
    let longest = lines.iter().map(String::len).max().unwrap();
    fs::write(&path, &text).unwrap();
    let steps = |max_bytes: usize| {
        let mut steps = Vec::new();
        for_each_completion_at_ends(&path, max_bytes as u64, |record| steps.push(record.step)).unwrap();
        steps
    };
    let all: Vec<u64> = (1..=50).collect();
    for max_bytes in [text.len(), text.len() + 1, 3 * text.len()] {
        assert_eq!(steps(max_bytes), all, "{max_bytes} bytes");
    }
    for max_bytes in 4 * longest..8 * longest {
        let steps = steps(max_bytes);
        let num_first = steps.windows(2).position(|pair| pair[1] != pair[0] + 1).unwrap() + 1;
        let (first, last) = steps.split_at(num_first);
        assert_eq!((first, last), (&all[..first.len()], &all[all.len() - last.len()..]), "{max_bytes} bytes");
        let num_bytes: usize = steps.iter().map(|step| lines[*step as usize - 1].len()).sum();
        assert!(num_bytes <= max_bytes + longest, "{num_bytes} of {max_bytes} bytes");
    }
    fs::remove_file(&path).unwrap();
    assert!(steps(100).is_empty());
}

#[test]
fn a_full_disk_loses_nothing_once_it_is_cleaned() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = AppendFileUnderTest::new(dir.path());
    log.append("one\n").unwrap();
    log.fill_disk();
    let error = log.append("two\n").unwrap_err();
    assert!(error_chain(&error).contains("append to"), "{}", error_chain(&error));
    log.clean_disk();
    log.append("three\n").unwrap();
    assert_eq!(fs::read_to_string(&log.path).unwrap(), "one\ntwo\nthree\n");
}

/// The paths and inodes of all files below a folder.
fn inodes(folder: &Path) -> BTreeMap<PathBuf, u64> {
    use std::os::unix::fs::MetadataExt as _;
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(inodes(&path)),
            false => drop(found.insert(path.clone(), fs::metadata(&path).unwrap().ino())),
        }
    }
    found
}

/// A full disk leaves no room for a second copy of any log.
#[test]
fn a_resume_cuts_every_log_in_place() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("manifest.yaml"), "metadata: {name: job}\nspec: {training: {steps: 9}}")
        .unwrap();
    let run = |resumed_after, steps: std::ops::RangeInclusive<u64>| {
        let remote = RemoteTrackers { wandb: Some(wandb::WandbOptions::default()), ..Default::default() };
        let trackers = Trackers::open(&TrackersOptions { remote, ..options(dir.path(), resumed_after) });
        for idx in steps {
            trackers.log(&step(Stage::Training, idx, 1.0 / (idx + 3) as f64));
            trackers.completions(vec![completion(idx), completion(idx)]);
        }
        let reports = trackers.finish_within(PATIENCE, RunEnd::Stopped);
        assert!(reports.is_empty(), "{reports:?}");
    };
    run(None, 1..=7);
    let before = inodes(dir.path());
    assert_eq!(before.len(), 5, "{before:?}");
    run(Some((Stage::Training, 5)), 6..=9);
    assert_eq!(inodes(dir.path()), before);
    assert_eq!(positions(dir.path()), (1..=9).map(|step| (Stage::Training, step)).collect::<Vec<_>>());
    let steps: Vec<u64> = events(dir.path()).iter().map(|(_, step, _)| *step).collect();
    assert_eq!(steps, (1..=9).collect::<Vec<_>>());
}

#[test]
fn a_log_that_cannot_be_opened_for_a_moment_loses_nothing_and_no_tracker_begins_anew() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), None, 1..=5);
    let before = inodes(dir.path());
    // A folder stands where the log should be.
    let (log, aside) = (dir.path().join("metrics.jsonl"), dir.path().join("aside"));
    fs::rename(&log, &aside).unwrap();
    fs::create_dir(&log).unwrap();
    let trackers = Trackers::open(&options(dir.path(), Some((Stage::Training, 4))));
    trackers.log(&step(Stage::Training, 5, 0.5));
    assert!(!trackers.sync(PATIENCE));
    fs::remove_dir(&log).unwrap();
    fs::rename(&aside, &log).unwrap();
    trackers.log(&step(Stage::Training, 6, 0.5));
    assert!(trackers.sync(PATIENCE));
    assert_eq!(trackers.finish(RunEnd::Complete).iter().map(|report| report.num_lost).sum::<u64>(), 0);
    assert_eq!(inodes(dir.path()), before);
    assert_eq!(positions(dir.path()), (1..=6).map(|step| (Stage::Training, step)).collect::<Vec<_>>());
    let steps: Vec<u64> = events(dir.path()).iter().map(|(_, step, _)| *step).collect();
    assert_eq!(steps, [1, 2, 3, 4, 5, 6]);
}

#[test]
fn records_lost_by_a_log_that_is_never_opened_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("metrics.jsonl")).unwrap();
    let trackers = Trackers::open(&options(dir.path(), None));
    for idx in 0..1500 {
        trackers.log(&step(Stage::Training, idx, 0.0));
        assert!(idx % 100 > 0 || !trackers.sync(PATIENCE));
    }
    let reports = trackers.finish(RunEnd::Complete);
    let lost: Vec<_> = reports.iter().map(|report| (report.name, report.num_lost)).collect();
    assert_eq!(lost, [("metrics.jsonl", 1500)], "{reports:?}");
}

/// A file whose disk is full if its descriptor cannot be written to.
struct AppendFileUnderTest {
    path: PathBuf,
    file: append_file::AppendFile,
}

impl AppendFileUnderTest {
    fn new(folder: &Path) -> Self {
        let path = folder.join("log");
        Self { file: append_file::AppendFile::open(&path).unwrap(), path }
    }

    fn append(&mut self, record: &str) -> Result<(), TrackingError> {
        self.file.append(record.as_bytes())
    }

    fn fill_disk(&mut self) {
        self.file.replace_descriptor(fs::File::open("/dev/null").unwrap());
    }

    fn clean_disk(&mut self) {
        self.file.replace_descriptor(fs::File::options().append(true).open(&self.path).unwrap());
    }
}

#[test]
fn a_record_above_the_limit_of_waiting_bytes_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = AppendFileUnderTest::new(dir.path());
    let long = "x".repeat(3 << 20);
    log.append(&long).unwrap();
    assert_eq!(fs::read_to_string(&log.path).unwrap().len(), long.len());
}

#[test]
fn trackers_that_cannot_be_opened_are_named_and_the_others_continue() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("events"), "a file where a folder should be").unwrap();
    // Without a manifest a run has no name.
    let remote = RemoteTrackers { wandb: Some(wandb::WandbOptions::default()), ..RemoteTrackers::default() };
    let trackers = Trackers::open(&TrackersOptions { remote, ..options(dir.path(), None) });
    trackers.log(&step(Stage::Training, 1, 0.5));
    let reports = trackers.finish(RunEnd::Complete);
    let names: Vec<_> = reports.iter().map(|report| report.name).collect();
    assert_eq!(names, ["tensorboard", "wandb"]);
    assert!(reports[1].last_error.as_ref().unwrap().contains("manifest.yaml"), "{reports:?}");
    assert_eq!(positions(dir.path()), [(Stage::Training, 1)]);
}
