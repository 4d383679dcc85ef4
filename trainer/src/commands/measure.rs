//! `rlt-trainer measure`: measures this machine's limits, as the figures that a plan uses: matrix products,
//! memory bandwidth, copies between device and host, launch overhead. It does not measure the efficiency of
//! training.

use std::io::Write as _;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rlt_api::{ExitCode, spec};
use rlt_plan::{Flops, Machine};
use tch::{Device, Kind, Tensor};

/// Rows, inputs and outputs of the measured products: those of a large layer on a GPU, of a small one on a
/// CPU.
const LARGE: [i64; 3] = [4096, 4096, 4096];
const SMALL: [i64; 3] = [1024, 576, 3072];
/// Number of fp32 values that are read, far more than any cache holds.
const READ_NUMBERS: i64 = 64 << 20;
/// Minimum number of trials, and minimum of their total time; the fastest trial counts. A shorter series may
/// coincide with other load on the machine.
const REPEATS: usize = 12;
const SHORTEST_TRIAL: Duration = Duration::from_millis(400);
/// Number of consecutive operations.
const NUM_OPERATIONS: usize = 2000;

/// Device to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MeasuredDevice {
    /// All CPU cores.
    Cpu,
    /// The first GPU.
    Cuda,
}

/// Options of `measure`.
#[derive(Clone, Debug, clap::Args)]
pub struct MeasureArgs {
    /// Device to measure.
    #[arg(long, value_enum, default_value_t = MeasuredDevice::Cpu)]
    pub device: MeasuredDevice,
    /// Number of CPU threads, at least 1; by default one per core.
    #[arg(long)]
    pub threads: Option<usize>,
}

/// The measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// libtorch finds no GPU.
    #[error("measure a GPU: libtorch sees none here")]
    NoGpu,
    /// An operation of libtorch failed.
    #[error("failed to measure {act}")]
    Tensor {
        /// Operation that was measured.
        act: &'static str,
        /// Error of libtorch.
        source: tch::TchError,
    },
    /// A setting of libtorch failed.
    #[error("failed to prepare the machine")]
    Setting(#[from] rlt_torch::Error),
    /// Standard output cannot be written.
    #[error("failed to write the measurements")]
    Output(#[from] std::io::Error),
}

impl MeasureError {
    /// Returns the exit code of a process that ends with this error.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::NoGpu => ExitCode::BadConfig,
            Self::Tensor { .. } | Self::Setting(_) => ExitCode::Failure,
            Self::Output(_) => ExitCode::RetryableIo,
        }
    }
}

/// Measures this machine and prints a [`Machine`] as JSON.
///
/// # Errors
/// [`MeasureError`].
pub fn run(args: &MeasureArgs) -> Result<(), MeasureError> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    rlt_torch::set_num_threads(args.threads.unwrap_or(cores));
    rlt_torch::reuse_large_buffers();
    rlt_torch::set_float32_matmul_precision(rlt_torch::MatmulPrecision::Medium)?;
    let device = match args.device {
        MeasuredDevice::Cpu => Device::Cpu,
        MeasuredDevice::Cuda => gpu()?,
    };
    let machine = tch::no_grad(|| measured(device))?;
    let mut out = rlt_terminal::document();
    serde_json::to_writer_pretty(&mut out, &machine).map_err(std::io::Error::from)?;
    Ok(writeln!(out)?)
}

fn gpu() -> Result<Device, MeasureError> {
    if rlt_torch::load_cuda()? { Ok(Device::Cuda(0)) } else { Err(MeasureError::NoGpu) }
}

