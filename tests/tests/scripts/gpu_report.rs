//! `trainer/gpu-report.sh` with a bundle whose `gpu-check` is a script: stages that pass, fail, hang and
//! crash.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a test panics where it fails")]

mod bundle;
mod output;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rlt_tests::workspace_root;
use serde_json::Value;
use tempfile::TempDir;

/// A check that passes. Its finding contains what the script has passed to it.
const PASSES: &str = r#"echo "{\"name\":\"$name\",\"status\":\"passed\",\"device\":\"Fake GPU\",\"blocking\":\"$CUDA_LAUNCH_BLOCKING\"}""#;

/// Replaces `gpu-check`: `behaviour` is shell code for single checks, such as `paged) exit 1 ;;`.
fn gpu_check(behaviour: &str) -> String {
    format!("#!/bin/bash\nname=${{@: -1}}\ncase $name in\n{behaviour}\n*) {PASSES} ;;\nesac\n")
}

/// A machine with the bundle's archive, replacements for NVIDIA's tools that only start their command, and a
/// folder for the report.
struct Machine {
    folder: TempDir,
}

impl Machine {
    fn new(behaviour: &str) -> Self {
        let machine = Self { folder: tempfile::tempdir().unwrap() };
        machine.script("gpu-bundle/gpu-check", &gpu_check(behaviour));
        machine.script("gpu-bundle/rlt-trainer", "#!/bin/sh\n");
        machine.script("gpu-bundle/commit", "0a1b2c3 with changes\n");
        machine.script("bin/nvidia-smi", "#!/bin/sh\necho 'a fake driver'\n");
        // The command follows the tool's options.
        let tool = "#!/bin/bash\necho \"$(basename \"$0\") $*\"\n\
                    while [ $# -gt 0 ] && [ \"${1##*/}\" != gpu-check ]; do shift; done\nexec \"$@\"\n";
        machine.script("bin/compute-sanitizer", tool);
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(machine.folder.path()).arg("-czf").arg(machine.path("bundle.tar.gz"));
        assert!(tar.arg("gpu-bundle").status().unwrap().success());
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn report(&self, arguments: &[&str]) -> Report {
        self.report_with(arguments, &[])
    }

    /// Runs the script with further environment variables.
    fn report_with(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Report {
        let output = self.command(arguments).envs(variables.iter().copied()).output().unwrap();
        Report::read(output, &self.path("report"))
    }

    /// Returns the command of the script with this machine's bundle and folder.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut script = Command::new("bash");
        script.arg(workspace_root().join("trainer/gpu-report.sh"));
        script.arg("--bundle").arg(self.path("bundle.tar.gz")).arg("--out").arg(self.path("report"));
        // The limits are so long that, on any machine, only those of `arguments` end a stage.
        script
            .args(["--libtorch", "/no-libtorch", "--limit", "all=100000"])
            .args(arguments)
            .stdin(Stdio::null());
        let path = std::env::var("PATH").unwrap();
        script.env("PATH", format!("{}:{path}", self.path("bin").display())).env("FAKE", self.folder.path());
        script.env_remove("OMP_NUM_THREADS").env_remove("RLT_KERNELS");
        script
    }
}

/// Output and files of a run of the script.
struct Report {
    output: Output,
    findings: Vec<Value>,
    page: String,
    log: String,
    files: Vec<(String, u64)>,
}

impl Report {
    fn read(output: Output, folder: &Path) -> Self {
        let text = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let findings = text("findings.jsonl");
        let files = std::fs::read_dir(folder).unwrap().map(|file| {
            let file = file.unwrap();
            (file.file_name().into_string().unwrap(), file.metadata().unwrap().len())
        });
        Self {
            output,
            findings: findings.lines().map(|line| serde_json::from_str(line).unwrap()).collect(),
            page: text("gpu-report.md"),
            log: text("output.log"),
            files: files.collect(),
        }
    }

    /// Returns how a run of a stage has ended, and why.
    fn ended(&self, stage: &str, run: &str) -> (&str, &str) {
        let is_it = |line: &&Value| line["stage"] == stage && line["run"] == run && line["ended"].is_string();
        let line = self.findings.iter().find(is_it).unwrap_or_else(|| panic!("{stage} {run}: {}", self.page));
        (line["ended"].as_str().unwrap(), line["text"].as_str().unwrap())
    }

