//! Deviations of gradients from those of the CPU in fp32, and their bounds.
//!
//! The error of a right gradient in bf16 has no fixed bound, because it depends on the model. Each activation
//! and its gradient is rounded to 8 bits, sharp attention magnifies the roundings, and the sum over tokens
//! cancels more of the gradient than of its error. The CPU rounds at the same places, so its gradient in
//! bf16 measures the error of each parameter. A GPU adds in other orders, and rounds a few values more or
//! fewer: its roundings are different ones, but not many times as large.

use serde_json::{Map, Value, json};
use tch::{Kind, Tensor};

use super::super::{Failure, Finding, worse};
use super::Gradients;

/// Largest distance of a gradient in fp32. Its roundings are 2^16 times as fine as those of bf16, and reach
/// about a hundredth of this; those of TF32 exceed it.
const FP32_BOUND: f64 = 1e-4;
/// Largest distance of a gradient in bf16, as a multiple of the CPU's in bf16. Independent roundings add up
/// to three times the error only if there are nine times as many.
const TIMES_OF_CPU: f64 = 3.0;
/// Largest relative error of one rounding to bf16. The bound never assumes a smaller error of the CPU, which
/// would be a coincidence.
const UNIT_ROUNDOFF: f64 = 1.0 / 256.0;
/// Largest distance in bf16 whatever the CPU's is: a CPU that is wrong as well must not hide an error.
const MAX_BOUND: f64 = 0.2;
/// Largest error of a gradient's norm, as a fraction of the bound of its distance. Roundings point in all
/// directions, so the norm hardly changes; a wrong factor changes the norm and nothing else.
const NORM_FRACTION: f64 = 0.5;

/// How a gradient deviates from the expected one.
#[derive(Clone, Copy, Debug)]
struct Deviation {
    /// Norm of the difference, relative to the expected norm.
    distance: f64,
    /// Norm of the gradient as a multiple of the expected norm.
    norm_ratio: f64,
    /// Cosine of the angle between the two gradients.
    cosine: f64,
}

impl Deviation {
    fn of(found: &Tensor, truth: &Tensor) -> Self {
        let [found, truth] = [found, truth].map(|tensor| tensor.to_kind(Kind::Double));
        let norm = |tensor: &Tensor| tensor.norm().double_value(&[]);
        let (norm_found, norm_truth) = (norm(&found), norm(&truth).max(f64::MIN_POSITIVE));
        let product = (&found * &truth).sum(Kind::Double).double_value(&[]);
        Self {
            distance: norm(&(&found - &truth)) / norm_truth,
            norm_ratio: norm_found / norm_truth,
            cosine: product / norm_truth / norm_found.max(f64::MIN_POSITIVE),
        }
    }

    /// Returns the distance as a fraction of its bound, or the norm's error as a fraction of its own bound,
    /// whichever is larger. Above 1 the gradient is wrong.
    fn fraction_of(&self, bound: f64) -> f64 {
        worse(self.distance / bound, (self.norm_ratio - 1.0).abs() / (NORM_FRACTION * bound))
    }
}

/// Returns the bound of a gradient's distance, from the CPU's deviation in bf16. `None` selects the bound for
/// fp32.
fn bound(of_cpu: Option<Deviation>) -> f64 {
    of_cpu.map_or(FP32_BOUND, |cpu| (TIMES_OF_CPU * cpu.distance.max(UNIT_ROUNDOFF)).min(MAX_BOUND))
}

/// Compares a GPU's gradients with those of the CPU in fp32, parameter by parameter, and reports the worst.
/// `in_bf16` holds the CPU's gradients in bf16 if those of the GPU are in bf16.
pub(super) fn compared(
    found: &Gradients,
    truth: &Gradients,
    in_bf16: Option<&Gradients>,
) -> Result<Finding, Failure> {
    let (mut largest, mut least_cosine) = (0.0_f64, 1.0_f64);
    let (mut worst, mut by_parameter) = (Map::new(), Map::new());
    for (name, truth) in truth {
        let deviation = |gradients: &Gradients| -> Result<Deviation, Failure> {
            let gradient = gradients.get(name).ok_or_else(|| format!("{name} has no gradient"))?;
            Ok(Deviation::of(gradient, truth))
        };
        let (own, of_cpu) = (deviation(found)?, in_bf16.map(deviation).transpose()?);
        let bound = bound(of_cpu);
        let fraction = own.fraction_of(bound);
        if worst.is_empty() || fraction.is_nan() || fraction > largest {
            worst = figures(name, own, of_cpu, bound);
        }
        largest = worse(fraction, largest);
        least_cosine = least_cosine.min(own.cosine);
        by_parameter.insert(name.clone(), json!([own.distance, own.norm_ratio, bound]));
    }
    let mut finding = Finding::new(
        largest <= 1.0 && !truth.is_empty(),
        [("run", json!("gradients at fixed tokens")), ("parameters", json!(truth.len()))],
    );
    finding.figures.extend(worst);
    Ok(finding.with([
        ("fractionOfBound", json!(largest)),
        ("leastCosine", json!(least_cosine)),
        ("distancesNormsAndBounds", Value::Object(by_parameter)),
    ]))
}

