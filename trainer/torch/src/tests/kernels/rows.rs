//! Norms, activations and the vocabulary head: operations on independent rows.

use rlt_core::logits;
use tch::{Kind, Tensor};

use super::{KINDS, assert_near, floats, in_every_order, randn};
use crate::Activation;
use crate::cuda::{
    GatedRows, HeadBackward, HeadForward, Kernels, NormRows, RmsNormResidual, RopeRows, SwiGlu,
};
use crate::tests::leaf;

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

/// Buckets of a decoder's rows and numbers between them.
#[test]
fn any_number_of_rows_is_normed_and_activated() {
    in_every_order(|kernels| {
        for rows in [1, 2, 7, 64, 255, 256] {
            let x = randn(&[rows, 40], rows);
            let (weight, residual, out) = (randn(&[40], 3), x.zeros_like(), x.full_like(f64::NAN));
            let launch = RmsNormResidual {
                x: Some(&x),
                residual: &residual,
                weight: &weight,
                eps: 1e-6,
                offset: 0.0,
                out: &out,
            };
            launch.launch(kernels).unwrap();
            assert_near("norm", &out, &crate::rms_norm(&x, &weight, 1e-6, 0.0));
            let gated = Tensor::full([rows, 20], f64::NAN, (Kind::Float, x.device()));
            SwiGlu { gate_up: &x, activation: Activation::Silu, out: &gated }.launch(kernels).unwrap();
            assert_near("activation", &gated, &crate::gated_activation_packed(&x, Activation::Silu));
        }
    });
}

/// Computes the gradients of `inputs` by autograd, from the gradient `grad` of their function `of`.
fn gradients<const N: usize>(
    inputs: [&Tensor; N],
    grad: &Tensor,
    of: impl Fn(&[Tensor; N]) -> Tensor,
) -> (Tensor, [Tensor; N]) {
    let leaves = inputs.map(|input| leaf(&input.to_kind(Kind::Float)));
    let out = of(&leaves);
    crate::backward(&out, &grad.to_kind(Kind::Float));
    (out.detach(), leaves.map(|leaf| leaf.grad()))
}

#[test]
fn a_norm_of_training_and_its_gradients_are_those_of_the_cpu() {
    in_every_order(|kernels| {
        // Rows of vectors and not, of one warp, of as many columns as a thread sums up and of more rows
        // than blocks.
        let shapes =
            [(3, 8), (5, 33), (2, 1030), (1, 8192), (1, 8190), (64, 8), (255, 33), (256, 24), (256, 7)];
        for (case, (rows, width)) in shapes.into_iter().enumerate() {
            for (kind, weight_kind) in
                KINDS.map(|kind| (kind, kind)).into_iter().chain([(Kind::BFloat16, Kind::Float)])
            {
                let [x, grad] = [1, 2].map(|seed| randn(&[rows, width], seed).to_kind(kind));
                // A value that both dtypes represent, so that rounding does not change it.
                let weight = (randn(&[width], 3) * 0.1 + 1.0).to_kind(kind).to_kind(weight_kind);
                let offset = (case % 2) as f64;
                let (out, rstd) = (x.zeros_like(), Tensor::zeros([rows], (Kind::Float, x.device())));
                let rows_of = NormRows { x: &x, weight: &weight, offset, rstd: &rstd, out: &out };
                rows_of.launch(kernels, 1e-6).unwrap();
                let (expected, [dx, dw]) =
                    gradients([&x, &weight], &grad, |[x, weight]| crate::rms_norm(x, weight, 1e-6, offset));
                assert_near("norm", &out, &expected.to_kind(kind));
                let (grad_x, partial) =
                    (x.zeros_like(), Tensor::zeros([2, width], (Kind::Float, x.device())));
                NormRows { out: &grad_x, ..rows_of }.launch_backward(kernels, &grad, &partial).unwrap();
                assert_near("gradient of x", &grad_x, &dx.to_kind(kind));
                let sum = partial.sum_dim_intlist([0_i64].as_slice(), false, Kind::Float);
                assert_near("gradient of the weight", &sum, &dw);
                let (again, nothing) = (x.zeros_like(), Tensor::zeros([2, 0], (Kind::Float, x.device())));
                NormRows { out: &again, ..rows_of }.launch_backward(kernels, &grad, &nothing).unwrap();
                assert_eq!(again, grad_x, "a frozen weight changes nothing else");
            }
        }
    });
}

