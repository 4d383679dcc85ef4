//! Compares weights of 4 and 8 bits on the GPU with those on the CPU: dequantized values bit for bit, and
//! products of few rows with those in fp64.

use rlt_torch::cuda::{Dequantize, Kernels, QuantizedLinear, QuantizedRows};
use rlt_torch::{QuantFormat, QuantLayout, QuantizedMatrix};
use serde_json::json;
use tch::{Device, Kind, Tensor};

use super::operators::{BF16_TOLERANCE, FP32_TOLERANCE};
use super::{Failure, Finding, Report, worse};

const GPU: Device = Device::Cuda(0);
/// Sizes of weights: with inputs of full blocks, and with rows that end within a block.
const SIZES: [[i64; 2]; 2] = [[96, 576], [40, 330]];

pub(super) fn check(report: &mut Report<'_>) -> Result<(), Failure> {
    let (_no_grad, kernels) = (tch::no_grad_guard(), Kernels::load(0)?);
    for (name, format, nested) in [
        ("nf4 with nested scales", QuantFormat::Nf4, true),
        ("fp4", QuantFormat::Fp4, false),
        ("int8", QuantFormat::Int8, false),
    ] {
        for size in SIZES {
            let layout = QuantLayout { format, block_size: 64, nested, stored: Kind::BFloat16 };
            let weight = Tensor::randn(size, (Kind::Float, Device::Cpu)).to_kind(Kind::BFloat16);
            let matrix = QuantizedMatrix::quantize(&weight, layout)?;
            for (kind, tolerance) in [(Kind::Float, FP32_TOLERANCE), (Kind::BFloat16, BF16_TOLERANCE)] {
                let (differing, error) = compared(&kernels, &matrix, kind)?;
                let figures = [
                    ("operator", json!(format!("own quantized product, {name}"))),
                    ("size", json!(size)),
                    ("dtype", json!(if kind == Kind::Float { "fp32" } else { "bf16" })),
                    ("differingNumbers", json!(differing)),
                    ("error", json!(error)),
                    ("tolerance", json!(tolerance)),
                ];
                report(Finding::new(differing == 0 && error <= tolerance, figures))?;
            }
        }
    }
    Ok(())
}

/// Returns the number of values that differ from the CPU's, and the largest error of a product, relative to
/// its largest value.
fn compared(kernels: &Kernels, matrix: &QuantizedMatrix, kind: Kind) -> Result<(i64, f64), Failure> {
    let numbers = matrix.dequantize(kind);
    let on_device = matrix.map(|tensor| tensor.to_device(GPU));
    let parts = [QuantizedRows { matrix: &on_device, rows: None }];
    let found = numbers.to_device(GPU).full_like(f64::NAN);
    Dequantize { parts: &parts, out: &found }.launch(kernels)?;
    let differing = found.to_device(Device::Cpu).not_equal_tensor(&numbers).sum(Kind::Int64).int64_value(&[]);
    let [outputs, inputs] = matrix.size();
    let mut largest = 0.0_f64;
    for rows in [1, 3, 16] {
        let x = Tensor::randn([rows, inputs], (Kind::Float, Device::Cpu)).to_kind(kind);
        let out = Tensor::full([rows, outputs], f64::NAN, (kind, GPU));
        QuantizedLinear { parts: &parts, x: &x.to_device(GPU), bias: None, out: &out }.launch(kernels)?;
        let truth = x.to_kind(Kind::Double).matmul(&numbers.to_kind(Kind::Double).tr());
        let difference = (out.to_device(Device::Cpu).to_kind(Kind::Double) - &truth).abs().max();
        largest = worse(difference.double_value(&[]) / truth.abs().max().double_value(&[]), largest);
    }
    Ok((differing, largest))
}