/// Figures of the worst parameter.
fn figures(name: &str, own: Deviation, of_cpu: Option<Deviation>, bound: f64) -> Map<String, Value> {
    let figures = [
        ("parameter", json!(name)),
        ("error", json!(own.distance)),
        ("tolerance", json!(bound)),
        ("errorOfCpu", json!(of_cpu.map(|cpu| cpu.distance))),
        ("normRatio", json!(own.norm_ratio)),
        ("cosine", json!(own.cosine)),
    ];
    figures.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::super::super::Status;
    use super::*;

    /// Returns 256 values that are nearly orthogonal to those of another frequency.
    fn wave(frequency: f64) -> Tensor {
        (Tensor::arange(256, (Kind::Double, Device::Cpu)) * frequency).sin()
    }

    fn gradients(of_first: Tensor) -> Gradients {
        [("first".to_owned(), of_first), ("second".to_owned(), wave(0.3))].into()
    }

    /// Compares `of_first` in bf16, where the CPU's error is two percent.
    fn found(of_first: Tensor) -> Finding {
        let in_bf16 = gradients(wave(0.7) + wave(1.9) * 0.02);
        compared(&gradients(of_first), &gradients(wave(0.7)), Some(&in_bf16)).unwrap()
    }

    #[test]
    fn a_gradient_with_the_roundings_of_a_cpu_passes_whatever_their_direction() {
        for frequency in [1.1, 1.9, 2.6] {
            let finding = found(wave(0.7) + wave(frequency) * 0.03);
            assert_eq!(finding.status, Status::Passed, "{:?}", finding.figures);
            assert_eq!(finding.figures["parameter"], "first");
        }
    }

    #[test]
    fn a_wrong_gradient_fails_by_its_factor_its_direction_or_a_lost_part() {
        let lost =
            Tensor::cat(&[wave(0.7).narrow(0, 0, 240), Tensor::zeros([16], (Kind::Double, Device::Cpu))], 0);
        for (name, gradient) in [
            ("a factor", wave(0.7) * 1.04),
            ("the sign", -wave(0.7)),
            ("a lost part", lost),
            ("four times the roundings", wave(0.7) + wave(1.9) * 0.08),
            ("another gradient", wave(1.9)),
            ("no numbers", wave(0.7) * f64::NAN),
        ] {
            assert_eq!(found(gradient).status, Status::Failed, "{name}");
        }
    }

    #[test]
    fn a_wrong_cpu_hides_no_error_and_a_lucky_one_asks_for_no_more_than_bf16_has() {
        let judged = |of_cpu: Tensor, of_gpu: Tensor| {
            compared(&gradients(of_gpu), &gradients(wave(0.7)), Some(&gradients(of_cpu))).unwrap().status
        };
        assert_eq!(judged(-wave(0.7), wave(0.7) + wave(1.9) * 0.3), Status::Failed);
        assert_eq!(judged(wave(0.7), wave(0.7) + wave(1.9) * 0.01), Status::Passed);
        assert_eq!(judged(wave(0.7), wave(0.7) + wave(1.9) * 0.02), Status::Failed);
    }

    #[test]
    fn gradients_in_fp32_have_no_roundings_of_tf32_and_none_may_be_missing() {
        let judged = |error: f64| {
            let found = gradients(wave(0.7) + wave(1.9) * error);
            compared(&found, &gradients(wave(0.7)), None).unwrap().status
        };
        assert_eq!([judged(1e-5), judged(1e-3)], [Status::Passed, Status::Failed]);
        assert_eq!(compared(&Gradients::new(), &Gradients::new(), None).unwrap().status, Status::Failed);
        let error = compared(&Gradients::new(), &gradients(wave(0.7)), None).err().unwrap();
        assert_eq!(error.to_string(), "first has no gradient");
    }
}
