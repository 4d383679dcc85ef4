//! `gpu-check` on emulated devices, which it must keep supporting, and without any device.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

use rlt_devices::StandIn;
use rlt_tests::fresh_binary;
use serde_json::Value;

use crate::process::text;

/// Runs `gpu-check`; returns its output and its findings.
pub(crate) fn check(names: &[&str], variables: Vec<(String, String)>) -> (Output, Vec<Value>) {
    let mut command = Command::new(fresh_binary("rlt-trainer"));
    // In a debug build, emulated kernels take longer than kernels on a GPU, for which the checks' own limits
    // are made.
    let limit = if names.contains(&"--limit") { [].as_slice() } else { &["--limit", "900"] };
    let output = command.arg("gpu-check").args(limit).args(names).envs(variables).output().unwrap();
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (output, lines)
}

/// Runs checks that must all pass and name their device, and returns their findings.
#[track_caller]
fn all_pass(names: &[&str], variables: Vec<(String, String)>) -> Vec<Value> {
    let (output, lines) = check(names, variables);
    assert!(output.status.success(), "{lines:#?}");
    for name in names {
        assert!(lines.iter().any(|line| line["name"] == *name), "{name}: {lines:#?}");
    }
    let passed = |line: &Value| {
        let is_named = line["device"].as_str().is_some_and(|device| device.contains("Stand-in"));
        line["status"] == "passed" && is_named
    };
    assert!(lines.iter().all(passed), "{lines:#?}");
    lines
}

/// Checks that each of a line's times has its prediction, and the ratio of both.
#[track_caller]
pub(crate) fn assert_predicted(line: &Value, times: &[&str]) {
    assert_eq!(line["predictedFor"], "h100", "{line:#}");
    for time in times {
        let (first, rest) = time.split_at(1);
        let figure = |prefix: &str| line[format!("{prefix}{}{rest}", first.to_uppercase())].as_f64();
        let figures = [line[*time].as_f64(), figure("predicted"), figure("ratioToPredicted")];
        assert!(figures.iter().all(Option::is_some), "{time} is not beside its prediction: {line:#}");
        let [measured, predicted, ratio] = figures.map(Option::unwrap);
        assert!(predicted > 0.0 && (ratio * predicted / measured - 1.0).abs() < 1e-9, "{time}: {line:#}");
    }
}

fn with_devices(num_devices: usize) -> Vec<(String, String)> {
    let mut variables = StandIn::build().unwrap().with_devices(num_devices);
    variables.push(("RLT_PEER_PYTHON".into(), "no-such-python".into()));
    variables
}

#[test]
fn without_a_gpu_every_check_is_skipped_and_none_is_passed() {
    let (output, lines) = check(&[], Vec::new());
    assert!(output.status.success());
    assert!(lines.len() == 16 && lines.iter().all(|line| line["status"] == "skipped"), "{lines:?}");
    assert!(text(&output).contains("0 passed, 0 failed, 16 skipped"), "{}", text(&output));
}

#[test]
fn a_gpu_that_cannot_be_used_fails_the_check_of_the_device() {
    let mut variables = StandIn::build().unwrap().env();
    variables.push(("RLT_STAND_IN_DRIVER".into(), "12080".into()));
    let (output, lines) = check(&["device", "gemm"], variables);
    assert!(!output.status.success());
    assert_eq!(
        (&lines[0]["status"], &lines[1]["status"]),
        (&"failed".into(), &"skipped".into()),
        "{lines:#?}"
    );
    assert!(lines[0]["error"].as_str().unwrap().contains("too old"), "{lines:#?}");
}

#[test]
fn operators_memory_and_trainings_pass_on_a_device() {
    all_pass(&["device", "operators", "memory", "training", "checkpoints"], with_devices(1));
}

#[test]
fn draws_attention_and_graphs_pass_on_a_device() {
    let lines = all_pass(&["draws", "paged", "graphs"], with_devices(1));
    let compared = |line: &&Value| line["name"] == "graphs";
    // Graphs are compared with launches in two dtypes, and with the CPU.
    assert_eq!(lines.iter().filter(compared).count(), 3, "{lines:#?}");
}