#[test]
fn a_gated_activation_of_training_and_its_gradients_are_those_of_the_cpu() {
    in_every_order(|kernels| {
        for (rows, width) in [(1, 8), (5, 24), (3, 7), (2, 2312), (64, 8), (255, 7), (256, 8)] {
            for kind in KINDS {
                for activation in [Activation::Silu, Activation::GeluTanh] {
                    // The halves of one projection, which are not contiguous.
                    let packed = (randn(&[rows, 2 * width], 5) * 4.0).to_kind(kind);
                    let [gate, up] = [0, width].map(|start| packed.narrow(1, start, width));
                    let grad = randn(&[rows, width], 6).to_kind(kind);
                    let (expected, of_inputs) = gradients([&gate, &up], &grad, |[gate, up]| {
                        crate::gated_activation(gate, up, activation)
                    });
                    let gated = GatedRows { gate: &gate, up: &up, activation };
                    let out = grad.zeros_like();
                    gated.launch(kernels, &out).unwrap();
                    assert_near("activation", &out, &expected.to_kind(kind));
                    let found = [grad.zeros_like(), grad.zeros_like()];
                    gated.launch_backward(kernels, &grad, [&found[0], &found[1]]).unwrap();
                    for (found, expected) in found.iter().zip(of_inputs) {
                        assert_near("gradient", found, &expected.to_kind(kind));
                    }
                }
            }
        }
    });
}

#[test]
fn heads_are_turned_and_gradients_turned_back_as_on_the_cpu() {
    in_every_order(|kernels| {
        for (rows, heads, width, is_half) in [
            (7, 3, 64, false),
            (7, 1, 64, true),
            (7, 2, 6, false),
            (7, 9, 80, true),
            (7, 5, 256, false),
            (1, 2, 8, false),
            (64, 1, 16, true),
            (255, 2, 6, true),
            (256, 2, 8, false),
        ] {
            for kind in KINDS {
                let [x, grad] = [1, 2].map(|seed| randn(&[rows, heads, width], seed).to_kind(kind));
                // The halves' angles differ where there are two, as no model has them, so that neither is
                // taken for the other.
                let angles = randn(&[rows, if is_half { width / 2 } else { width }], 3);
                let [cos, sin] = [angles.cos(), angles.sin()].map(|table| table.to_kind(kind));
                let (expected, [dx]) = gradients([&x], &grad, |[x]| {
                    crate::apply_rope(x, &cos.to_kind(Kind::Float), &sin.to_kind(Kind::Float))
                });
                for (input, is_backward, expected) in [(&x, false, expected), (&grad, true, dx)] {
                    let out = x.zeros_like();
                    RopeRows { x: input, cos: &cos, sin: &sin, out: &out }
                        .launch(kernels, is_backward)
                        .unwrap();
                    assert_near("turned", &out, &expected.to_kind(kind));
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
        // A token of probability zero must not affect the other tokens.
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

/// Compares log-probs, entropies and their gradient with the definition in f64.
fn assert_is_the_definition(kernels: &Kernels, rows: i64, vocabulary: i64, kind: Kind) {
    let head = Head::random(rows, vocabulary, kind);
    head.forward().launch(kernels).unwrap();
    let (logprobs, entropies) = (floats(&head.rows[0]), floats(&head.rows[1]));
    let (dlogprob, dentropy) = (0.7, -0.3);
    let mut expected = Vec::new();
    for (row, (z, target)) in head.scaled().into_iter().enumerate() {
        let score = logits::score(&z, target);
        assert!((f64::from(logprobs[row]) - score.logprob).abs() < 2e-5, "{vocabulary} {kind:?}");
        assert!((f64::from(entropies[row]) - score.entropy).abs() < 2e-5, "{vocabulary} {kind:?}");
        let gradient = logits::score_gradient(&z, target, dlogprob, dentropy);
        expected.extend(gradient.into_iter().map(|g| (g / head.temperature) as f32));
    }
    let grads = [dlogprob, dentropy].map(|g| head.rows[0].full_like(g));
    let backward = HeadBackward { forward: head.forward(), grad_logprob: &grads[0], grad_entropy: &grads[1] };
    backward.launch(kernels).unwrap();
    let expected = Tensor::from_slice(&expected).view([rows, vocabulary]);
    assert_near("the gradient of logits", &head.logits, &expected.to_kind(kind));
}

#[test]
fn log_probs_entropies_and_their_gradient_are_those_of_the_definition() {
    in_every_order(|kernels| {
        for (rows, vocabulary) in [(2, 16), (3, 37), (2, 1024), (1, 3001), (256, 40)] {
            for kind in KINDS {
                assert_is_the_definition(kernels, rows, vocabulary, kind);
            }
        }
    });
}

/// The rows of Qwen2.5's head, which are whole vectors, and the tokens of Qwen3's tokenizer, which are not.
#[test]
fn log_probs_of_a_vocabulary_of_152k_tokens_are_those_of_the_definition() {
    in_every_order(|kernels| {
        assert_is_the_definition(kernels, 1, 151_936, Kind::BFloat16);
        assert_is_the_definition(kernels, 1, 151_669, Kind::Float);
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