fn measured(device: Device) -> Result<Machine, MeasureError> {
    let read = read_rate(device)?;
    let fp32 = product_rate(device, Kind::Float)?;
    let (bf16, fp16, tf32) = if device.is_cuda() {
        rlt_torch::set_float32_matmul_precision(rlt_torch::MatmulPrecision::High)?;
        let tf32 = product_rate(device, Kind::Float)?;
        (product_rate(device, Kind::BFloat16)?, product_rate(device, Kind::Half)?, tf32)
    } else {
        (product_rate(device, Kind::BFloat16)?, product_rate(device, Kind::Half)?, fp32)
    };
    Ok(Machine {
        name: if device.is_cuda() { "this machine's GPU".into() } else { "this machine".into() },
        device: if device.is_cuda() { spec::Device::Cuda } else { spec::Device::Cpu },
        memory_bytes: None,
        memory_bytes_per_second: read,
        flops: Flops { bf16, fp16, tf32, fp32 },
        // Workers on one machine exchange tensors through its memory, which a tensor passes three times: when
        // it is sent, received and added.
        peer_bytes_per_second: if device.is_cuda() { copy_rate(device)? } else { read / 3.0 },
        host_bytes_per_second: copy_rate(device)?,
        launch_seconds: launch_seconds(device)?,
    })
}

/// Returns the seconds of the fastest of several runs of `work`.
pub(crate) fn fastest(
    act: &'static str,
    device: Device,
    mut work: impl FnMut() -> Result<(), tch::TchError>,
) -> Result<f64, MeasureError> {
    let mut best = f64::INFINITY;
    let trial = Instant::now();
    for repeat in 0.. {
        if repeat >= REPEATS && trial.elapsed() >= SHORTEST_TRIAL {
            break;
        }
        let started = Instant::now();
        work().map_err(|source| MeasureError::Tensor { act, source })?;
        wait(device);
        best = best.min(started.elapsed().as_secs_f64());
    }
    Ok(best)
}

/// Blocks until the GPU has finished its work; returns at once on a CPU.
pub(crate) fn wait(device: Device) {
    if let Device::Cuda(idx) = device {
        tch::Cuda::synchronize(idx as i64);
    }
}

/// Returns the rate of a matrix product, in FLOP/s.
fn product_rate(device: Device, kind: Kind) -> Result<f64, MeasureError> {
    let [rows, inputs, outputs] = if device.is_cuda() { LARGE } else { SMALL };
    let x = Tensor::ones([rows, inputs], (kind, device));
    let weight = Tensor::ones([outputs, inputs], (kind, device));
    let out = Tensor::empty([rows, outputs], (kind, device));
    let seconds = fastest("products of matrices", device, || x.f_matmul_out(&out, &weight.tr()).map(drop))?;
    Ok(2.0 * (rows * inputs * outputs) as f64 / seconds)
}

/// Returns the bandwidth of memory reads, in bytes per second.
fn read_rate(device: Device) -> Result<f64, MeasureError> {
    let numbers = Tensor::ones([READ_NUMBERS], (Kind::Float, device));
    let seconds = fastest("reading memory", device, || numbers.f_sum(Kind::Float).map(drop))?;
    Ok(4.0 * READ_NUMBERS as f64 / seconds)
}

/// Returns the bandwidth of copies from the host, in bytes per second.
fn copy_rate(device: Device) -> Result<f64, MeasureError> {
    let on_host = Tensor::ones([READ_NUMBERS / 4], (Kind::Float, Device::Cpu));
    let on_host = if device.is_cuda() { on_host.pin_memory(device) } else { on_host };
    let mut there = Tensor::empty([READ_NUMBERS / 4], (Kind::Float, device));
    let seconds = fastest("copies", device, || there.f_copy_(&on_host))?;
    Ok(READ_NUMBERS as f64 / seconds)
}

/// Returns the host time of one operation on a tiny tensor, in seconds.
fn launch_seconds(device: Device) -> Result<f64, MeasureError> {
    let small = Tensor::ones([16], (Kind::Float, device));
    let seconds = fastest("starting operations", device, || {
        (0..NUM_OPERATIONS).try_for_each(|_| small.f_add_scalar(1.0).map(drop))
    })?;
    Ok(seconds / NUM_OPERATIONS as f64)
}
