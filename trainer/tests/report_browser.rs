//! Opens a report in headless Chromium, at desk and phone size, light and dark: no error, no request beyond
//! the page itself, every plot with points, nothing wider than the screen, enough contrast.
//!
//! The tests are skipped, with a notice, where no Chromium is installed; under `CI` they fail there.
//! `RLT_REPORT_FOLDER=dir` keeps the report and screenshots of it in `dir`.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rlt_trainer::observe::report;
use serde_json::{Value, json};

const PROBE: &str = include_str!("report_browser/probe.js");
const NUM_STEPS: u64 = 120;

/// Noise that is the same everywhere, from -1 to 1 (the finaliser of SplitMix64).
fn noise(step: u64, channel: u64) -> f64 {
    let mut bits = (step << 8 | channel).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((bits ^ bits >> 31) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

fn training_step(step: u64) -> Value {
    let progress = 1.0 - (-(step as f64) / 35.0).exp();
    let evaluates = step.is_multiple_of(20);
    let mut metrics = json!({
        "step": step, "training/phase": 1, "timestamp": 1.8e9 + 2.0 * step as f64,
        "critic/rewards/mean": (0.18 + 0.7 * progress + 0.05 * noise(step, 1)).clamp(0.0, 1.0),
        "actor/kl_loss": 0.02 * progress * (1.0 + 0.3 * noise(step, 2)),
        "actor/entropy": 1.4 * (1.0 - 0.8 * progress) + 0.04 * noise(step, 3),
        "actor/pg_clipfrac": (0.01 * (1.0 + noise(step, 4))).max(0.0),
        "actor/pg_clipfrac_lower": 0.0,
        "actor/grad_norm": 0.4 + 0.2 * noise(step, 5).abs(),
        "actor/lr": 3e-4 * (1.0 + (std::f64::consts::PI * step as f64 / NUM_STEPS as f64).cos()) / 2.0,
        "response_length/mean": 5.0 - progress + 0.1 * noise(step, 6),
        "response_length/max": 8.0, "response_length/min": 2.0,
        "response_length/clip_ratio": (0.3 * (1.0 - progress) + 0.02 * noise(step, 7)).max(0.0),
        "training/rollout_logprobs_diff_max": 2e-6 * (1.5 + noise(step, 8)),
        "training/rollout_probs_diff_max": 6e-7 * (1.5 + noise(step, 9)),
        "timing_s/gen": 0.62 + 0.05 * noise(step, 10), "timing_s/reward": 0.01,
        "timing_s/old_log_prob": 0.14, "timing_s/ref": 0.13, "timing_s/adv": 0.0004,
        "timing_s/update_actor": 0.71 + 0.03 * noise(step, 11), "timing_s/update_weights": 0.02,
        "timing_s/step": if evaluates { 2.25 } else { 1.75 },
        "perf/throughput": 3900.0 + 200.0 * noise(step, 12),
        "perf/cpu_memory_used_gb": 0.9 + 0.02 * progress,
    });
    if evaluates {
        metrics["val-core/arithmetic/reward/mean@1"] = json!(0.21 + 0.66 * progress);
        metrics["timing_s/testing"] = json!(0.5);
    }
    metrics
}

fn completion(step: u64, prompt: &str, answer: &str, text: &str, reward: f64) -> Value {
    json!({
        "step": step, "held_out": true, "data_source": "arithmetic", "prompt": prompt, "completion": text,
        "ground_truth": answer, "reward": reward, "reward_parts": {"correct": reward}, "reward_status": "ok",
        "finish_reason": if text.len() > 6 { "length" } else { "stop" }, "num_tokens": text.chars().count(),
    })
}

fn lines(values: impl Iterator<Item = Value>) -> String {
    values.map(|value| format!("{value}\n")).collect()
}

fn synthetic_run(folder: &Path) {
    let cold_start = (1..=150).map(|step| {
        let loss = 0.75 + 1.9 * (-(step as f64) / 30.0).exp() + 0.04 * noise(step, 0);
        json!({"step": step, "training/phase": 0, "timestamp": 1.8e9, "sft/loss": loss, "timing_s/step": 0.1})
    });
    let held_out = json!({
        "step": 0, "training/phase": 1, "timestamp": 1.8e9, "val-core/arithmetic/reward/mean@1": 0.21,
        "timing_s/testing": 0.5,
    });
    let steps = cold_start.chain([held_out]).chain((1..=NUM_STEPS).map(training_step));
    fs::write(folder.join("metrics.jsonl"), lines(steps)).unwrap();
    let problems =
        [("12+7=", "19", "27"), ("84-59=", "25", "3555555"), ("40+33=", "73", "74"), ("9-31=", "-22", "22")];
    let records = problems.into_iter().flat_map(|(prompt, answer, wrong)| {
        [completion(0, prompt, answer, wrong, 0.0), completion(NUM_STEPS, prompt, answer, answer, 1.0)]
    });
    let evil = "<b>not bold</b> & <script>document.title = 'broken'</script>\u{202e}";
    let evil = [0, NUM_STEPS].map(|step| completion(step, "a prompt\nof two lines", "", evil, 0.0));
    fs::write(folder.join("completions.jsonl"), lines(records.chain(evil))).unwrap();
    let manifest = include_str!("../../examples/quickstart/job.yaml");
    fs::write(folder.join("manifest.yaml"), manifest).unwrap();
}

fn chromium() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
    let folders: Vec<PathBuf> = std::env::split_paths(&std::env::var_os("PATH")?).collect();
    let found = names.iter().flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    found.into_iter().find(|path| path.is_file())
}

/// Longest wait for the report of the page; Chromium takes two seconds on an idle machine.
const TIMEOUT: Duration = Duration::from_secs(300);

/// An HTTP server of a page in a frame, which runs until the process ends.
struct Served {
    port: u16,
    /// Paths of all requests so far.
    paths: Arc<Mutex<BTreeSet<String>>>,
    /// Bodies of the reports that the page has sent.
    reported: Receiver<Vec<u8>>,
}

/// Serves `page` at `/report`, and at `/` a frame of the given size around it, which posts the page's reports
/// to `/seen`. Each connection has a thread, since a browser opens connections that it may never use.
///
/// A window of Chromium is at least 500 pixels wide; a frame can be as narrow as a phone.
fn serve(page: String, (width, height): (u32, u32)) -> Served {
    let frame = format!(
        "<!doctype html><link rel=icon href=data:,><style>:root{{color-scheme:light dark}}body{{margin:0}}\
         iframe{{border:0;width:{width}px;height:{height}px}}</style>\
         <script>function report(seen) {{ fetch('/seen', {{ method: 'POST', body: seen }}); }}</script>\
         <iframe src=/report></iframe>"
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (paths, (report, reported)) = (Arc::new(Mutex::new(BTreeSet::new())), channel());
    let (bodies, seen_paths) = (Arc::new([page, frame]), Arc::clone(&paths));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (stream, bodies, paths) = (stream.unwrap(), Arc::clone(&bodies), Arc::clone(&seen_paths));
            let report = report.clone();
            std::thread::spawn(move || answer(stream, &bodies, &paths, &report));
        }
    });
    Served { port, paths, reported }
}