#[test]
fn collectives_pass_between_two_devices_and_are_skipped_on_one() {
    let lines = all_pass(&["nccl"], with_devices(2));
    assert_eq!(lines.len(), 19, "six operations in three dtypes, and a rate: {lines:#?}");
    assert!(lines.iter().all(|line| line["gpus"] == 2), "{lines:#?}");
    let (output, lines) = check(&["nccl"], with_devices(1));
    assert!(output.status.success());
    assert_eq!((lines.len(), &lines[0]["status"]), (1, &"skipped".into()), "{lines:#?}");
    assert!(lines[0]["reason"].as_str().unwrap().contains("one GPU"), "{lines:#?}");
}

#[test]
fn speed_is_measured_on_an_emulated_device_with_a_warning() {
    let lines = all_pass(&["gemm", "copies", "decode-speed", "update"], with_devices(1));
    let note = |line: &Value| line["note"].as_str().is_some_and(|note| note.contains("times mean nothing"));
    assert!(lines.iter().all(note), "{lines:#?}");
    let batches: Vec<_> = lines.iter().filter_map(|line| line["batch"].as_u64()).collect();
    assert_eq!(batches, [1, 4, 16, 64, 256]);
    for line in &lines {
        match line["name"].as_str().unwrap() {
            "decode-speed" => assert_predicted(line, &["stepMilliseconds"]),
            "update" => assert_predicted(line, &["updateSeconds"]),
            _ => assert!(line["predictedFor"].is_null(), "a limit of the device is no prediction: {line:#}"),
        }
    }
}

/// Runs a GRPO step that is compared with a peer, whose Python is a script that runs `body`. Returns output
/// and findings.
fn grpo_step_with_peer(body: &str) -> (Output, Vec<Value>) {
    let folder = tempfile::tempdir().unwrap();
    let python = folder.path().join("python");
    std::fs::write(&python, format!("#!/bin/sh\ncat >/dev/null\n{body}\n")).unwrap();
    std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut variables = StandIn::build().unwrap().env();
    variables.push(("RLT_PEER_PYTHON".into(), python.display().to_string()));
    check(&["grpo-step-small"], variables)
}

#[test]
fn a_grpo_step_is_reported_as_a_ratio_to_a_peer_or_with_the_reason_for_none() {
    let times =
        r#"{"versions": "peer 1", "rollout_seconds": 3e6, "reference_seconds": 1, "update_seconds": 1}"#;
    let (output, lines) = grpo_step_with_peer(&format!("echo '{times}'"));
    assert!(output.status.success(), "{lines:#?}");
    assert_eq!((&lines[1]["status"], &lines[1]["peer"]), (&"passed".into(), &"peer 1".into()), "{lines:#?}");
    assert_eq!(
        lines[1]["ratioOfRollout"].as_f64().unwrap(),
        3e6 / lines[0]["rolloutSeconds"].as_f64().unwrap()
    );

    let (output, lines) = grpo_step_with_peer("echo '{\"missing\": \"no module named torch\"}'");
    assert!(output.status.success(), "{lines:#?}");
    assert_eq!(
        (&lines[0]["status"], &lines[1]["status"]),
        (&"passed".into(), &"skipped".into()),
        "{lines:#?}"
    );
    assert!(lines[1]["reason"].as_str().unwrap().contains("no module named torch"), "{lines:#?}");

    let (output, lines) = grpo_step_with_peer("echo 'out of memory' >&2; exit 3");
    assert!(!output.status.success());
    assert_eq!(
        (&lines[0]["status"], &lines[1]["status"]),
        (&"passed".into(), &"failed".into()),
        "{lines:#?}"
    );
    assert!(lines[1]["error"].as_str().unwrap().contains("out of memory"), "{lines:#?}");
}

/// Runs the script of the bundle next to the binary, in a separate folder and an empty environment.
fn bundle_script(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("gpu-check");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../trainer/gpu-check.sh");
    std::fs::copy(source, &script).unwrap();
    std::os::unix::fs::symlink(fresh_binary("rlt-trainer"), folder.path().join("rlt-trainer")).unwrap();
    let mut command = Command::new("sh");
    command.arg(&script).args(arguments).env_clear().env("PATH", "/usr/bin:/bin");
    command.env("RLT_PEER_PYTHON", "no-such-python").output().unwrap()
}

