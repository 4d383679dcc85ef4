//! `rlt-trainer gpu-check`: proves on this machine's GPU what tests prove without one, and measures.
//!
//! Every check runs in a process of its own with a time limit, so that one that crashes or hangs is a failed
//! check and no more. Each writes lines of JSON with `name`, `status` (`passed`, `failed` or `skipped`),
//! `device` and figures. Without a GPU every check is skipped; nothing is ever called passed that did not
//! run.

mod decode;
mod memory;
mod operators;
mod trainings;

use std::io::{Read as _, Seek as _, Write as _};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use rlt_api::ExitCode;
use rlt_torch::cuda;
use serde_json::{Map, Value, json};

/// How often a parent asks whether its child has ended.
const POLL: Duration = Duration::from_millis(20);
/// What of a failed child's last words is repeated, in bytes.
const MAX_WORDS: usize = 1500;

/// Checks this machine's GPU.
#[derive(Args, Clone, Debug)]
pub struct GpuCheckArgs {
    /// Run only these; by default all
    #[arg(value_enum, value_name = "CHECK")]
    pub checks: Vec<Check>,
    /// Longest that a check may take, in seconds
    #[arg(long, value_name = "SECONDS", default_value = "180")]
    pub limit: u64,
    /// Run the one check in this process, and write its lines
    #[arg(long, hide = true)]
    pub here: bool,
}

/// A check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Check {
    /// The device, and whether our kernels fit it.
    Device,
    /// Operators against the CPU's in fp64.
    Operators,
    /// A training on the GPU gives the CPU's numbers.
    Training,
    /// A training begun on one goes on on the other.
    Checkpoints,
    /// 200 cycles of taking and giving back memory leave none behind.
    Memory,
    /// Copies, launches and waits of a decoding step.
    Decode,
}

/// What a check found: one map of figures a line, and whether it is as it should be.
type Findings = Vec<(bool, Map<String, Value>)>;

/// Why a check could not come to its end.
type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Check {
    fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Operators => "operators",
            Self::Training => "training",
            Self::Checkpoints => "checkpoints",
            Self::Memory => "memory",
            Self::Decode => "decode",
        }
    }

    fn run(self) -> Result<Findings, Failure> {
        match self {
            Self::Device => device(),
            Self::Operators => operators::check(),
            Self::Training => trainings::same_numbers(),
            Self::Checkpoints => trainings::across(),
            Self::Memory => memory::check(),
            Self::Decode => decode::check(),
        }
    }
}

/// Runs the checks and writes their lines.
///
/// # Errors
/// When standard output cannot be written.
pub fn run(args: &GpuCheckArgs) -> std::io::Result<ExitCode> {
    let checks = if args.checks.is_empty() { Check::value_variants() } else { &args.checks };
    let mut all_passed = true;
    for check in checks {
        let lines = if cuda::look_for_cuda().num_gpus() == 0 {
            vec![skipped(*check)]
        } else if args.here {
            here(*check)
        } else {
            in_child(*check, Duration::from_secs(args.limit))
        };
        let mut out = std::io::stdout();
        for line in lines {
            all_passed &= line["status"] != "failed";
            writeln!(out, "{line}")?;
        }
        out.flush()?;
    }
    Ok(if all_passed { ExitCode::Success } else { ExitCode::Failure })
}

fn skipped(check: Check) -> Value {
    json!({
        "name": check.name(), "status": "skipped", "device": null, "reason": cuda::look_for_cuda().to_string(),
    })
}

fn device_name() -> Option<String> {
    cuda::gpus().ok()?.first().map(|gpu| gpu.name.clone())
}

fn line(check: Check, status: &str, figures: Map<String, Value>) -> Value {
    let mut line = json!({ "name": check.name(), "status": status, "device": device_name() });
    if let Some(line) = line.as_object_mut() {
        line.extend(figures);
    }
    line
}

fn failed(check: Check, error: &str) -> Value {
    line(check, "failed", Map::from_iter([("error".to_owned(), error.into())]))
}

fn here(check: Check) -> Vec<Value> {
    match check.run() {
        Ok(findings) => findings
            .into_iter()
            .map(|(holds, figures)| line(check, if holds { "passed" } else { "failed" }, figures))
            .collect(),
        Err(error) => vec![failed(check, &error.to_string())],
    }
}

fn in_child(check: Check, limit: Duration) -> Vec<Value> {
    child_lines(check, limit).unwrap_or_else(|error| vec![failed(check, &error.to_string())])
}

/// The lines of the check in a process of its own.
fn child_lines(check: Check, limit: Duration) -> Result<Vec<Value>, Failure> {
    let (mut answer, mut words) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let started = Instant::now();
    let mut child = Command::new(std::env::current_exe()?)
        .args(["gpu-check", "--here", check.name()])
        .stdin(Stdio::null())
        .stdout(answer.try_clone()?)
        .stderr(words.try_clone()?)
        .spawn()?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if started.elapsed() > limit {
            child.kill()?;
            child.wait()?;
            return Err(format!("took longer than {} s", limit.as_secs()).into());
        }
        std::thread::sleep(POLL);
    };
    let text = read_all(&mut answer)?;
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if !lines.is_empty() && (status.success() || lines.iter().any(|line| line["status"] == "failed")) {
        return Ok(lines);
    }
    let words = read_all(&mut words)?;
    let begin = words.ceil_char_boundary(words.len().saturating_sub(MAX_WORDS));
    Err(format!("its process ended by {status}: {}", words[begin..].trim()).into())
}

fn read_all(file: &mut std::fs::File) -> std::io::Result<String> {
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// What the device is, and whether our kernels run on it.
fn device() -> Result<Findings, Failure> {
    let findings = cuda::gpus()?.into_iter().map(|gpu| {
        let kernels = cuda::Kernels::load(gpu.index).err().map(|error| error.to_string());
        let (major, minor) = gpu.compute_capability;
        let figures = [
            ("index", json!(gpu.index)),
            ("computeCapability", json!(format!("{major}.{minor}"))),
            ("memoryBytes", json!(gpu.memory_bytes)),
            ("freeBytes", json!(gpu.free_bytes)),
            ("kernelsProblem", json!(kernels)),
        ];
        (kernels.is_none(), map(figures))
    });
    Ok(findings.collect())
}

fn map<const N: usize>(figures: [(&str, Value); N]) -> Map<String, Value> {
    figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