    /// Returns the number of lines before the end of a run of a stage.
    fn place(&self, stage: &str, run: &str) -> usize {
        let is_it = |line: &Value| line["stage"] == stage && line["run"] == run && line["ended"].is_string();
        self.findings.iter().position(is_it).unwrap_or_else(|| panic!("{stage} {run}: {}", self.page))
    }

    /// Returns the findings of a run of a stage.
    fn made(&self, stage: &str, run: &str) -> Vec<&Value> {
        let is_of = |line: &&Value| line["stage"] == stage && line["run"] == run && line["name"].is_string();
        self.findings.iter().filter(is_of).collect()
    }

    fn has_row(&self, parts: &[&str]) -> bool {
        self.page.lines().any(|line| parts.iter().all(|part| line.contains(part)))
    }
}

/// Code that bash reads before the script. Each pause of the script while it waits for its stages advances
/// the script's clock by 50,000 seconds.
const TIME_PASSES_IN_PAUSES: &str = r#"sleep() {
    if [ "${FUNCNAME[1]:-}" = finish ]; then SECONDS=$((SECONDS + 50000)); fi
    command sleep "$@"
}
"#;

const FAILS: &str = r#"echo '{"name":"paged","status":"passed","device":"Fake GPU"}'
echo '{"name":"paged","status":"failed","device":"Fake GPU","error":"rows differ | by 1"}'; exit 1"#;

#[test]
fn stages_that_fail_hang_and_crash_leave_the_others_reported() {
    // The stage that hangs ignores signals, and starts a process in a separate process group.
    let hangs =
        "trap '' TERM INT; set -m; sleep 1000 & echo $! >$FAKE/child; echo $$ >$FAKE/parent; sleep 1000";
    let crashes = r#"echo '{"name":"training","status":"passed"}'; echo 'the last words' >&2; kill -SEGV $$"#;
    let behaviour = format!("paged) {FAILS} ;;\ngraphs) {hangs} ;;\ntraining) {crashes} ;;");
    let machine = Machine::new(&behaviour);
    let report = machine.report(&["--limit", "graphs=2", "--seconds", "100000"]);
    assert_eq!(report.output.status.code(), Some(1), "{}", report.page);

    assert_eq!(report.ended("operators", "first").0, "passed");
    assert_eq!(report.ended("paged", "first"), ("failed", "exit code 1"));
    assert_eq!(report.ended("graphs", "first"), ("failed", "took longer than 2 s and was killed"));
    assert_eq!(report.ended("training", "first"), ("failed", "crashed: SIGSEGV"));
    // A stage that hangs is not run under the sanitizer, which would make it slower still.
    assert_eq!(report.ended("graphs", "blocking").0, "failed");
    assert!(!report.findings.iter().any(|line| line["stage"] == "graphs" && line["run"] == "memcheck"));
    // These stages come after all failed ones.
    for stage in ["memory", "update", "grpo-step-large", "checkpoints", "racecheck:paged"] {
        let made = report.made(stage, "first");
        assert_eq!(made.len(), if stage == "racecheck:paged" { 2 } else { 1 }, "{stage}: {}", report.page);
    }
    for name in ["child", "parent"] {
        // A process that was killed before it started has written no id.
        let Ok(id) = std::fs::read_to_string(machine.path(name)) else { continue };
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z "), "the {name} of a killed stage runs: {stat}");
    }
    assert_eq!(report.made("training", "first").len(), 1, "a finding before the crash is kept");
    assert!(report.log.contains("[training first] the last words"), "{}", report.log);

    assert!(report.has_row(&["| paged | first |", "rows differ \\| by 1"]), "{}", report.page);
    assert!(report.has_row(&["| graphs | first |", "took longer than 2 s"]), "{}", report.page);
    let crashed = "| training | first | the stage | crashed: SIGSEGV: the last words |";
    assert!(report.has_row(&[crashed]), "{}", report.page);
    assert!(report.has_row(&["| update | passed |"]), "{}", report.page);
    assert!(report.page.starts_with("# GPU report: Fake GPU"), "{}", report.page);
}

