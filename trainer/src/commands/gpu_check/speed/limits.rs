//! Measures the GPU's limits: matrix products, and copies.

use rlt_torch::cuda::{Stream, pinned};
use serde_json::json;
use tch::{Kind, Tensor};

use super::super::shapes::on_device;
use super::super::{Failure, Report};
use super::{GPU, measured, peak};
use crate::commands::measure::fastest;

/// Number of consecutive products before a wait, which hides launch overhead.
const IN_A_ROW: usize = 8;

pub(in super::super) fn products(report: &mut Report<'_>) -> Result<(), Failure> {
    let _no_grad = tch::no_grad_guard();
    // A large square, and a layer of a small model under a full micro-batch.
    let shapes = on_device([[8192; 3], [8192, 896, 4864]], [[64; 3], [64, 32, 48]]);
    let peak = peak().map(|machine| machine.flops.bf16);
    for [rows, inputs, outputs] in shapes {
        let x = Tensor::randn([rows, inputs], (Kind::BFloat16, GPU));
        let weight = Tensor::randn([outputs, inputs], (Kind::BFloat16, GPU));
        let out = Tensor::empty([rows, outputs], (Kind::BFloat16, GPU));
        let seconds = fastest("products of matrices", GPU, || {
            (0..IN_A_ROW).try_for_each(|_| x.f_matmul_out(&out, &weight.tr()).map(drop))
        })?;
        let flops = 2.0 * (IN_A_ROW as i64 * rows * inputs * outputs) as f64 / seconds;
        let others = [
            ("dtype", json!("bf16")),
            ("shape", json!([rows, inputs, outputs])),
            ("fractionOfPeak", json!(peak.map(|peak| flops / peak))),
        ];
        report(measured([("teraflopsPerSecond", flops / 1e12)], others))?;
    }
    Ok(())
}

pub(in super::super) fn copies(report: &mut Report<'_>) -> Result<(), Failure> {
    let numbers = on_device(64 << 20, 1 << 10);
    let bytes = 4.0 * numbers as f64;
    let there = Tensor::zeros([numbers], (Kind::Float, GPU));
    let mut again = Tensor::zeros([numbers], (Kind::Float, GPU));
    let (on_host, stream) = (pinned(&[numbers], Kind::Float)?, Stream::current(0)?);
    let ours = |error: rlt_torch::Error| tch::TchError::Torch(error.to_string());
    let on_device = fastest("copies on the device", GPU, || again.f_copy_(&there))?;
    let to_device =
        fastest("copies to the device", GPU, || stream.copy_to_device(&there, &on_host).map_err(ours))?;
    let to_host = fastest("copies to the host", GPU, || stream.copy_to_host(&on_host, &there).map_err(ours))?;
    let (memory, host) = peak().map(|one| (one.memory_bytes_per_second, one.host_bytes_per_second)).unzip();
    // A copy on the device reads and writes.
    let rows = [
        ("device to device", 2.0 * bytes / on_device, memory),
        ("pinned host to device", bytes / to_device, host),
        ("device to pinned host", bytes / to_host, host),
    ];
    for (name, rate, peak) in rows {
        let others = [
            ("copy", json!(name)),
            ("bytes", json!(bytes)),
            ("fractionOfPeak", json!(peak.map(|peak| rate / peak))),
        ];
        report(measured([("gigabytesPerSecond", rate / 1e9)], others))?;
    }
    Ok(())
}
