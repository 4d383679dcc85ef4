//! AdamW of many tensors in one launch against a step of each, and norms of many tensors.

use tch::{Kind, Tensor};

use super::{assert_near, in_every_order, randn};
use crate::AdamWStep;
use crate::cuda::{AdamWTable, AdamWTensor, FusedAdamW, Kernels, NormOfSquares, SquaresTable, SumsOfSquares};

/// A parameter with its gradient, moments and copy.
struct Parameter {
    master: Tensor,
    grad: Tensor,
    moments: [Tensor; 2],
    copy: Tensor,
}

impl Parameter {
    fn random(len: i64, kind: Kind) -> Self {
        Self {
            master: randn(&[len], len),
            grad: randn(&[len], len + 1).to_kind(kind),
            moments: [randn(&[len], len + 2) * 0.1, randn(&[len], len + 3).square()],
            copy: Tensor::zeros([len], (Kind::BFloat16, tch::Device::Cpu)),
        }
    }

    fn row(&self, weight_decay: f64) -> AdamWTensor<'_> {
        let [exp_avg, exp_avg_sq] = &self.moments;
        let copy = Some(&self.copy);
        AdamWTensor {
            param: &self.master,
            grad: &self.grad,
            exp_avg,
            exp_avg_sq,
            copy,
            rate_factor: 1.0,
            weight_decay,
        }
    }
}

fn step(scale: f64) -> AdamWStep {
    AdamWStep {
        learning_rate: 0.01,
        betas: (0.9, 0.99),
        epsilon: 1e-8,
        weight_decay: 0.0,
        grad_scale: scale,
        step: 3,
    }
}

fn launch(kernels: &Kernels, parameters: &[Parameter], scale: Option<&Tensor>) {
    let rows: Vec<_> =
        parameters.iter().zip([0.0, 0.1].into_iter().cycle()).map(|(p, decay)| p.row(decay)).collect();
    let table = AdamWTable::new(kernels, &rows).unwrap();
    let words = Tensor::from_slice(table.words());
    FusedAdamW { table: &table, words: &words, step: step(0.5), device_scale: scale }
        .launch(kernels)
        .unwrap();
}

#[test]
fn adamw_of_all_tensors_is_adamw_of_each() {
    const LENS: [i64; 5] = [1, 4096, 4100, 9001, 12];
    in_every_order(|kernels| {
        for kind in [Kind::Float, Kind::BFloat16] {
            let parameters = LENS.map(|len| Parameter::random(len, kind));
            launch(kernels, &parameters, Some(&Tensor::from_slice(&[0.5f32])));
            for (idx, (len, got)) in LENS.into_iter().zip(&parameters).enumerate() {
                let Parameter { mut master, grad, moments: [mut m, mut v], .. } =
                    Parameter::random(len, kind);
                let settings = AdamWStep { weight_decay: [0.0, 0.1][idx % 2], ..step(0.25) };
                crate::adamw_step(&mut master, &grad.to_kind(Kind::Float), &mut m, &mut v, &settings)
                    .unwrap();
                assert_near("master", &got.master, &master);
                assert_near("first moment", &got.moments[0], &m);
                assert_near("second moment", &got.moments[1], &v);
                assert_eq!(got.copy, got.master.to_kind(Kind::BFloat16), "the copy of {len}");
            }
        }
    });
}

#[test]
fn a_gradient_that_is_not_finite_changes_nothing() {
    in_every_order(|kernels| {
        for scale in [f32::NAN, f32::INFINITY] {
            let parameters = [Parameter::random(100, Kind::Float)];
            launch(kernels, &parameters, Some(&Tensor::from_slice(&[scale])));
            assert_eq!(parameters[0].master, Parameter::random(100, Kind::Float).master);
        }
    });
}

/// The norm of tensors of one kind, as kernels compute it.
fn norm(kernels: &Kernels, tensors: &[&Tensor]) -> f64 {
    let table = SquaresTable::new(kernels, tensors).unwrap();
    let options = (Kind::Double, tch::Device::Cpu);
    let partials = Tensor::full([table.num_partials() as i64], f64::NAN, options);
    let (words, out) = (Tensor::from_slice(table.words()), Tensor::full([1], f64::NAN, options));
    SumsOfSquares { table: &table, words: &words, partials: &partials }.launch(kernels).unwrap();
    NormOfSquares { partials: &partials, out: &out }.launch(kernels).unwrap();
    out.double_value(&[0])
}

#[test]
fn a_norm_of_many_tensors_is_that_of_their_numbers_in_f64() {
    // Less than a vector, whole vectors and not, and more than one block's elements.
    const LENS: [i64; 6] = [1, 3, 4096, 9001, 65_536, 70_001];
    in_every_order(|kernels| {
        for kind in super::KINDS {
            let tensors = LENS.map(|len| randn(&[len], len).to_kind(kind));
            // From its second element on, a tensor is not aligned for vectors.
            let shifted = tensors[3].narrow(0, 1, 9000);
            let all: Vec<&Tensor> = tensors.iter().chain([&shifted]).collect();
            let wide = |tensor: &&Tensor| tensor.to_kind(Kind::Double).square().sum(Kind::Double);
            let expected: f64 = all.iter().map(|tensor| wide(tensor).double_value(&[])).sum();
            let got = norm(kernels, &all);
            assert!((got / expected.sqrt() - 1.0).abs() < 1e-12, "{kind:?}: {got} {}", expected.sqrt());
            assert_eq!(got.to_bits(), norm(kernels, &all).to_bits(), "one order of sums");
        }
        // The squares exceed f32, and a value that is not finite makes the norm not finite.
        let large = norm(kernels, &[&Tensor::from_slice(&[3e30_f32, 4e30])]);
        assert!((large / 5e30 - 1.0).abs() < 1e-6, "{large}");
        assert!(!norm(kernels, &[&Tensor::from_slice(&[1.0_f32, f32::NAN])]).is_finite());
    });
}
