//! `trainer/gpu-report.sh` with real checks on an emulated device: one fails there, one crashes, one hangs.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rlt_devices::StandIn;
use rlt_tests::{fresh_binary, workspace_root};
use serde_json::Value;

/// Replaces the bundle's `gpu-check`: six checks are the real ones, and all others pass at once. The device
/// fails the check `memory` after three launches, with CUDA_ERROR_LAUNCH_FAILED; `copies` crashes after it
/// has written its findings; and `draws` never runs, because its process is stopped.
const GPU_CHECK: &str = r#"#!/bin/bash
real=$(dirname "$0")/checks/gpu-check
case ${@: -1} in
device | gemm | update) exec "$real" "$@" ;;
memory) RLT_STAND_IN_FAILURE=3:719 exec "$real" "$@" ;;
copies)
    "$real" "$@"
    kill -SEGV $$
    ;;
draws)
    kill -STOP $$
    exec "$real" "$@"
    ;;
*) echo "{\"name\":\"${@: -1}\",\"status\":\"passed\",\"device\":\"none\"}" ;;
esac
"#;

/// Replaces `compute-sanitizer`, which needs NVIDIA's driver: runs the command after its options.
const SANITIZER: &str = r#"#!/bin/bash
while [ $# -gt 0 ] && [ "${1##*/}" != gpu-check ]; do shift; done
exec "$@"
"#;

/// Writes a program.
fn write_program(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Links the emulated libraries and libtorch's other libraries in one folder, as on a machine with a GPU.
/// `gpu-check` prefers the folder that it is given, and libtorch finds further libraries relative to itself.
fn libraries(machine: &Path) -> PathBuf {
    let libtorch = fs::canonicalize(std::env::var("LIBTORCH").unwrap()).unwrap();
    let folder = machine.join("torch/lib");
    fs::create_dir_all(&folder).unwrap();
    for source in [StandIn::build().unwrap().folder().to_owned(), libtorch.join("lib")] {
        for library in fs::read_dir(source).unwrap() {
            let library = library.unwrap();
            let link = folder.join(library.file_name());
            if !link.exists() {
                symlink(library.path(), link).unwrap();
            }
        }
    }
    symlink(libtorch.join("../nvidia"), machine.join("nvidia")).unwrap();
    folder
}

/// Packs the bundle: binary and script are the real ones.
fn bundle(machine: &Path) -> PathBuf {
    let folder = machine.join("gpu-bundle");
    fs::create_dir_all(folder.join("checks")).unwrap();
    for link in ["rlt-trainer", "checks/rlt-trainer"] {
        symlink(fresh_binary("rlt-trainer"), folder.join(link)).unwrap();
    }
    let real = fs::read_to_string(workspace_root().join("trainer/gpu-check.sh")).unwrap();
    write_program(&folder.join("checks/gpu-check"), &real);
    write_program(&folder.join("gpu-check"), GPU_CHECK);
    let archive = machine.join("bundle.tar.gz");
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(machine).arg("-czf").arg(&archive).arg("gpu-bundle");
    assert!(tar.status().unwrap().success());
    archive
}

/// Runs the script on a machine; `out` receives the report.
fn report(machine: &Path, out: &Path) -> Output {
    let mut script = Command::new("bash");
    script.arg(workspace_root().join("trainer/gpu-report.sh"));
    script.arg("--bundle").arg(bundle(machine)).arg("--out").arg(out);
    script.arg("--libtorch").arg(libraries(machine));
    script.args(["--seconds", "100000", "--limit", "all=100000", "--limit", "draws=2"]);
    write_program(&machine.join("bin/compute-sanitizer"), SANITIZER);
    let path = std::env::var("PATH").unwrap();
    script.env("PATH", format!("{}:{path}", machine.join("bin").display()));
    script.envs(StandIn::build().unwrap().env()).output().unwrap()
}

#[test]
fn a_report_has_the_findings_of_real_checks_though_others_fail_crash_and_hang() {
    let machine = tempfile::tempdir().unwrap();
    let out = machine.path().join("report");
    let output = report(machine.path(), &out);
    let text = |name: &str| fs::read_to_string(out.join(name)).unwrap();
    let page = text("gpu-report.md");
    let context = format!("{page}\n{}", text("output.log"));
    assert_eq!(output.status.code(), Some(1), "{context}");
    let findings: Vec<Value> =
        text("findings.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Concurrent checks write to both files in any order.
    let sorted = |lines: &str| {
        let mut lines: Vec<String> = lines.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(sorted(&printed), sorted(&text("findings.jsonl")), "every finding is printed as well");
    let found = |stage: &str, run: &str| -> Vec<&Value> {
        let is_of = |line: &&Value| line["stage"] == stage && line["run"] == run && line["name"].is_string();
        findings.iter().filter(is_of).collect()
    };
    let ended = |stage: &str, run: &str| {
        let is_of = |line: &&Value| line["stage"] == stage && line["run"] == run && line["ended"].is_string();
        findings.iter().find(is_of).map(|line| (line["ended"].clone(), line["text"].clone()))
    };

    for (stage, num_findings) in [("device", 1), ("gemm", 2), ("update", 1), ("copies", 3)] {
        let found = found(stage, "first");
        assert_eq!(found.len(), num_findings, "{stage}: {context}");
        for finding in found {
            assert_eq!(finding["status"], "passed", "{context}");
            assert!(finding["device"].as_str().unwrap().contains("Stand-in"), "{context}");
        }
    }
    // The device fails again in the second run. The check does not decode, so it has no run without graphs.
    for run in ["first", "blocking"] {
        for (stage, why) in [
            ("memory", "exit code 1"),
            ("copies", "crashed: SIGSEGV"),
            ("draws", "took longer than 2 s and was killed"),
        ] {
            assert_eq!(ended(stage, run), Some(("failed".into(), why.into())), "{stage}: {context}");
        }
        let mut errors = found("memory", run).into_iter().filter_map(|finding| finding["error"].as_str());
        assert!(errors.next_back().is_some_and(|error| !error.is_empty()), "{context}");
    }
    assert_eq!(ended("memory", "eager"), None, "{context}");
    // A check of speed also runs under the sanitizer, but a check that hung does not.
    assert_eq!(ended("memory", "memcheck").unwrap().0, "failed", "{context}");
    assert_eq!(ended("copies", "memcheck"), Some(("failed".into(), "crashed: SIGSEGV".into())), "{context}");
    assert_eq!(found("copies", "memcheck").len(), 3, "{context}");
    assert_eq!(ended("draws", "memcheck"), None, "{context}");
    assert_eq!(ended("checkpoints", "first").unwrap().0, "passed", "stages after all of them are run");

    let title = page.lines().next().unwrap();
    assert!(title.starts_with("# GPU report: ") && title.contains("Stand-in"), "{context}");
    let has_row = |parts: &[&str]| page.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(has_row(&["| memory | first |", "| memory |"]), "{context}");
    assert!(has_row(&["| copies | first |", "crashed: SIGSEGV"]), "{context}");
    assert!(has_row(&["| draws | first |", "took longer than 2 s"]), "{context}");
    assert!(has_row(&["| gemm, shape ", "TFLOP/s"]), "{context}");
    let of_update = findings.iter().find(|line| line["ratioToPredictedUpdateSeconds"].is_f64()).unwrap();
    assert_eq!(of_update["stage"], "update", "{context}");
    assert!(has_row(&["| update, dtype bf16 | update seconds |"]), "{context}");
}
