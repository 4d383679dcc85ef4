//! Failed saves lose only their own checkpoint, never the best checkpoint before them.

use std::path::Path;

use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::*;
use crate::observe::stop::StopRequest;

/// Creates a saver that keeps the newest checkpoint and the best one.
fn saver(dir: &Path) -> Saver {
    let (ranks, store) = (Ranks::alone(), CheckpointStore::open(dir, 1).unwrap());
    let writer = CheckpointWriter::prepare(&ranks, &store).unwrap();
    Saver::new(ranks, store, writer, StepContext::new(0, StopRequest::never()))
}

fn save(saver: &mut Saver, step: u64, reward: f64) -> Result<(), TrainError> {
    saver.best.take(StepReward { step, reward });
    let weight = CheckpointShard::full("weight".into(), Tensor::zeros([2], (Kind::Float, Device::Cpu)));
    saver.begin((0, step), json!({ "step": step }), Some(vec![weight]))?;
    saver.settle(Wait::UntilWritten)
}

fn steps(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = entries.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| name.starts_with("step-"));
    names.sort();
    names
}

#[test]
fn the_old_best_checkpoint_stays_when_the_save_of_a_better_one_fails() {
    let dir = tempfile::tempdir().unwrap();
    let mut saver = saver(dir.path());
    save(&mut saver, 1, 0.5).unwrap();
    save(&mut saver, 2, 0.4).unwrap();
    assert_eq!(steps(dir.path()), ["step-000001", "step-000002"]);
    // A file with the name of the save's folder makes the save fail.
    std::fs::write(dir.path().join(".saving-step-000003"), "").unwrap();
    assert!(save(&mut saver, 3, 0.9).is_err());
    save(&mut saver, 4, 0.3).unwrap();
    assert_eq!(steps(dir.path()), ["step-000001", "step-000004"], "the old best is not lost with the new");
    assert_eq!(saver.best.after_save_of(4).unwrap().step, 1);
    // The reward is higher than that of all existing checkpoints, but lower than that of the lost one.
    save(&mut saver, 5, 0.8).unwrap();
    save(&mut saver, 6, 0.1).unwrap();
    assert_eq!(steps(dir.path()), ["step-000005", "step-000006"]);
}

#[test]
fn a_resumed_run_keeps_the_best_checkpoint_that_exists() {
    let dir = tempfile::tempdir().unwrap();
    {
        let mut saver = saver(dir.path());
        save(&mut saver, 1, 0.5).unwrap();
        save(&mut saver, 2, 0.4).unwrap();
    }
    let mut saver = saver(dir.path());
    saver.resume_best(Some(StepReward { step: 1, reward: 0.5 }));
    save(&mut saver, 3, 0.5).unwrap();
    assert_eq!(steps(dir.path()), ["step-000001", "step-000003"], "the first of equal ones is the best");
}

#[test]
fn saves_that_fail_again_and_again_end_the_run_and_one_that_succeeds_starts_the_count_anew() {
    let dir = tempfile::tempdir().unwrap();
    let mut saver = saver(dir.path());
    let fail = |saver: &mut Saver, step: u64| {
        std::fs::write(dir.path().join(format!(".saving-step-{step:06}")), "").unwrap();
        let failed = save(saver, step, 0.0);
        saver.tolerate(step, failed)
    };
    for step in 1..MAX_FAILED_SAVES as u64 {
        fail(&mut saver, step).unwrap();
    }
    save(&mut saver, 10, 0.0).unwrap();
    for step in 11..10 + MAX_FAILED_SAVES as u64 {
        fail(&mut saver, step).unwrap();
    }
    let error = fail(&mut saver, 20).unwrap_err();
    assert_eq!(error.exit_code(), rlt_api::ExitCode::RetryableIo);
    assert!(error_chain(&error).contains("5 checkpoints in a row could not be saved"), "{error}");
    assert_eq!(steps(dir.path()), ["step-000010"]);
}
