//! `rlt-trainer gpu-check`: runs checks on this machine's GPU that tests run on emulated devices, and
//! measures its speed.
//!
//! Every check runs in a separate process with a time limit, so that a crash or hang is only a failed check.
//! Each writes its findings as lines of JSON with `name`, `status` (`passed`, `failed` or `skipped`),
//! `device` and figures. A line is written as soon as a finding is made, so that a check that ends early
//! loses none. A check that lacks something (a GPU, a second one, a peer's library) is skipped with the
//! reason; a check that did not run is never reported as passed. The limits of the checks that run by default
//! add up to less than ten minutes. On an emulated device (of CPU memory) checks of speed run on tiny shapes,
//! and their times mean nothing.

mod child;
mod decode;
mod draws;
mod experts;
mod finding;
mod gradients;
mod graph_models;
mod graphs;
mod kernels;
mod memory;
mod nccl;
mod operators;
mod packed;
mod paged;
mod quantized;
mod shapes;
mod speed;
mod trainings;
pub mod workload;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use rlt_api::ExitCode;
use rlt_torch::cuda;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde_json::{Value, json};

pub use self::finding::Failure;
use self::finding::{Finding, Report, Status, device_name, error_text, is_stand_in, map, worse};
use self::shapes::Size;

/// Options of `gpu-check`.
#[derive(Args, Clone, Debug)]
pub struct GpuCheckArgs {
    /// Checks to run; by default those whose limits add up to less than ten minutes
    #[arg(value_enum, value_name = "CHECK")]
    pub checks: Vec<Check>,
    /// Time limit of each check in seconds; by default each has its own
    #[arg(long, value_name = "SECONDS")]
    pub limit: Option<u64>,
    /// Run every check, which may take more than ten minutes
    #[arg(long, conflicts_with = "checks")]
    pub all: bool,
    /// Measure GRPO steps without the comparison with transformers
    #[arg(long)]
    pub no_peer: bool,
    /// Folder for the files of the check `trace`
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub trace_folder: PathBuf,
    /// Run the one check in this process, and write its lines
    #[arg(long = "here", hide = true)]
    pub in_process: bool,
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
    /// Attention of packed tokens with shared prefixes, forward and backward, against fp64. Not by default.
    Packed,
    /// Decoding by CUDA graphs for further model families and with long prompts. Not by default.
    GraphModels,
    /// Every kernel of this repository: error against fp64, time beside libtorch's operators. Not by default.
    Kernels,
    /// Speed: decoding with 1.5B parameters and long contexts; reserved memory of many calls. Not by default.
    DecodeTail,
    /// Speed: the loads of which others have published figures. Not by default.
    Published,
    /// Speed: the GRPO step of `grpo-step-small` by transformers alone. Not by default.
    PeerSmall,
    /// Speed: the GRPO step of `grpo-step-large` by transformers alone. Not by default.
    PeerLarge,
    /// Traces of decoding and of an update by libtorch's profiler, as files. Not by default.
    Trace,
}

impl Check {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Whether the check runs if none is named. The limits of these checks add up to less than ten minutes.
    fn runs_by_default(self) -> bool {
        !matches!(
            self,
            Self::Packed
                | Self::GraphModels
                | Self::Kernels
                | Self::DecodeTail
                | Self::Published
                | Self::PeerSmall
                | Self::PeerLarge
                | Self::Trace
        )
    }

    /// Returns the time limit of the check: several times its duration on an H200. The limit of a check with
    /// a peer exceeds the peer's own limit.
    fn limit(self) -> Duration {
        let seconds = match self {
            Self::Device | Self::Operators | Self::Draws | Self::Paged | Self::Gemm | Self::Copies => 15,
            Self::Decode => 15,
            Self::Graphs | Self::Memory => 20,
            Self::Nccl | Self::Update | Self::Checkpoints | Self::DecodeSpeed | Self::Packed => 30,
            Self::Trace => 40,
            Self::Training => 50,
            Self::GraphModels | Self::Kernels | Self::DecodeTail => 60,
            Self::Published => 90,
            Self::GrpoStepSmall | Self::PeerSmall => 125,
            Self::GrpoStepLarge | Self::PeerLarge => 150,
        };
        Duration::from_secs(seconds)
    }

    fn run(self, args: &GpuCheckArgs, report: &mut Report<'_>) -> Result<(), Failure> {
        match self {
            Self::Device => device(report),
            Self::Operators => {
                operators::check(report)?;
                quantized::check(report)
            }
            Self::Draws => draws::check(report),
            Self::Paged => paged::check(report),
            Self::Graphs => graphs::check(report),
            Self::Training => trainings::same_numbers(report),
            Self::Checkpoints => trainings::across(report),
            Self::Memory => memory::check(report),
            Self::Nccl => nccl::check(report),
            Self::Decode => decode::check(report),
            Self::Gemm => speed::limits::products(report),
            Self::Copies => speed::limits::copies(report),
            Self::DecodeSpeed => speed::decode::check(report),
            Self::Update => speed::update::check(report),
            Self::GrpoStepSmall => speed::grpo_step::check(Size::Small, !args.no_peer, report),
            Self::GrpoStepLarge => speed::grpo_step::check(Size::Large, !args.no_peer, report),
            Self::Packed => packed::check(report),
            Self::GraphModels => graph_models::check(report),
            Self::Kernels => kernels::check(report),
            Self::DecodeTail => speed::decode_tail::check(report),
            Self::Published => speed::published::check(report),
            Self::PeerSmall => speed::grpo_step::peer_alone(Size::Small, report),
            Self::PeerLarge => speed::grpo_step::peer_alone(Size::Large, report),
            Self::Trace => speed::trace::check(&args.trace_folder, report),
        }
    }
}