/// Answers the only request of a connection.
fn answer(
    mut stream: TcpStream,
    [page, frame]: &[String; 2],
    paths: &Mutex<BTreeSet<String>>,
    report: &Sender<Vec<u8>>,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut length = 0;
    loop {
        let mut header = String::new();
        let num_bytes = reader.read_line(&mut header).unwrap_or(0);
        let Some((name, value)) = header.split_once(':').filter(|_| num_bytes > 0) else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse().unwrap();
        }
    }
    let mut sent = vec![0; length];
    reader.read_exact(&mut sent).unwrap();
    paths.lock().unwrap().insert(path.clone());
    let body = if path == "/report" { page } else { frame };
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n";
    let _ = write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len());
    if path == "/seen" {
        // Sending fails when the test has ended.
        let _ = report.send(sent);
    }
}

struct View {
    name: &'static str,
    width: u32,
    height: u32,
    dark: bool,
}

impl View {
    fn browser(&self, chromium: &Path, profile: &Path) -> Command {
        let mut command = Command::new(chromium);
        let flags = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars \
                     --disable-background-networking --disable-component-update --no-first-run";
        command.args(flags.split_whitespace());
        command.arg(format!("--user-data-dir={}", profile.display()));
        command.arg(format!("--blink-settings=preferredColorScheme={}", if self.dark { 0 } else { 1 }));
        command
    }

    /// Returns what the probe in the page reports, however long the browser takes to start and to draw.
    fn probe(&self, chromium: &Path, page: &str) -> Value {
        let (profile, log) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        let nonce = page.split("nonce=\"").nth(1).unwrap().split('"').next().unwrap();
        let probe = format!("<head>\n<script nonce=\"{nonce}\">{PROBE}</script>");
        let served = serve(page.replacen("<head>", &probe, 1), (self.width, self.height));
        let mut browser = self.browser(chromium, profile.path());
        browser.arg(format!("http://127.0.0.1:{}/", served.port));
        browser.stdout(Stdio::null()).stderr(log.reopen().unwrap());
        let mut browser = browser.spawn().unwrap();
        let seen = served.reported.recv_timeout(TIMEOUT);
        browser.kill().unwrap();
        browser.wait().unwrap();
        let seen = seen.unwrap_or_else(|_| panic!("no report: {}", fs::read_to_string(log.path()).unwrap()));
        let paths: Vec<String> = served.paths.lock().unwrap().iter().cloned().collect();
        assert_eq!(paths, ["/", "/report", "/seen"], "{}: the frame, the page, no more", self.name);
        serde_json::from_slice(&seen).unwrap()
    }

