//! Proves what `trainer/gpu-report.sh` prints, the order in which it runs stages, and which files it leaves.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use rlt_tests::workspace_root;
use serde_json::{Value, json};

use super::{Machine, Report};

/// Maximum size of a file that the script leaves, in bytes.
const MAX_FILE: u64 = 16 << 20;

/// A tool of NVIDIA that does not just wrap its command: it appends its arguments to a file, and writes more
/// than a report may contain to the file that `--log-file` names.
const NCU: &str = r#"#!/bin/bash
[ "$1" != --version ] || exit 0
echo "$*" >>"$FAKE/ncu-arguments"
while [ $# -gt 1 ] && [ "$1" != --log-file ]; do shift; done
head -c 20000000 /dev/zero >"$2"
"#;

/// A check that writes both traces to the folder that `--trace-folder` names.
const TRACE: &str = r#"while [ $# -gt 1 ] && [ "$1" != --trace-folder ]; do shift; done
echo decode >"$2/trace-decode.json"
echo update >"$2/trace-update.json"
echo '{"name":"trace","status":"passed"}'"#;

/// Stages in the order in which they end if all pass; those of one line run concurrently.
///
/// The description of the machine comes first. The checks of results follow, beginning with those whose
/// failure explains the most others, and then our measurements: so a run that is ended early has the most
/// important lines. Then come checks that take long for what they show, and the sanitizers of NVIDIA, under
/// which kernels are several times as slow. The peers take minutes and run none of our code. Figures of `ncu`
/// explain a speed and fail nothing, so they come last.
const ORDER: [&[&str]; 23] = [
    &["environment"],
    &["device"],
    &["operators", "paged", "graphs", "graph-models"],
    &["memory"],
    &["packed"],
    &["kernels"],
    &["training"],
    &["gemm"],
    &["copies"],
    &["decode-speed"],
    &["update"],
    &["grpo-step-small"],
    &["grpo-step-large"],
    &["published"],
    &["decode-tail"],
    &["draws"],
    &["checkpoints"],
    &["trace"],
    &["memcheck:paged"],
    &["racecheck:paged"],
    &["peer-small"],
    &["peer-large"],
    &["ncu:decode-speed"],
];

fn lines_of(report: &Report) -> Vec<&Value> {
    report.findings.iter().filter(|line| line["ended"].is_string()).collect()
}

#[test]
fn stages_run_in_the_order_of_what_a_report_needs_first() {
    let report = Machine::new("").report(&["--seconds", "100000"]);
    let mut ended = lines_of(&report).into_iter().map(|line| line["stage"].as_str().unwrap());
    for together in ORDER {
        let mut stages: Vec<&str> = ended.by_ref().take(together.len()).collect();
        let mut expected = together.to_vec();
        stages.sort_unstable();
        expected.sort_unstable();
        assert_eq!(stages, expected, "{}", report.page);
    }
    assert_eq!(ended.next(), None);
}

#[test]
fn every_finding_is_printed_when_it_is_made() {
    // The check waits for the reader of the first finding, and gives up after a minute.
    let waits = r#"echo '{"name":"paged","status":"passed","device":"Fake GPU"}'
for i in $(seq 600); do [ ! -e "$FAKE/seen" ] || break; sleep 0.1; done
[ -e "$FAKE/seen" ] && seen=true
echo "{\"name\":\"paged\",\"status\":\"passed\",\"seen\":${seen:-false}}""#;
    let machine = Machine::new(&format!("paged) {waits} ;;"));
    let mut script = machine.command(&["--seconds", "100000"]);
    let mut running = script.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut printed: Vec<Value> = Vec::new();
    for line in BufReader::new(running.stdout.take().unwrap()).lines() {
        let line: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if line["stage"] == "paged" && line["run"] == "first" && line["device"] == "Fake GPU" {
            fs::write(machine.path("seen"), "").unwrap();
        }
        printed.push(line);
    }
    assert!(running.wait().unwrap().success());
    // A finding of a later run of the stage under a sanitizer is always seen, so only the first run counts.
    let is_seen = |line: &Value| line["stage"] == "paged" && line["run"] == "first" && line["seen"] == true;
    assert!(printed.iter().any(is_seen), "printed too late: {printed:#?}");
    // Concurrent checks write to both files in any order.
    let mut written: Vec<String> = fs::read_to_string(machine.path("report/findings.jsonl"))
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect();
    let mut printed: Vec<String> = printed.iter().map(Value::to_string).collect();
    written.iter_mut().for_each(|line| *line = serde_json::from_str::<Value>(line).unwrap().to_string());
    written.sort_unstable();
    printed.sort_unstable();
    assert_eq!(printed, written);
}

#[test]
fn nsight_compute_profiles_decoding_and_its_figures_are_cut_to_the_size_of_a_file() {
    let machine = Machine::new(&format!("trace) {TRACE} ;;"));
    machine.script("bin/ncu", NCU);
    let report = machine.report(&["--seconds", "100000"]);
    let arguments = fs::read_to_string(machine.path("ncu-arguments")).unwrap();
    let (options, command) = arguments.trim_end().split_once("/gpu-check ").unwrap();
    let (options, _) = options.rsplit_once(' ').unwrap();
    let file = machine.path("report/ncu.txt");
    assert_eq!(
        options,
        format!(
            "--clock-control none --graph-profiling node --target-processes all --launch-skip 400 \
             --launch-count 120 --log-file {}",
            file.display()
        )
    );
    assert_eq!(command, "--libtorch /no-libtorch --here --no-peer decode-speed");
    assert_eq!(report.ended("ncu:decode-speed", "first"), ("passed", ""), "{}", report.page);

    let mut files = report.files.clone();
    files.sort_unstable();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let all = [
        "environment.txt",
        "findings.jsonl",
        "gpu-report.md",
        "ncu.txt",
        "output.log",
        "trace-decode.json",
        "trace-update.json",
    ];
    assert_eq!(names, all, "a report has at most eight files");
    let bytes_of = |name: &str| files.iter().find(|(file, _)| file == name).map(|(_, bytes)| *bytes);
    assert_eq!(bytes_of("ncu.txt"), Some(MAX_FILE));
    assert!(files.iter().all(|(_, bytes)| *bytes <= MAX_FILE), "{files:?}");
}

/// Runs the peer's program with modules in place of the packages that it needs, and code before its `main`.
fn peer(prepare: &str) -> Vec<Value> {
    let folder = workspace_root().join("trainer/benches/peers");
    let program = format!("import sys, types\nimport gpu_grpo_step as peer\n{prepare}\npeer.main()\n");
    let mut python = Command::new("python3");
    // Packages of this machine are not used.
    python.args(["-S", "-c", &program]).env("PYTHONPATH", folder).env("PYTHONDONTWRITEBYTECODE", "1");
    let mut running = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let task = json!({ "config": {}, "device": "cpu", "rounds": 2 });
    serde_json::to_writer(running.stdin.take().unwrap(), &task).unwrap();
    let output = running.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The step itself needs torch and transformers, which tests do not install.
#[test]
fn the_peer_names_a_missing_package_and_answers_with_its_fastest_step_after_each() {
    assert_eq!(peer(""), [json!({ "missing": "No module named 'torch'" })]);
    let packages = r#"
torch = sys.modules["torch"] = types.ModuleType("torch")
transformers = sys.modules["transformers"] = types.ModuleType("transformers")
torch.__version__, transformers.__version__ = "2", "5"
torch.cuda = types.SimpleNamespace(is_available=lambda: False)
transformers.logging = types.SimpleNamespace(set_verbosity_error=lambda: None)
class Step:
    def __init__(self, *arguments):
        # The first step warms up.
        self.seconds = iter([9.0, 2.0, 3.0])
    def run(self):
        names = ["rollout_seconds", "reference_seconds", "update_seconds"]
        return dict.fromkeys(names, next(self.seconds))
peer.Step = Step
"#;
    let fastest = json!({
        "versions": "transformers 5, torch 2", "rollout_seconds": 2.0, "reference_seconds": 2.0,
        "update_seconds": 2.0
    });
    assert_eq!(peer(packages), [fastest.clone(), fastest]);
}