/// Runs the checks and writes their lines, and the number of checks by outcome to standard error.
///
/// # Errors
/// When standard output cannot be written.
pub fn run(args: &GpuCheckArgs) -> std::io::Result<ExitCode> {
    let mut checks = args.checks.clone();
    if checks.is_empty() {
        let all = Check::value_variants().iter().copied();
        checks.extend(all.filter(|check| args.all || check.runs_by_default()));
    }
    let (started, mut written) = (Instant::now(), Written::default());
    for check in checks {
        if args.in_process {
            run_in_process(check, args, &mut |line| written.write(line))?;
            continue;
        }
        // This process never calls the driver, because it could hang there just as the check could.
        let limit = args.limit.map_or(check.limit(), Duration::from_secs);
        if let Some(error) = child::run(check, args, limit, &mut |line| written.write(line))? {
            let finding = Finding::new(false, [("error", error.into())]);
            let line = line_of(check, written.device.clone(), finding);
            written.write(&line)?;
        }
    }
    let [passed, failed, skipped] = written.counts;
    if !args.in_process {
        let seconds = started.elapsed().as_secs_f64();
        writeln!(
            rlt_terminal::messages(),
            "gpu-check: {passed} passed, {failed} failed, {skipped} skipped in {seconds:.0} s"
        )?;
    }
    Ok(if failed == 0 { ExitCode::Success } else { ExitCode::Failure })
}

/// Summary of the lines that this process has written.
#[derive(Default)]
struct Written {
    /// Numbers of passed, failed and skipped findings so far.
    counts: [usize; 3],
    /// Name of the device in the last line that contains one.
    device: Value,
}

impl Written {
    fn write(&mut self, line: &Value) -> std::io::Result<()> {
        let status = ["passed", "failed", "skipped"].iter().position(|status| line["status"] == *status);
        self.counts[status.unwrap_or(1)] += 1;
        if line["device"].is_string() {
            self.device = line["device"].clone();
        }
        // One write per line: processes that share a file must not mix their lines.
        let mut out = rlt_terminal::document();
        out.write_all(format!("{line}\n").as_bytes())?;
        out.flush()
    }
}

/// Returns the line of a check on a machine without a usable GPU. The check is skipped, but the check
/// `device` fails if there is a GPU that cannot be used.
fn without_gpu(check: Check) -> Value {
    let search = cuda::detect_cuda();
    if check == Check::Device && search.has_unusable_gpu() {
        return failed(check, &search.to_string());
    }
    line(check, Finding::skipped(search.to_string()))
}

fn line(check: Check, finding: Finding) -> Value {
    let device = if cuda::detect_cuda().num_gpus() > 0 { device_name() } else { None };
    line_of(check, json!(device), finding)
}

/// Formats a finding of `check` on the device with this name as a line.
fn line_of(check: Check, device: Value, finding: Finding) -> Value {
    let status = match finding.status {
        Status::Passed => "passed",
        Status::Failed => "failed",
        Status::Skipped => "skipped",
    };
    let mut line = map([("name", json!(check.name())), ("status", json!(status)), ("device", device)]);
    line.extend(finding.figures);
    line.into()
}

fn failed(check: Check, error: &str) -> Value {
    line(check, Finding::new(false, [("error", error.into())]))
}

/// Runs a check in this process; `write` receives its lines.
fn run_in_process(
    check: Check,
    args: &GpuCheckArgs,
    write: &mut dyn FnMut(&Value) -> std::io::Result<()>,
) -> std::io::Result<()> {
    // The parent enforces the time limit, so this process must not outlive it.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    if cuda::detect_cuda().num_gpus() == 0 {
        return write(&without_gpu(check));
    }
    match check.run(args, &mut |finding| Ok(write(&line(check, finding))?)) {
        Ok(()) => Ok(()),
        Err(error) => write(&failed(check, &error_text(error.as_ref()))),
    }
}

/// Reports the device, and whether our kernels run on it.
fn device(report: &mut Report<'_>) -> Result<(), Failure> {
    for gpu in cuda::gpus()? {
        let kernels = cuda::Kernels::load(gpu.index).err().map(|error| error.to_string());
        let (major, minor) = gpu.compute_capability;
        let figures = [
            ("index", json!(gpu.index)),
            ("computeCapability", json!(format!("{major}.{minor}"))),
            ("memoryBytes", json!(gpu.memory_bytes)),
            ("freeBytes", json!(gpu.free_bytes)),
            ("kernelsProblem", json!(kernels)),
        ];
        report(Finding::new(kernels.is_none(), figures))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_is_no_number_is_the_worst() {
        assert_eq!([worse(1.0, 2.0), worse(2.0, 1.0)], [2.0; 2]);
        assert!(worse(f64::NAN, 2.0).is_nan() && worse(2.0, f64::NAN).is_nan());
    }

    #[test]
    fn the_limits_of_the_default_checks_add_up_to_less_than_ten_minutes() {
        let checks = Check::value_variants().iter().filter(|check| check.runs_by_default());
        let limits: Duration = checks.map(|check| check.limit()).sum();
        // The remaining ten seconds of ten minutes are for ending the processes.
        assert!(limits <= Duration::from_secs(590), "{limits:?}");
    }
}