#[test]
fn failed_checks_run_again_blocking_without_graphs_and_under_the_sanitizer() {
    let graphs = r#"echo '{"name":"graphs","status":"failed","error":"a token differs"}'; exit 1"#;
    let machine = Machine::new(&format!(
        "paged) [ -n \"$CUDA_LAUNCH_BLOCKING\" ] || {{ {FAILS}; }}; {PASSES} ;;\n\
         graphs) [ \"$RLT_CUDA_GRAPHS\" = 0 ] || {{ {graphs}; }}; {PASSES} ;;"
    ));
    let report = machine.report(&["--seconds", "100000"]);
    assert_eq!(report.ended("paged", "first").0, "failed");
    assert_eq!(report.ended("paged", "blocking").0, "passed");
    assert_eq!(report.made("paged", "blocking")[0]["blocking"], "1");
    assert_eq!(report.ended("paged", "memcheck").0, "failed");
    assert!(report.log.contains("[paged memcheck] compute-sanitizer --tool memcheck"), "{}", report.log);
    // Only stages that decode use graphs, so only they have a run without graphs.
    assert_eq!(
        ["first", "blocking", "eager"].map(|run| report.ended("graphs", run).0),
        ["failed", "failed", "passed"]
    );
    assert!(report.made("paged", "eager").is_empty(), "{}", report.page);
    let again = report.findings.iter().filter(|line| line["run"] != "first").map(|line| &line["stage"]);
    assert!(again.into_iter().all(|stage| stage == "paged" || stage == "graphs"), "{}", report.page);
    assert_eq!(report.ended("ncu:decode-speed", "first"), ("not started", "there is no ncu on this machine"));
}

#[test]
fn checks_of_speed_that_failed_run_under_the_sanitizer_behind_all_other_checks() {
    let machine = Machine::new("decode-speed | draws | trace | peer-small) exit 1 ;;");
    let report = machine.report(&["--seconds", "100000"]);
    for (stage, runs) in [
        ("decode-speed", "first blocking eager memcheck"),
        ("draws", "first blocking memcheck"),
        // The sanitizer and a profiler exclude each other.
        ("trace", "first blocking eager"),
        // A peer runs none of our code, so only its first run is useful.
        ("peer-small", "first"),
    ] {
        let is_end = |line: &&Value| line["stage"] == stage && line["ended"].is_string();
        let ends = report.findings.iter().filter(is_end);
        let ended: Vec<&str> = ends.filter_map(|line| line["run"].as_str()).collect();
        assert_eq!(ended.join(" "), runs, "{stage}: {}", report.page);
    }
    let tool = "[decode-speed memcheck] compute-sanitizer --tool memcheck";
    assert!(report.log.contains(tool), "{}", report.log);
    assert!(report.place("draws", "memcheck") < report.place("decode-speed", "memcheck"), "{}", report.page);
    // The peers take minutes, during which a failure would stay unexplained.
    let peer = report.place("peer-small", "first");
    assert!(report.place("decode-speed", "memcheck") < peer, "{}", report.page);
}

#[test]
fn the_page_names_the_first_error_that_the_sanitizer_finds() {
    let machine = Machine::new(&format!("paged) {FAILS} ;;"));
    let finds = "#!/bin/sh\necho '========= COMPUTE-SANITIZER'\n\
                 echo '========= Invalid __global__ write of size 4 bytes'\n\
                 echo '=========     at rlt_paged+0x120'\nexit 86\n";
    machine.script("bin/compute-sanitizer", finds);
    let report = machine.report(&["--seconds", "100000"]);
    let error = "exit code 86; compute-sanitizer: Invalid __global__ write of size 4 bytes";
    for (stage, run) in [("paged", "memcheck"), ("memcheck:paged", "first"), ("racecheck:paged", "first")] {
        assert_eq!(report.ended(stage, run), ("failed", error), "{}", report.page);
        let row = format!("| {stage} | {run} | the stage | {error} |");
        assert!(report.has_row(&[row.as_str()]), "{}", report.page);
    }
}