#[test]
fn the_bundles_script_runs_with_the_libtorch_that_it_is_given_and_names_what_is_missing() {
    let output = bundle_script(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("no-such-python has no torch"), "{}", text(&output));
    let output = bundle_script(&["--libtorch", "/nowhere"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output).contains("/nowhere holds no libtorch_cpu.so"), "{}", text(&output));
    let libtorch = std::env::var("LIBTORCH").unwrap() + "/lib";
    let output = bundle_script(&["--libtorch", &libtorch, "device", "gemm"]);
    assert!(output.status.success(), "{}", text(&output));
    assert!(text(&output).contains("0 passed, 0 failed, 2 skipped"), "{}", text(&output));
}

#[test]
fn a_device_that_fails_fails_its_check_and_not_the_others() {
    let mut variables = StandIn::build().unwrap().env();
    // The third launch is followed by CUDA_ERROR_LAUNCH_FAILED.
    variables.push(("RLT_STAND_IN_FAILURE".into(), "3:719".into()));
    let (output, lines) = check(&["memory", "device"], variables);
    assert!(!output.status.success());
    assert_eq!((&lines[0]["name"], &lines[0]["status"]), (&"memory".into(), &"failed".into()), "{lines:#?}");
    assert_eq!((&lines[1]["name"], &lines[1]["status"]), (&"device".into(), &"passed".into()), "{lines:#?}");
}

/// Every call fails after a number of launches, and the copy of a result to the host panics. This ends the
/// process that runs the check, so the first findings only exist if each was written at once.
#[test]
fn a_check_that_dies_between_two_findings_has_written_the_first_ones() {
    let mut variables = StandIn::build().unwrap().env();
    // Launch 20 is that of our kernel in the seventh finding. If an operator before it failed, the launch of
    // ours would return the error, and the check would report it.
    variables.push(("RLT_STAND_IN_FAILURE".into(), "20:719".into()));
    let mut command = Command::new(fresh_binary("rlt-trainer"));
    let output = command.args(["gpu-check", "--here", "paged"]).envs(variables).output().unwrap();
    let written = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<Value> = written.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(output.status.code(), Some(101), "a panic: {}", text(&output));
    let num_findings = lines.len();
    assert!(lines.iter().all(|line| line["status"] == "passed"), "{lines:#?}");
    assert!((1..16).contains(&num_findings), "{num_findings} of 16 findings: {lines:#?}");
}

#[test]
fn a_check_that_takes_too_long_is_ended_and_failed() {
    let (output, lines) = check(&["--limit", "0", "training"], StandIn::build().unwrap().env());
    assert!(!output.status.success());
    assert!(lines[0]["error"].as_str().unwrap().contains("took longer than 0 s"), "{lines:#?}");
    // The process that reports the timeout does not query the device, because the query could hang as well.
    assert!(lines[0]["device"].is_null(), "{lines:#?}");
}

#[test]
fn a_decoding_step_of_any_batch_is_one_graph_two_copies_and_nine_launches_a_layer() {
    let (output, lines) = check(&["decode"], StandIn::build().unwrap().env());
    assert!(output.status.success(), "{lines:#?}");
    let batches: Vec<_> = lines.iter().map(|line| line["batch"].as_u64()).collect();
    assert_eq!(batches, [Some(1), Some(16), Some(256)], "{lines:#?}");
    for line in &lines {
        let cost = |name: &str| line[name].as_f64().unwrap_or_else(|| panic!("{name}: {line:#}"));
        assert!((0.0..=2.0).contains(&cost("host_to_device")), "{line:#}");
        let of_one = ["device_to_host", "waits", "graph_launches"].map(cost);
        assert_eq!(of_one, [1.0; 3], "{line:#}");
        assert!((1.0..=9.0).contains(&cost("launches_per_layer")), "{line:#}");
        assert!((1.0..=12.0).contains(&cost("launches_besides")), "{line:#}");
    }
}
