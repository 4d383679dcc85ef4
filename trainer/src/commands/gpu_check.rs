//! `rlt-trainer gpu-check`: runs on this machine's GPU the checks that tests run without one, and measures.
//!
//! Every check runs in a separate process with a time limit, so that a crash or hang is only a failed check.
//! Each writes lines of JSON with `name`, `status` (`passed`, `failed` or `skipped`), `device` and figures. A
//! check that lacks something (a GPU, a second one, a peer's library) is skipped with the reason; a check
//! that did not run is never reported as passed. Limits add up to less than ten minutes. On a device of CPU
//! memory checks of speed run on tiny shapes, and their times mean nothing.

mod child;
mod decode;
mod draws;
mod experts;
mod graphs;
mod memory;
mod nccl;
mod operators;
mod paged;
mod quantized;
mod shapes;
mod speed;
mod trainings;
pub mod workload;

use std::io::Write as _;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use rlt_api::ExitCode;
use rlt_torch::cuda;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::{Map, Value, json};

/// In the name of a device of CPU memory, whose times mean nothing.
const STAND_IN: &str = "Stand-in";

/// Options of `gpu-check`.
#[derive(Args, Clone, Debug)]
pub struct GpuCheckArgs {
    /// Checks to run; by default all
    #[arg(value_enum, value_name = "CHECK")]
    pub checks: Vec<Check>,
    /// Time limit of each check in seconds; by default each has its own, in all below 600
    #[arg(long, value_name = "SECONDS")]
    pub limit: Option<u64>,
    /// Run the one check in this process, and write its lines
    #[arg(long, hide = true)]
    pub here: bool,
}

/// Check of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Check {
    /// Device: whether the kernels of this program fit it.
    Device,
    /// Operators compared with the CPU's in fp64.
    Operators,
    /// Tokens drawn by the sampling kernel compared with the CPU's.
    Draws,
    /// Attention over a paged cache compared with dense attention.
    Paged,
    /// Decoding by CUDA graphs compared with single launches, bit for bit, and with the CPU's tokens.
    Graphs,
    /// Training on the GPU compared with the CPU's.
    Training,
    /// Checkpoints of a training on GPU or CPU that are resumed on the other.
    Checkpoints,
    /// Memory that is left allocated after 200 cycles of taking and giving back.
    Memory,
    /// Collectives between this machine's GPUs.
    Nccl,
    /// Copies, launches and waits of a decoding step, where the device counts them.
    Decode,
    /// Speed: products of matrices in bf16.
    Gemm,
    /// Speed: copies on the device, and between it and pinned memory of the host.
    Copies,
    /// Speed: tokens a second of a 135M-parameter Llama, at batches 1 to 256.
    DecodeSpeed,
    /// Speed: an update, as a fraction of the GPU's FLOP/s.
    Update,
    /// Speed: a GRPO step of a model of 0.5B parameters, compared with transformers.
    GrpoStepSmall,
    /// Speed: a GRPO step of a model of 1.5B parameters, compared with transformers.
    GrpoStepLarge,
}

/// How a check, or a part of one, ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Passed,
    Failed,
    Skipped,
}

/// One line of a check's output.
struct Finding {
    status: Status,
    figures: Map<String, Value>,
}

type Findings = Vec<Finding>;

/// An error that keeps a check from its end.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Finding {
    /// Figures that are, or are not, as they should be.
    fn new<const N: usize>(holds: bool, figures: [(&str, Value); N]) -> Self {
        Self { status: if holds { Status::Passed } else { Status::Failed }, figures: map(figures) }
    }

    /// A skipped check, with the reason.
    fn skipped(reason: impl Into<String>) -> Self {
        Self { status: Status::Skipped, figures: map([("reason", reason.into().into())]) }
    }

    /// With further figures.
    fn with<const N: usize>(mut self, figures: [(&str, Value); N]) -> Self {
        self.figures.extend(map(figures));
        self
    }
}

impl Check {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Timeout: several times what the check takes on an H200, and twice that beside a peer, which takes most
    /// of it (69 and 92 s).
    fn limit(self) -> Duration {
        let seconds = match self {
            Self::Device | Self::Operators | Self::Draws | Self::Paged | Self::Gemm | Self::Copies => 15,
            Self::Decode => 15,
            Self::Graphs | Self::Memory => 20,
            Self::Training | Self::Nccl | Self::Update => 30,
            Self::Checkpoints | Self::DecodeSpeed => 30,
            Self::GrpoStepSmall => 125,
            Self::GrpoStepLarge => 170,
        };
        Duration::from_secs(seconds)
    }