    fn picture(&self, chromium: &Path, page: &str, folder: &Path) {
        let profile = tempfile::tempdir().unwrap();
        let height = if self.width < 600 { 9000 } else { 5200 };
        let port = serve(page.to_owned(), (self.width, height)).port;
        let mut browser = self.browser(chromium, profile.path());
        browser.arg("--virtual-time-budget=4000");
        browser.arg(format!("--window-size={},{height}", self.width.max(500)));
        browser.arg(format!("--screenshot={}", folder.join(format!("{}.png", self.name)).display()));
        assert!(browser.arg(format!("http://127.0.0.1:{port}/")).output().unwrap().status.success());
    }
}

/// Returns the path of Chromium, or reports that the test is skipped.
fn chromium_or_skip() -> Option<PathBuf> {
    let found = chromium();
    if found.is_none() {
        rlt_skipped::skip("no chromium on PATH to open the report with");
    }
    found
}

/// Checks the properties that every page must have on every screen.
#[track_caller]
fn assert_reads_well(view: &View, seen: &Value) {
    assert_eq!(seen["errors"], json!([]), "{}", view.name);
    assert_eq!(seen["requests"], json!([]), "{}", view.name);
    assert_eq!(seen["dark"], view.dark, "{}", view.name);
    assert_eq!(seen["width"], view.width, "{}", view.name);
    assert!(seen["page_width"].as_u64().unwrap() <= u64::from(view.width), "{}: {seen}", view.name);
    assert!(seen["smallest_text"].as_f64().unwrap() >= 11.0, "{}: {seen}", view.name);
    assert_eq!(seen["low_contrast"], json!([]), "{}", view.name);
    for plot in seen["plots"].as_array().unwrap() {
        let at_least = |name: &str, least: u64| plot[name].as_u64().unwrap() >= least;
        assert!(at_least("points", 7) && at_least("width", 200) && at_least("height", 100), "{plot}");
        assert!(plot["readout"].as_str().unwrap().starts_with("step "), "{plot}");
        assert!(!plot["description"].as_str().unwrap().is_empty(), "{plot}");
    }
}

/// Trains eight steps, each followed by an evaluation, and returns the page of the run.
fn page_of_a_real_run(folder: &Path) -> String {
    let mut manifest = rlt_tests::tiny_job();
    let spec = &mut manifest["spec"];
    spec["algorithm"]["kl"] = json!({ "coefficient": 0.01 });
    spec["training"]["steps"] = json!(8);
    spec["training"]["evaluateEvery"] = json!(1);
    let (file, run) = (folder.join("job.yaml"), folder.join("run"));
    fs::write(&file, manifest.to_string()).unwrap();
    let mut trainer = Command::new(env!("CARGO_BIN_EXE_rlt-trainer"));
    let ended = trainer.args(["launch", "--manifest"]).arg(&file).arg("--output").arg(&run).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    fs::read_to_string(run.join("report.html")).unwrap()
}

#[test]
fn the_report_of_a_real_run_reads_well() {
    let Some(chromium) = chromium_or_skip() else { return };
    let folder = tempfile::tempdir().unwrap();
    let page = page_of_a_real_run(folder.path());
    let view = View { name: "phone-dark", width: 390, height: 844, dark: true };
    let seen = view.probe(&chromium, &page);
    assert_eq!(seen["title"], "tiny");
    assert_reads_well(&view, &seen);
    assert!(seen["plots"].as_array().unwrap().len() >= 10, "{seen}");
}

#[test]
fn the_report_reads_well_on_every_screen() {
    let Some(chromium) = chromium_or_skip() else { return };
    let temporary = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("RLT_REPORT_FOLDER").map(PathBuf::from);
    let folder = kept.clone().unwrap_or_else(|| temporary.path().to_path_buf());
    synthetic_run(&folder);
    let page = fs::read_to_string(report::render(&folder).unwrap()).unwrap();
    let views = [
        View { name: "desk-light", width: 1280, height: 900, dark: false },
        View { name: "desk-dark", width: 1280, height: 900, dark: true },
        View { name: "phone-light", width: 390, height: 844, dark: false },
    ];
    for view in &views {
        let seen = view.probe(&chromium, &page);
        assert_eq!(seen["title"], "quickstart");
        assert_reads_well(view, &seen);
        assert_eq!(seen["plots"].as_array().unwrap().len(), 13, "{}: {seen}", view.name);
        if kept.is_some() {
            view.picture(&chromium, &page, &folder);
        }
    }
}
