//! Faults of the run folder: two runs, other manifests, damaged checkpoints, a full disk.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use rlt_tests::SmallDisk;
use serde_json::json;

use crate::job::{ENDLESS, Ended, Place, merge, signal, tiny, tiny_with};

#[test]
fn a_second_run_in_the_same_folder_is_refused_and_disturbs_nothing() {
    let place = Place::new();
    let manifest = tiny_with(json!({ "training": { "steps": ENDLESS } }));
    let first = place.start(&manifest);
    place.wait_for_steps(1);
    let second = place.train(&manifest);
    let overwriting = Command::new(rlt_tests::fresh_binary("rlt-trainer"))
        .args(["worker", "--overwrite", "--manifest"])
        .arg(place.file("job.yaml"))
        .arg("--output")
        .arg(place.run(""))
        .output()
        .unwrap();
    signal(&first, "TERM");
    Ended::of(first.wait_with_output().unwrap()).expect(80, &[]);
    second.expect(78, &["another run", place.run("").to_str().unwrap().trim_end_matches('/')]);
    Ended::of(overwriting).expect(78, &["another run"]);
    let steps: Vec<_> = place.steps().iter().map(|step| step["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=steps.len() as u64).collect::<Vec<_>>());
}

#[test]
fn another_manifest_in_the_same_folder_is_refused_and_the_difference_named() {
    let place = Place::new();
    place.train(&tiny()).expect(0, &[]);
    let before = fs::read(place.run("metrics.jsonl")).unwrap();
    let other = tiny_with(json!({ "training": { "optimizer": { "learningRate": 0.02 } } }));
    let refused = place.train(&other).expect(
        78,
        &["different manifest", "spec.training.optimizer.learningRate: ", "0.02 here", "--overwrite"],
    );
    assert!(!refused.stderr.contains("lock"), "nothing else is wrong: {}", refused.stderr);
    assert_eq!(fs::read(place.run("metrics.jsonl")).unwrap(), before);
}

#[test]
fn a_run_continues_with_other_budgets_of_memory() {
    let place = Place::new();
    place.train(&tiny()).expect(0, &[]);
    let other = tiny_with(json!({
        "rollout": { "maxConcurrentSequences": 2, "maxBatchedTokens": 2 },
        "training": {
            "steps": 4, "maxTokensPerMicroBatch": 64, "maxLogprobTokens": 64, "activationCheckpointing": true
        }
    }));
    place.train(&other).expect(0, &[]);
    let steps: Vec<_> = place.steps().iter().map(|step| step["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [1, 2, 3, 4]);
}

/// All files and folders below `folder`.
fn everything_below(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let below = |path: std::path::PathBuf| {
        let inner = if path.is_dir() { everything_below(&path) } else { Vec::new() };
        [vec![path], inner].concat()
    };
    entries.flat_map(below).collect()
}

#[test]
fn files_of_a_run_follow_the_umask_and_hold_no_value_of_a_variable() {
    let place = Place::new();
    let value = "value-of-a-variable";
    let containers = json!([{ "name": "trainer", "env": [{ "name": "B", "value": value }] }]);
    let workers = json!({
        "env": [{ "name": "A", "value": value }], "podTemplate": { "spec": { "containers": containers } },
    });
    let tracking = json!({ "wandb": {} });
    let manifest = tiny_with(json!({ "workers": workers, "tracking": tracking, "training": { "steps": 2 } }));
    let mut command = Command::new("sh");
    command.args(["-c", "umask 027; exec \"$@\"", "sh"]).arg(rlt_tests::fresh_binary("rlt-trainer"));
    command.args(["launch", "--manifest"]).arg(place.write(&manifest)).arg("--output").arg(place.run(""));
    Ended::of(command.output().unwrap()).expect(0, &[]);
    let files = everything_below(&place.run(""));
    for name in
        ["manifest.yaml", "report.html", "completions.jsonl", "result.json", "wandb", "export", "events"]
    {
        assert!(files.iter().any(|path| path.ends_with(name)), "{name} is missing in {files:?}");
    }
    for path in files {
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        let expected = if path.is_dir() { 0o750 } else { 0o640 };
        assert_eq!(mode & 0o777, expected, "{}", path.display());
        if path.is_file() {
            let bytes = fs::read(&path).unwrap();
            assert!(!bytes.windows(value.len()).any(|part| part == value.as_bytes()), "{}", path.display());
        }
    }
}

#[test]
fn a_folder_that_no_run_made_is_left_alone() {
    let place = Place::new();
    fs::create_dir(place.run("")).unwrap();
    fs::write(place.run("thesis.tex"), "mine").unwrap();
    place.train(&tiny()).expect(78, &["no run made it"]);
    assert_eq!(
        fs::read_dir(place.run("")).unwrap().filter(|e| e.as_ref().unwrap().file_name() != ".lock").count(),
        1
    );
}

/// A checkpoint's file of tensors or of state.
fn file_of(checkpoint: &Path, ends: &str) -> std::path::PathBuf {
    let mut files = fs::read_dir(checkpoint).unwrap().map(|entry| entry.unwrap().path());
    files.find(|path| path.to_str().unwrap().ends_with(ends)).unwrap()
}

fn flip_a_bit(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_damaged_checkpoint_is_named_and_the_one_before_it_used() {
    let whole = Place::new();
    let long = tiny_with(json!({ "training": { "steps": 5 } }));
    whole.train(&long).expect(0, &[]);
    for ends in [".safetensors", "state.json", "manifest.json"] {
        let place = Place::new();
        place.train(&tiny()).expect(0, &[]);
        let file = file_of(&place.run("checkpoints/step-000003"), ends);
        flip_a_bit(&file);
        place.train(&long).expect(0, &["damaged checkpoint", file.to_str().unwrap(), "after step 2"]);
        assert_eq!(place.weights(), whole.weights());
    }
}

#[test]
fn a_truncated_checkpoint_is_named_and_the_one_before_it_used() {
    let place = Place::new();
    place.train(&tiny()).expect(0, &[]);
    let file = file_of(&place.run("checkpoints/step-000003"), ".safetensors");
    let len = fs::metadata(&file).unwrap().len();
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(len / 2).unwrap();
    let long = tiny_with(json!({ "training": { "steps": 4 } }));
    place.train(&long).expect(0, &["truncated", file.to_str().unwrap(), "after step 2"]);
}

#[test]
fn a_run_with_nothing_but_damaged_checkpoints_does_not_begin_anew() {
    let place = Place::new();
    place.train(&tiny()).expect(0, &[]);
    for entry in fs::read_dir(place.run("checkpoints")).unwrap() {
        flip_a_bit(&file_of(&entry.unwrap().path(), ".safetensors"));
    }
    let log = fs::read(place.run("metrics.jsonl")).unwrap();
    let long = tiny_with(json!({ "training": { "steps": 4 } }));
    place.train(&long).expect(79, &["no complete checkpoint", "step-000001", "step-000002", "step-000003"]);
    assert_eq!(fs::read(place.run("metrics.jsonl")).unwrap(), log);
}

#[test]
fn retention_survives_restarts() {
    let place = Place::new();
    for steps in [3, 5, 6] {
        let changes = json!({ "training": { "steps": steps }, "checkpoint": { "keep": 2 } });
        place.train(&tiny_with(changes)).expect(0, &[]);
    }
    let mut names: Vec<_> = fs::read_dir(place.run("checkpoints"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["step-000005", "step-000006"]);
}

#[test]
fn a_full_disk_costs_checkpoints_then_ends_the_run_retryably_and_room_lets_it_go_on() {
    let place = Place::new();
    let folder = place.run("");
    let Some(disk) = SmallDisk::mount(&folder, "512k") else {
        rlt_skipped::skip("a full disk needs a process that may mount");
        return;
    };
    let mut manifest = tiny_with(json!({ "training": { "steps": 12 } }));
    merge(&mut manifest["spec"], json!({ "checkpoint": { "keep": 1000 } }));
    place
        .train(&manifest)
        .expect(75, &["training continues without it", "No space left on device", "step-0000"]);
    assert!(disk.resize("64m"));
    place.train(&manifest).expect(0, &["resuming after step"]);
    let whole = Place::new();
    whole.train(&manifest).expect(0, &[]);
    assert_eq!(place.weights(), whole.weights());
    assert_eq!(place.steps().len(), 12);
}

#[test]
fn a_run_without_space_for_its_first_checkpoint_ends_retryably_before_its_first_step() {
    let place = Place::new();
    let folder = place.run("");
    let Some(disk) = SmallDisk::mount(&folder, "1m") else {
        rlt_skipped::skip("a full disk needs a process that may mount");
        return;
    };
    let manifest = tiny_with(json!({
        "model": { "architecture": { "hiddenSize": 128, "intermediateSize": 512 } },
        "algorithm": { "kl": { "placement": "None" } }
    }));
    place.train(&manifest).expect(75, &["checkpoints: ", "bytes are free, and the next checkpoint needs"]);
    assert!(disk.resize("64m"));
    place.train(&manifest).expect(0, &[]);
}

/// Bytes that the files below `folder` take on a file system with pages of 4 KiB.
fn space_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| match entry.metadata().unwrap() {
            data if data.is_dir() => space_of(&entry.path()),
            data => data.len().next_multiple_of(4096),
        })
        .sum()
}

#[test]
fn a_disk_that_fills_during_the_export_ends_the_run_retryably_and_room_lets_it_end() {
    // Without a reference policy, whose file would take more room than the export while the run continues.
    let wide = json!({
        "model": { "architecture": { "hiddenSize": 128, "intermediateSize": 512 } },
        "algorithm": { "kl": { "placement": "None" } }
    });
    let mut manifest = tiny_with(wide);
    merge(&mut manifest["spec"], json!({ "checkpoint": { "everySteps": 0 }, "training": { "steps": 2 } }));
    let whole = Place::new();
    whole.train(&manifest).expect(0, &[]);
    let export = space_of(&whole.run("export"));
    let half_way = space_of(&whole.run("")) - export / 2;

    let place = Place::new();
    let folder = place.run("");
    let Some(disk) = SmallDisk::mount(&folder, &half_way.to_string()) else {
        rlt_skipped::skip("a full disk needs a process that may mount");
        return;
    };
    place.train(&manifest).expect(75, &["export", "No space left on device"]);
    assert!(!place.run("result.json").exists(), "a run without its export is not complete");
    assert!(disk.resize("64m"));
    place.train(&manifest).expect(0, &["resuming after step 2"]);
    assert_eq!(place.weights(), whole.weights());
    assert_eq!(place.steps().len(), 2);
}
