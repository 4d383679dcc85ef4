//! Norms, activations and the vocabulary head: operations on independent rows.

use rlt_core::logits;
use tch::{Kind, Tensor};

use super::{KINDS, assert_near, floats, in_every_order, randn};
use crate::Activation;
use crate::cuda::{HeadBackward, HeadForward, RmsNormResidual, SwiGlu};

#[test]
fn a_norm_with_its_residual_is_the_sum_and_then_the_norm() {
    in_every_order(|kernels| {
        // Widths of whole vectors and not, of less than a block and of more than a thread's registers hold.
        for (case, (rows, width)) in [(3, 8), (1, 33), (2, 96), (2, 1030), (1, 8200)].into_iter().enumerate()
        {
            for kind in KINDS {
                let [x, before] = [1, 2].map(|seed| randn(&[rows, width], seed).to_kind(kind));
                let weight = (randn(&[width], 3) * 0.1 + 1.0).to_kind(kind);
                let (offset, added) = ((case % 2) as f64, (case != 2).then_some(&x));
                let (residual, out) = (before.copy(), before.zeros_like());
                let launch = RmsNormResidual {
                    x: added,
                    residual: &residual,
                    weight: &weight,
                    eps: 1e-6,
                    offset,
                    out: &out,
                };
                launch.launch(kernels).unwrap();
                let sum = added.map_or_else(|| before.copy(), |x| &before + x);
                assert_eq!(residual, sum, "{kind:?} {width}");
                assert_near("norm", &out, &crate::rms_norm(&sum, &weight, 1e-6, offset));
            }
        }
    });
}

#[test]
fn a_gated_activation_is_that_of_the_cpu() {
    in_every_order(|kernels| {
        for (rows, width) in [(1, 8), (5, 24), (3, 7), (2, 2312)] {
            for kind in KINDS {
                for activation in [Activation::Silu, Activation::GeluTanh, Activation::Gelu] {
                    let gate_up = (randn(&[rows, 2 * width], 5) * 4.0).to_kind(kind);
                    let out = Tensor::zeros([rows, width], (kind, gate_up.device()));
                    SwiGlu { gate_up: &gate_up, activation, out: &out }.launch(kernels).unwrap();
                    // GELU is an operation of its own, whose result is stored before it is multiplied.
                    let kind_of_cpu = if activation == Activation::Gelu { kind } else { Kind::Float };
                    let expected = crate::gated_activation_packed(&gate_up.to_kind(kind_of_cpu), activation);
                    assert_near("activation", &out, &expected.to_kind(kind));
                }
            }
        }
    });
}

/// A chunk of the head with all that its launches write.
struct Head {
    logits: Tensor,
    targets: Tensor,
    /// Log-prob, entropy, maximum, logarithm of the sum.
    rows: [Tensor; 4],
    temperature: f64,
}

impl Head {
    fn random(rows: i64, vocabulary: i64, kind: Kind) -> Self {
        let logits = randn(&[rows, vocabulary], rows * vocabulary) * 3.0;
        // An impossible token spoils nothing.
        let _ = logits.narrow(1, vocabulary / 2, 1).fill_(f64::NEG_INFINITY);
        let targets: Vec<i64> = (0..rows).map(|row| row * 5 % (vocabulary / 2)).collect();
        let targets = Tensor::from_slice(&targets);
        let zeros = || Tensor::zeros([rows], (Kind::Float, tch::Device::Cpu));
        Self {
            logits: logits.to_kind(kind),
            targets,
            rows: [zeros(), zeros(), zeros(), zeros()],
            temperature: 0.8,
        }
    }

    fn forward(&self) -> HeadForward<'_> {
        let [logprob, entropy, max, log_sum] = &self.rows;
        let (logits, targets, temperature) = (&self.logits, &self.targets, self.temperature);
        HeadForward { logits, targets, temperature, logprob, entropy, max, log_sum }
    }

    /// Logits / temperature and target of each row.
    fn scaled(&self) -> Vec<(Vec<f64>, usize)> {
        let vocabulary = self.logits.size()[1] as usize;
        let logits = floats(&self.logits);
        let targets = Vec::<i64>::try_from(&self.targets).unwrap();
        let rows = logits.chunks(vocabulary).zip(targets);
        let scale = |row: &[f32]| row.iter().map(|&z| f64::from(z) / self.temperature).collect();
        rows.map(|(row, target)| (scale(row), target as usize)).collect()
    }
}

#[test]
fn log_probs_entropies_and_their_gradient_are_those_of_the_definition() {
    in_every_order(|kernels| {
        for (rows, vocabulary) in [(2, 16), (3, 37), (2, 1024), (1, 3001)] {
            for kind in KINDS {
                let head = Head::random(rows, vocabulary, kind);
                head.forward().launch(kernels).unwrap();
                let (logprobs, entropies) = (floats(&head.rows[0]), floats(&head.rows[1]));
                let (dlogprob, dentropy) = (0.7, -0.3);
                let mut expected = Vec::new();
                for (row, (z, target)) in head.scaled().into_iter().enumerate() {
                    let score = logits::score(&z, target);
                    assert!((f64::from(logprobs[row]) - score.logprob).abs() < 2e-5, "{vocabulary} {kind:?}");
                    assert!(
                        (f64::from(entropies[row]) - score.entropy).abs() < 2e-5,
                        "{vocabulary} {kind:?}"
                    );
                    let gradient = logits::score_gradient(&z, target, dlogprob, dentropy);
                    expected.extend(gradient.into_iter().map(|g| (g / head.temperature) as f32));
                }
                let grads = [dlogprob, dentropy].map(|g| head.rows[0].full_like(g));
                let backward = HeadBackward {
                    forward: head.forward(),
                    grad_logprob: &grads[0],
                    grad_entropy: &grads[1],
                };
                backward.launch(kernels).unwrap();
                let expected = Tensor::from_slice(&expected).view([rows, vocabulary]);
                assert_near("the gradient of logits", &head.logits, &expected.to_kind(kind));
            }
        }
    });
}

#[test]
fn operands_that_do_not_fit_are_named() {
    in_every_order(|kernels| {
        let (row, short) = (randn(&[2, 8], 1), randn(&[2, 6], 1));
        let weight = randn(&[8], 2);
        let launch = |out: &Tensor| {
            let x = Some(&row);
            RmsNormResidual { x, residual: &row.copy(), weight: &weight, eps: 1e-6, offset: 0.0, out }
                .launch(kernels)
        };
        let error = launch(&short).unwrap_err().to_string();
        assert!(error.contains("out as dense Float [2, 8]") && error.contains("[2, 6]"), "{error}");
        let error = launch(&randn(&[8, 2], 1).tr()).unwrap_err().to_string();
        assert!(error.contains("strides [1, 2]"), "{error}");
        let gate_up = row.to_kind(Kind::Int);
        let out = Tensor::zeros([2, 4], (Kind::Int, tch::Device::Cpu));
        let error = SwiGlu { gate_up: &gate_up, activation: Activation::Silu, out: &out }.launch(kernels);
        assert!(error.unwrap_err().to_string().contains("Float, BFloat16 or Half"));
    });
}