    fn run(self) -> Result<Findings, Failure> {
        match self {
            Self::Device => device(),
            Self::Operators => Ok([operators::check()?, quantized::check()?].into_iter().flatten().collect()),
            Self::Draws => draws::check(),
            Self::Paged => paged::check(),
            Self::Graphs => graphs::check(),
            Self::Training => trainings::same_numbers(),
            Self::Checkpoints => trainings::across(),
            Self::Memory => memory::check(),
            Self::Nccl => nccl::check(),
            Self::Decode => decode::check(),
            Self::Gemm => speed::limits::products(),
            Self::Copies => speed::limits::copies(),
            Self::DecodeSpeed => speed::decode::check(),
            Self::Update => speed::update::check(),
            Self::GrpoStepSmall => speed::grpo_step::check(shapes::Size::Small),
            Self::GrpoStepLarge => speed::grpo_step::check(shapes::Size::Large),
        }
    }
}

/// Runs the checks and writes their lines, and on standard error how many ended how.
///
/// # Errors
/// When standard output cannot be written.
pub fn run(args: &GpuCheckArgs) -> std::io::Result<ExitCode> {
    let checks = if args.checks.is_empty() { Check::value_variants() } else { &args.checks };
    let (started, mut counts) = (Instant::now(), [0_usize; 3]);
    for &check in checks {
        let lines = if cuda::look_for_cuda().num_gpus() == 0 {
            vec![without_gpu(check)]
        } else if args.here {
            here(check)
        } else {
            let limit = args.limit.map_or(check.limit(), Duration::from_secs);
            child::lines(check, limit).unwrap_or_else(|error| vec![failed(check, &error.to_string())])
        };
        let mut out = std::io::stdout();
        for line in lines {
            let status = ["passed", "failed", "skipped"].iter().position(|status| line["status"] == *status);
            counts[status.unwrap_or(1)] += 1;
            writeln!(out, "{line}")?;
        }
        out.flush()?;
    }
    let [passed, failed, skipped] = counts;
    if !args.here {
        let seconds = started.elapsed().as_secs_f64();
        writeln!(
            std::io::stderr(),
            "gpu-check: {passed} passed, {failed} failed, {skipped} skipped in {seconds:.0} s"
        )?;
    }
    Ok(if failed == 0 { ExitCode::Success } else { ExitCode::Failure })
}

/// Skipped; where there is a GPU that cannot be used, the check of the device has failed.
fn without_gpu(check: Check) -> Value {
    let search = cuda::look_for_cuda();
    if check == Check::Device && search.has_unusable_gpu() {
        return failed(check, &search.to_string());
    }
    line(check, Finding::skipped(search.to_string()))
}

/// The first GPU's name.
fn device_name() -> Option<String> {
    cuda::gpus().ok()?.first().map(|gpu| gpu.name.clone())
}

fn is_stand_in() -> bool {
    device_name().is_some_and(|name| name.contains(STAND_IN))
}

fn line(check: Check, finding: Finding) -> Value {
    let status = match finding.status {
        Status::Passed => "passed",
        Status::Failed => "failed",
        Status::Skipped => "skipped",
    };
    let name = if cuda::look_for_cuda().num_gpus() > 0 { device_name() } else { None };
    let mut line = map([("name", json!(check.name())), ("status", json!(status)), ("device", json!(name))]);
    line.extend(finding.figures);
    line.into()
}

fn failed(check: Check, error: &str) -> Value {
    line(check, Finding::new(false, [("error", error.into())]))
}

/// The lines of a check in this process.
fn here(check: Check) -> Vec<Value> {
    // The parent process ends it.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    match check.run() {
        Ok(findings) => findings.into_iter().map(|finding| line(check, finding)).collect(),
        Err(error) => vec![failed(check, &error_text(error.as_ref()))],
    }
}

/// An error with its causes.
fn error_text(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The device, and whether our kernels run on it.
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
        Finding::new(kernels.is_none(), figures)
    });
    Ok(findings.collect())
}

fn map<const N: usize>(figures: [(&str, Value); N]) -> Map<String, Value> {
    figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_of_all_checks_add_up_to_less_than_ten_minutes() {
        let limits: Duration = Check::value_variants().iter().map(|check| check.limit()).sum();
        // The rest is for the processes' ends.
        assert!(limits <= Duration::from_secs(590), "{limits:?}");
    }
}
