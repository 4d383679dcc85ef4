//! Checks collectives between this machine's GPUs, with one process per GPU: compares every operation with
//! its definition, and measures the bandwidth of the links.
//!
//! Values are small integers in every dtype, so that sums are exact in any order.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rlt_parallel::RankEnvironment;
use rlt_torch::collectives::{Collectives, Membership, Pending, Reduction, Rendezvous, serve_store};
use rlt_torch::cuda;
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::shapes::on_device;
use super::{Failure, Finding, Report};
use crate::commands::measure::wait;

/// Maximum time that ranks wait for each other.
const PATIENCE: Duration = Duration::from_secs(20);
const REPEATS: u32 = 10;
const KINDS: [(&str, Kind); 3] = [("fp32", Kind::Float), ("bf16", Kind::BFloat16), ("int64", Kind::Int64)];

pub(super) fn check(report: &mut Report<'_>) -> Result<(), Failure> {
    if let Some(environment) = RankEnvironment::of_process()? {
        return ranks_part(&environment, report);
    }
    let size = cuda::detect_cuda().num_gpus();
    if size < 2 {
        return report(Finding::skipped("there is one GPU: collectives need two"));
    }
    let store = serve_store(0, 1, size)?;
    let first = RankEnvironment {
        rank: 0,
        world_size: size,
        local_world_size: size,
        master_address: "localhost".to_owned(),
        master_port: store.port(),
        attempt: 1,
        key: None,
    };
    let others: Vec<Child> = (1..size).map(|rank| start(&first, rank)).collect::<Result<_, _>>()?;
    let outcome = ranks_part(&first, report);
    ends(others)?.into_iter().try_for_each(report)?;
    outcome
}

fn start(first: &RankEnvironment, rank: usize) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["gpu-check", "--here", "nccl"]).envs(first.variables(rank));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()
}

/// Returns a failed finding for each other rank that failed, with the rank's error.
fn ends(others: Vec<Child>) -> std::io::Result<Vec<Finding>> {
    let mut failed = Vec::new();
    for (idx, child) in others.into_iter().enumerate() {
        let output = child.wait_with_output()?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stdout).into_owned();
            let figures = [("rank", json!(idx + 1)), ("error", json!(super::finding::last(&words)))];
            failed.push(Finding::new(false, figures));
        }
    }
    Ok(failed)
}

/// Runs the checks of one rank; only the first rank reports its findings.
fn ranks_part(environment: &RankEnvironment, report: &mut Report<'_>) -> Result<(), Failure> {
    let membership = Membership {
        host: environment.master_address.clone(),
        port: environment.master_port,
        rank: environment.rank,
        world_size: environment.world_size,
        attempt: environment.attempt,
        key: environment.key.clone(),
        join_timeout: PATIENCE,
        operation_timeout: PATIENCE,
    };
    let rendezvous = Rendezvous::join(membership)?;
    let all: Vec<usize> = (0..rendezvous.world_size()).collect();
    let mut group = rendezvous.group("all", &all)?.ok_or("this rank is in no group")?;
    let gpu = Device::Cuda(rendezvous.rank());
    let size = [("gpus", json!(rendezvous.world_size()))];
    for (dtype, kind) in KINDS {
        for (name, holds) in operations(group.as_mut(), gpu, kind)? {
            let figures = [("operation", json!(name)), ("dtype", json!(dtype))];
            report(Finding::new(holds, figures).with(size.clone()))?;
        }
    }
    report(rate(group.as_mut(), gpu)?.with(size))?;
    Ok(group.barrier()?)
}

/// Computes the input of a rank, which every rank needs for the expected result.
fn input_of(rank: usize, size: &[i64], kind: Kind) -> Tensor {
    let numbers = Tensor::arange(size.iter().product::<i64>(), (Kind::Int64, Device::Cpu));
    ((numbers * 7 + 3 * rank as i64).remainder(17) - 8).view(size).to_kind(kind)
}