#[test]
fn second_runs_that_take_too_long_wait_until_everything_was_measured() {
    let machine = Machine::new(&format!("paged) {FAILS} ;;"));
    let report = machine.report(&["--seconds", "100000"]);
    for run in ["blocking", "memcheck"] {
        assert!(report.place("paged", run) < report.place("gemm", "first"), "{}", report.page);
    }
    // Second runs get no time before the measurements, so they come after them.
    let report = machine.report(&["--seconds", "100000", "--limit", "reruns=0"]);
    for run in ["blocking", "memcheck"] {
        assert_eq!(report.ended("paged", run).0, "failed", "{}", report.page);
        assert!(report.place("paged", run) > report.place("peer-large", "first"), "{}", report.page);
    }
}

#[test]
fn the_page_has_the_last_line_of_a_stage_that_failed_without_a_finding() {
    let fails = r#"printf 'version "GLIBC_2.38" is \\ not \033[1mfound\n' >&2; exit 1"#;
    let report = Machine::new(&format!("device) {fails} ;;")).report(&["--seconds", "100000"]);
    assert_eq!(report.ended("device", "first"), ("failed", "exit code 1"));
    let row = r#"| device | first | the stage | exit code 1: version "GLIBC_2.38" is \ not [1mfound |"#;
    assert!(report.has_row(&[row]), "{}", report.page);
}

#[test]
fn a_check_that_ends_itself_at_its_limit_has_hung() {
    let hangs = r#"while [ $# -gt 1 ] && [ "$1" != --limit ]; do shift; done; sleep "$2"; exit 1"#;
    let machine = Machine::new(&format!("paged) {hangs} ;;"));
    let report = machine.report(&["--seconds", "100000", "--limit", "paged=4"]);
    assert_eq!(report.ended("paged", "blocking").0, "failed", "{}", report.page);
    let has_run =
        |run: &str| report.findings.iter().any(|line| line["stage"] == "paged" && line["run"] == run);
    assert!(!has_run("memcheck"), "{}", report.page);
}

#[test]
fn checks_that_run_side_by_side_share_the_cores() {
    let threads = r#"echo "{\"name\":\"$name\",\"status\":\"passed\",\"threads\":\"$OMP_NUM_THREADS\"}""#;
    let report = Machine::new(&format!("paged | update) {threads} ;;")).report(&["--seconds", "100000"]);
    let threads = |stage| report.made(stage, "first")[0]["threads"].as_str().unwrap().parse::<usize>().ok();
    assert!(threads("paged").is_some_and(|threads| threads >= 1), "{}", report.page);
    assert_eq!(threads("update"), None, "a check that runs alone has all cores: {}", report.page);
}

#[test]
fn a_stages_limit_is_that_of_its_check() {
    // Checks under a tool of NVIDIA get no limit.
    let limit = r#"while [ $# -gt 1 ] && [ "$1" != --limit ]; do shift; done
echo "{\"name\":\"paged\",\"status\":\"passed\",\"limit\":${2:-0}}""#;
    let machine = Machine::new(&format!("paged) {limit} ;;\ngraphs) {limit} ;;"));
    let report = machine.report(&["--seconds", "100000", "--limit", "paged=700"]);
    let limit = |stage| report.made(stage, "first")[0]["limit"].clone();
    assert_eq!([limit("paged"), limit("graphs")], [698, 99_998], "{}", report.page);
}

#[test]
fn nothing_is_started_for_which_no_time_is_left() {
    let report = Machine::new("").report(&["--seconds", "0"]);
    assert!(report.findings.iter().all(|line| line["ended"] == "not started"), "{}", report.page);
    assert!(report.has_row(&["| device | not started |", "it needs"]), "{}", report.page);
    assert_eq!(report.output.status.code(), Some(0), "what was not started has not failed");

    // A stage that never ends is killed at the end of the full run, whatever its own limit is. Only pauses of
    // the script advance its clock to that end.
    let machine = Machine::new("");
    machine.script("bin/nvidia-smi", "#!/bin/sh\nsleep 1000\n");
    machine.script("time", TIME_PASSES_IN_PAUSES);
    let time = machine.path("time").display().to_string();
    let limits = ["--seconds", "100000", "--limit", "environment=1000000"];
    let report = machine.report_with(&limits, &[("BASH_ENV", time.as_str())]);
    let (ended, why) = report.ended("environment", "first");
    assert!(ended == "failed" && why.ends_with("and was killed"), "{}", report.page);
    assert_eq!(report.ended("device", "first").0, "not started");
}

