//! A process that saves without pause is killed at arbitrary moments; its newest checkpoint is always
//! complete.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::{CheckpointContent, CheckpointStore};

/// Environment variable with the folder into which a child process saves until it is killed.
const FOLDER: &str = "RLT_TEST_SAVE_UNTIL_KILLED";
const NUM_KILLS: u64 = 6;

fn content(step: u64) -> CheckpointContent {
    let tensor = Tensor::full([50_000], step as f64, (Kind::Float, Device::Cpu));
    CheckpointContent { tensors: vec![("weight".into(), tensor)], state: json!({ "step": step }) }
}

fn save_until_killed(folder: &std::path::Path) {
    let mut store = CheckpointStore::open(folder, 2).unwrap();
    let start = store.latest_complete().unwrap().checkpoint.map_or(0, |checkpoint| checkpoint.step());
    for step in start + 1.. {
        store.save(step, &content(step)).unwrap();
    }
}

fn start(folder: &std::path::Path) -> Child {
    let test = "checkpoint::kill_tests::a_kill_at_any_moment_leaves_a_whole_checkpoint";
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(FOLDER, folder);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn newest_step(folder: &std::path::Path) -> u64 {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let step = |name: std::ffi::OsString| name.to_str()?.strip_prefix("step-")?.parse().ok();
    names.filter_map(step).max().unwrap_or(0)
}

#[test]
fn a_kill_at_any_moment_leaves_a_whole_checkpoint() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return save_until_killed(folder.as_ref());
    }
    let dir = tempfile::tempdir().unwrap();
    let mut last_step = 0;
    for idx in 0..NUM_KILLS {
        let mut child = start(dir.path());
        // The child is killed an odd time after its first save, however long it takes to start.
        while newest_step(dir.path()) <= last_step {
            std::thread::sleep(Duration::from_millis(2));
            assert!(child.try_wait().unwrap().is_none(), "the saving process has ended by itself");
        }
        std::thread::sleep(Duration::from_micros(3700 * idx));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut store = CheckpointStore::open(dir.path(), 2).unwrap();
        let latest = store.latest_complete().unwrap();
        assert!(latest.skipped.is_empty(), "torn: {:?}", latest.skipped);
        let checkpoint = latest.checkpoint.unwrap();
        assert!(checkpoint.step() > last_step);
        last_step = checkpoint.step();
        assert!(checkpoint.tensor("weight").unwrap().equal(&content(last_step).tensors[0].1));
        assert_eq!(checkpoint.state(), &content(last_step).state);
    }
}