/// Checks every collective against its definition.
fn operations(
    group: &mut dyn Collectives,
    gpu: Device,
    kind: Kind,
) -> Result<[(&'static str, bool); 6], Failure> {
    let (rank, num_ranks) = (group.rank(), group.size());
    let count = num_ranks as i64;
    let own = |size: &[i64]| input_of(rank, size, kind).to_device(gpu);
    let each =
        |size: &[i64]| -> Vec<Tensor> { (0..num_ranks).map(|rank| input_of(rank, size, kind)).collect() };
    let is = |found: &Tensor, truth: &Tensor| found.to_device(Device::Cpu) == *truth;
    let done = |pending: Pending| pending.wait();

    let (summed, largest) = (own(&[5, 3]), own(&[7]));
    done(group.all_reduce(&summed, Reduction::Sum)?)?;
    done(group.all_reduce(&largest, Reduction::Max)?)?;
    let sum = |size: &[i64]| Tensor::stack(&each(size), 0).sum_dim_intlist([0_i64].as_slice(), false, kind);
    let is_sum = is(&summed, &sum(&[5, 3]));
    let is_max = is(&largest, &Tensor::stack(&each(&[7]), 0).amax(0, false));

    let gathered = Tensor::zeros([2 * count, 3], (kind, gpu));
    done(group.all_gather(&gathered, &own(&[2, 3]))?)?;
    let is_gathered = is(&gathered, &Tensor::cat(&each(&[2, 3]), 0));

    let scattered = Tensor::zeros([2, 3], (kind, gpu));
    done(group.reduce_scatter(&scattered, &own(&[2 * count, 3]))?)?;
    let is_scattered = is(&scattered, &sum(&[2 * count, 3]).narrow(0, 2 * rank as i64, 2));

    let sent = own(&[4]);
    done(group.broadcast(&sent, num_ranks - 1)?)?;
    let is_sent = is(&sent, &input_of(num_ranks - 1, &[4], kind));

    let (exchanged, splits) = (Tensor::zeros([count, 3], (kind, gpu)), vec![1; num_ranks]);
    done(group.all_to_all(&exchanged, &own(&[count, 3]), &splits, &splits)?)?;
    let rows: Vec<Tensor> = each(&[count, 3]).iter().map(|all| all.narrow(0, rank as i64, 1)).collect();
    let is_exchanged = is(&exchanged, &Tensor::cat(&rows, 0));
    Ok([
        ("all-reduce sum", is_sum),
        ("all-reduce max", is_max),
        ("all-gather", is_gathered),
        ("reduce-scatter", is_scattered),
        ("broadcast", is_sent),
        ("all-to-all", is_exchanged),
    ])
}

/// Measures the bus bandwidth of an all-reduce as nccl-tests define it: 2 (n - 1) / n of the buffer, divided
/// by the time.
fn rate(group: &mut dyn Collectives, gpu: Device) -> Result<Finding, Failure> {
    let buffer = Tensor::zeros([on_device(64 << 20, 1 << 10)], (Kind::BFloat16, gpu));
    let mut reduce = || -> Result<(), Failure> { Ok(group.all_reduce(&buffer, Reduction::Sum)?.wait()?) };
    reduce()?;
    wait(gpu);
    let started = Instant::now();
    (0..REPEATS).try_for_each(|_| reduce())?;
    wait(gpu);
    let seconds = started.elapsed().as_secs_f64() / f64::from(REPEATS);
    let (bytes, ranks) = (2.0 * buffer.numel() as f64, group.size() as f64);
    let gigabytes = 2.0 * (ranks - 1.0) / ranks * bytes / seconds / 1e9;
    let link = cuda::link_between(0, 1).map_or_else(|error| error.to_string(), |link| format!("{link:?}"));
    let figures = [
        ("operation", json!("all-reduce of a large buffer")),
        ("dtype", json!("bf16")),
        ("bytes", json!(bytes)),
        ("busGigabytesPerSecond", json!(gigabytes)),
        ("link", json!(link)),
    ];
    Ok(Finding::new(gigabytes.is_finite() && gigabytes > 0.0, figures))
}