#[test]
fn a_report_is_at_most_eight_small_files_whatever_stages_write() {
    let talks = "yes 'words words words' | head -c 2000000; yes words | head -c 2000000 >&2; exit 1";
    let machine = Machine::new(&format!("memory) {talks} ;;"));
    let report = machine.report(&["--seconds", "100000"]);
    assert_eq!(report.ended("memory", "first"), ("failed", "exit code 1"));
    assert!(report.files.len() <= 8, "{:?}", report.files);
    // Each of three runs (first, blocking, memcheck) keeps 256 KiB of both outputs, and all of the 4 MB is
    // read.
    assert!(report.files.iter().all(|(_, bytes)| *bytes <= 4 * (512 << 10)), "{:?}", report.files);
    assert!(report.log.len() > 256 << 10, "{}", report.log.len());
    let environment = std::fs::read_to_string(machine.path("report/environment.txt")).unwrap();
    assert!(environment.contains("a fake driver"), "{environment}");
}

#[test]
fn the_page_has_speeds_beside_bounds_predictions_and_peers() {
    let speed = r#"echo '{"name":"decode-speed","status":"passed","device":"Fake GPU","batch":16,"dtype":"bf16","tokensPerSecond":13561.4,"fractionOfBandwidth":0.0612,"stepMilliseconds":1.18,"predictedFor":"h100","predictedStepMilliseconds":0.8,"ratioToPredictedStepMilliseconds":1.475,"predictedTokensPerSecond":20000}'"#;
    let step = r#"echo '{"name":"grpo-step-small","status":"passed","model":"0.5B","stepSeconds":0.96,"updateMfu":0.128,"predictionError":"no such job"}'"#;
    let peer = r#"echo '{"name":"peer-small","status":"passed","model":"0.5B","peerStepSeconds":4.8}'"#;
    let kernel = r#"echo '{"name":"kernels","status":"passed","kernel":"swiglu","shape":[256,8960],"dtype":"bf16","error":0.0021,"microseconds":7.5,"gigabytesPerSecond":1835.0,"fractionOfBandwidth":0.55,"libtorchMicroseconds":14.2}'"#;
    let machine = Machine::new(&format!(
        "decode-speed) {speed} ;;\ngrpo-step-small) {step} ;;\npeer-small) {peer} ;;\nkernels) {kernel} ;;"
    ));
    let report = machine.report(&["--seconds", "100000"]);
    let decoding = "| decode-speed, batch 16, dtype bf16 | 13,561 tokens/s |  | 0.0612 | 20,000 |  |";
    assert!(report.has_row(&[decoding]), "{}", report.page);
    let step = "| grpo-step-small, model 0.5B | 0.96 s a step | 0.128 |  | no such job | 5 |";
    assert!(report.has_row(&[step]), "{}", report.page);
    let prediction = "| decode-speed, batch 16, dtype bf16 | step milliseconds | 1.18 | 0.8 | 1.48 |";
    assert!(report.has_row(&[prediction]), "{}", report.page);
    assert!(report.has_row(&["| peer-small, model 0.5B | 4.8 s a step of the peer |"]), "{}", report.page);
    let kernel = "| swiglu | [256, 8960] | bf16 | 0.0021 | 7.5 | 1,835 |  | 0.55 | 14.2 |";
    assert!(report.has_row(&[kernel]), "{}", report.page);
    assert!(!report.page.contains("## Failures"), "{}", report.page);
    assert_eq!(report.output.status.code(), Some(0), "{}", report.page);
}

