//! A kernel at one shape: what is launched, compared and measured.

use rlt_torch::cuda::{Event, Stream};
use serde_json::{Value, json};
use tch::{Device, Kind, Tensor};

use super::super::operators::BF16_TOLERANCE;
use super::super::shapes::on_device;
use super::super::speed::{measured, peak};
use super::super::{Failure, Report, Status};

pub(super) const GPU: Device = Device::Cuda(0);
/// Largest error of a result in fp32, relative to the largest value: sums over a vocabulary in any order.
const FP32_TOLERANCE: f64 = 1e-4;

/// A kernel at one shape.
pub(super) struct Case<'a> {
    pub(super) kernel: &'static str,
    pub(super) shape: Vec<i64>,
    pub(super) cost: Cost,
    /// Launches the kernel once.
    pub(super) launch: Box<dyn Fn() -> Result<(), Failure> + 'a>,
    /// Copies the result of the first launch, on the GPU.
    pub(super) result: Box<dyn Fn() -> Tensor + 'a>,
    /// The expected result in fp64.
    pub(super) truth: Tensor,
    /// Computes the same by libtorch's operators in bf16, if it has any.
    pub(super) libtorch: Option<Box<dyn Fn() + 'a>>,
}

/// Work that bounds a kernel's time.
#[derive(Clone, Copy)]
pub(super) enum Cost {
    /// Bytes that the kernel has to read and write.
    Bytes(i64),
    /// Floating-point operations of matrix products.
    Flop(i64),
}

impl Case<'_> {
    /// Launches the kernel, compares its result, measures it and reports both.
    pub(super) fn report(self, report: &mut Report<'_>) -> Result<(), Failure> {
        (self.launch)()?;
        let found = (self.result)();
        let tolerance = match found.kind() {
            Kind::BFloat16 => BF16_TOLERANCE,
            // Integer results are indices, which must be equal.
            Kind::Int => 0.0,
            _ => FP32_TOLERANCE,
        };
        let error = error(&found, &self.truth);
        let microseconds = microseconds_of(&self.launch)?;
        let libtorch = self.libtorch.map(|work| {
            microseconds_of(&|| {
                work();
                Ok(())
            })
        });
        let seconds = 1e-6 * microseconds;
        let rate = |amount: i64, peak: Option<f64>| {
            let rate = amount as f64 / seconds;
            (rate, json!(peak.map(|peak| rate / peak)))
        };
        let (rate, fraction) = match self.cost {
            Cost::Bytes(bytes) => {
                let (rate, fraction) = rate(bytes, peak().map(|peak| peak.memory_bytes_per_second));
                (("gigabytesPerSecond", rate / 1e9), ("fractionOfBandwidth", fraction))
            }
            Cost::Flop(flop) => {
                let (rate, fraction) = rate(flop, peak().map(|peak| peak.flops.bf16));
                (("teraflopsPerSecond", rate / 1e12), ("fractionOfPeak", fraction))
            }
        };
        let others: [(&str, Value); 7] = [
            ("kernel", json!(self.kernel)),
            ("shape", json!(self.shape)),
            ("dtype", json!("bf16")),
            ("error", json!(error)),
            ("tolerance", json!(tolerance)),
            fraction,
            ("libtorchMicroseconds", json!(libtorch.transpose()?)),
        ];
        let mut finding = measured([("microseconds", microseconds), rate], others);
        if !(0.0..=tolerance).contains(&error) {
            finding.status = Status::Failed;
        }
        report(finding)
    }
}

/// Returns the largest difference, relative to the largest expected value.
fn error(found: &Tensor, truth: &Tensor) -> f64 {
    let difference = (found.to_kind(Kind::Double) - truth).abs().max().double_value(&[]);
    difference / truth.abs().max().double_value(&[]).max(f64::MIN_POSITIVE)
}

/// Measures the microseconds of one launch on the device, as the fastest of several trials.
fn microseconds_of(work: &dyn Fn() -> Result<(), Failure>) -> Result<f64, Failure> {
    let (trials, launches) = on_device((5, 20), (1, 1));
    let stream = Stream::current(0)?;
    let mut best = f64::INFINITY;
    for _ in 0..=trials {
        let (start, end) = (Event::with_timing(0)?, Event::with_timing(0)?);
        start.record(&stream)?;
        (0..launches).try_for_each(|_| work())?;
        end.record(&stream)?;
        end.synchronize()?;
        best = best.min(1e3 * f64::from(end.milliseconds_since(&start)?) / f64::from(launches));
    }
    Ok(best)
}

/// Returns random bf16 values on the GPU.
pub(super) fn random(size: &[i64]) -> Tensor {
    Tensor::randn(size, (Kind::BFloat16, GPU))
}

/// Returns a tensor of NaN for a result, which shows elements that a kernel does not write.
pub(super) fn empty(size: &[i64], kind: Kind) -> Tensor {
    Tensor::full(size, f64::NAN, (kind, GPU))
}

/// Converts to fp64.
pub(super) fn wide(tensor: &Tensor) -> Tensor {
    tensor.to_kind(Kind::Double)
}

/// Returns the cost of reading or writing `num_values` bf16 values.
pub(super) fn bytes(num_values: i64) -> Cost {
    Cost::Bytes(2 * num_values)
}