#[test]
fn the_page_has_the_figures_of_others_beside_ours_and_the_goals() {
    let none = Machine::new("").report(&["--seconds", "0"]);
    for row in [
        "samples of about 330 tokens | not measured | 6 s |  | 59.8 s | verl (2025), two GPUs |",
        "with 0.5B parameters | not measured | 40,000 tokens/s |  | 24k tokens/s | nano-vllm, one A800 |",
        "at 16k tokens | not measured | 0.27 MFU |  | 11.9k tokens/s, MFU 0.11 | prime-rl, one H100 |",
        "at 8k tokens | not measured | 35,000 tokens/s |  | 26k tokens/s | prime-rl, one H100 |",
    ] {
        assert!(none.has_row(&[row]), "{row}: {}", none.page);
    }
    let loads = r#"echo '{"name":"published","status":"passed","load":"grpo-step","model":"0.5B","stepSeconds":4.0}'
echo '{"name":"published","status":"passed","load":"generation","tokensPerSecond":20000.0}'
echo '{"name":"published","status":"passed","load":"training-16k","tokensPerSecond":9000.0,"mfu":null}'"#;
    let peer = r#"echo '{"name":"peer-small","status":"passed","model":"0.5B","peerStepSeconds":4.8}'"#;
    let machine = Machine::new(&format!("published) {loads} ;;\npeer-small) {peer} ;;"));
    let report = machine.report(&["--seconds", "100000"]);
    for row in [
        "of about 330 tokens | 4 s | 6 s | 1.5 | 59.8 s |",
        "| 20,000 tokens/s | 40,000 tokens/s | 0.5 | 24k tokens/s |",
        // A GPU that the table of plans lacks has no MFU.
        "at 16k tokens | 9,000 tokens/s | 0.27 MFU |  |",
        // The peer has another load.
        "| published, load grpo-step, model 0.5B | 4 s a step |  |  |  |  |",
    ] {
        assert!(report.has_row(&[row]), "{row}: {}", report.page);
    }
}

#[test]
fn checks_run_with_the_settings_of_jobs_or_those_that_are_given() {
    let machine = Machine::new("");
    std::fs::copy(workspace_root().join("trainer/gpu-check.sh"), machine.path("gpu-check")).unwrap();
    machine.script("rlt-trainer", "#!/bin/sh\necho \"$GOMP_SPINCOUNT $LD_LIBRARY_PATH $*\"\n");
    machine.script("lib/libtorch_cpu.so", "");
    let run = |spin_count: Option<&str>| {
        let mut command = Command::new("sh");
        command.arg(machine.path("gpu-check")).arg("--libtorch").arg(machine.path("lib")).arg("device");
        for name in ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "LD_LIBRARY_PATH"] {
            command.env_remove(name);
        }
        let given = spin_count.map(|count| ("GOMP_SPINCOUNT", count));
        String::from_utf8(command.envs(given).output().unwrap().stdout).unwrap()
    };
    let libraries = machine.path("lib").display().to_string();
    assert_eq!(run(None), format!("1000 {libraries} gpu-check device\n"));
    assert_eq!(run(Some("7")), format!("7 {libraries} gpu-check device\n"));
}

/// A kernel can be corrected on the machine with the GPU, although the binary cannot be built there.
#[test]
fn other_kernels_than_the_bundles_are_used_and_named() {
    let kernels = r#"echo "{\"name\":\"paged\",\"status\":\"passed\",\"kernels\":\"$RLT_KERNELS\"}""#;
    let machine = Machine::new(&format!("paged) {kernels} ;;"));
    let report = machine.report_with(&["--seconds", "100000"], &[("RLT_KERNELS", "/tmp/mine.fatbin")]);
    assert_eq!(report.made("paged", "first")[0]["kernels"], "/tmp/mine.fatbin");
    let named = ", kernels of /tmp/mine.fatbin instead of the bundle's";
    assert!(report.has_row(&["commit 0a1b2c3 with changes, bundle ", named]), "{}", report.page);
    let report = machine.report(&["--seconds", "100000"]);
    assert_eq!(report.made("paged", "first")[0]["kernels"], "");
    assert!(!report.page.contains("instead of the bundle's"), "{}", report.page);
}

#[test]
fn a_report_needs_a_folder_and_a_bundle() {
    let script = |arguments: &[&str]| {
        let mut command = Command::new("bash");
        command.arg(workspace_root().join("trainer/gpu-report.sh")).args(arguments).env_remove("OUT");
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, words) = script(&[]);
    assert!(code == Some(2) && words.contains("--out"), "{words}");
    let (code, words) = script(&["--out", "/nowhere", "--bundle", "/no-bundle"]);
    assert!(code == Some(2) && words.contains("/no-bundle is missing"), "{words}");
    let (code, words) = script(&["--fast", "1"]);
    assert!(code == Some(2) && words.contains("--fast is no option"), "{words}");
}
