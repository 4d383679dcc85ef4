//! The chunked head against dense autograd over all logits.

use super::{leaf, on_every_isa, randn, relative_difference};
use crate::{Error, TokenDistribution, backward, head_forward, head_forward_backward};
use tch::{Kind, Tensor};

const NUM_TOKENS: usize = 23;
const VOCABULARY: i64 = 5003;

fn targets() -> Vec<i64> {
    (0..NUM_TOKENS as i64).map(|t| if t % 4 == 1 { -1 } else { (t * 997 + 5002) % VOCABULARY }).collect()
}

/// Log-probabilities of the targets and entropies, dense and differentiable; zeros where there is no target.
fn dense(
    hidden: &Tensor,
    weight: &Tensor,
    targets: &[i64],
    by: impl Into<TokenDistribution>,
) -> (Tensor, Tensor) {
    let (TokenDistribution { temperature, softcap }, logits) = (by.into(), hidden.matmul(&weight.tr()));
    let logits = softcap.map_or(logits.shallow_clone(), |cap| (&logits / cap).tanh() * cap);
    let logp = (logits / temperature).log_softmax(-1, None);
    let (index, active) =
        (Tensor::from_slice(targets), Tensor::from_slice(targets).ge(0).to_kind(hidden.kind()));
    let chosen = logp.gather(1, &index.clamp_min(0).unsqueeze(1), false).squeeze_dim(1) * &active;
    let entropy = -(logp.exp() * &logp).sum_dim_intlist([-1i64].as_slice(), false, None) * active;
    (chosen, entropy)
}

fn derivatives(seed: i64) -> [Vec<f32>; 2] {
    [seed, seed + 1].map(|s| crate::f32_slice(&randn(&[NUM_TOKENS as i64], s)).unwrap().to_vec())
}

#[test]
fn values_and_gradients_equal_dense_autograd() {
    on_every_isa(|| {
        for (temperature, softcap, chunk) in
            [(1.0, None, 7), (0.6, None, 1000), (1.7, None, 1), (0.6, Some(4.0), 7), (1.3, Some(30.0), 1000)]
        {
            let by = TokenDistribution { temperature, softcap };
            let (h0, w0, targets) =
                (randn(&[NUM_TOKENS as i64, 48], 1), randn(&[VOCABULARY, 48], 2) * 0.3, targets());
            let (hidden, weight) = (leaf(&h0.to_kind(Kind::Double)), leaf(&w0.to_kind(Kind::Double)));
            let (logprobs, entropies) = dense(&hidden, &weight, &targets, by);
            let [grad_logprobs, grad_entropies] = derivatives(3);
            let wide = |values: &[f32]| Tensor::from_slice(values).to_kind(Kind::Double);
            let loss =
                (&logprobs * wide(&grad_logprobs) + &entropies * wide(&grad_entropies)).sum(Kind::Double);
            backward(&loss, &loss.ones_like());

            let mut grad_weight = w0.ones_like();
            let (mut seen, mut got) = (0, (Vec::new(), Vec::new()));
            let mut per_chunk = |tokens: std::ops::Range<usize>, l: &[f32], e: &[f32]| {
                assert_eq!(tokens.start, seen, "ranges tile the tokens");
                seen = tokens.end;
                got.0.extend_from_slice(l);
                got.1.extend_from_slice(e);
                (grad_logprobs[tokens.clone()].to_vec(), grad_entropies[tokens].to_vec())
            };
            let grad_hidden =
                head_forward_backward(&h0, &w0, &targets, by, chunk, Some(&mut grad_weight), &mut per_chunk)
                    .unwrap();
            assert_eq!(seen, NUM_TOKENS);
            let (l, e) = head_forward(&h0, &w0, &targets, by, chunk).unwrap();
            assert_eq!((&l, &e), (&got.0, &got.1), "one pass or two, the same values");
            // f32 products against f64 ones; logits here reach about 10.
            assert!(relative_difference(&Tensor::from_slice(&l), &logprobs) < 1e-5);
            assert!(relative_difference(&Tensor::from_slice(&e), &entropies) < 1e-5);
            assert!(relative_difference(&grad_hidden, &hidden.grad()) < 1e-4);
            // The weight's gradient is added to what was there.
            assert!(relative_difference(&(grad_weight - 1.0), &weight.grad()) < 1e-4);
        }
    });
}

#[test]
fn a_frozen_head_gives_the_same_hidden_gradient() {
    let (hidden, weight, targets) =
        (randn(&[NUM_TOKENS as i64, 16], 1), randn(&[50, 16], 2), vec![3; NUM_TOKENS]);
    let run = |grad: Option<&mut Tensor>| {
        let mut per_chunk = |tokens: std::ops::Range<usize>, _: &[f32], _: &[f32]| {
            (vec![0.5; tokens.len()], vec![0.25; tokens.len()])
        };
        head_forward_backward(&hidden, &weight, &targets, 0.9, 5, grad, &mut per_chunk).unwrap()
    };
    on_every_isa(|| {
        let mut grad_weight = weight.zeros_like();
        assert!(run(None).equal(&run(Some(&mut grad_weight))));
        assert!(grad_weight.abs().max().double_value(&[]) > 0.0);
    });
}

#[test]
fn extreme_logits_stay_finite_and_right() {
    on_every_isa(|| {
        let hidden = Tensor::from_slice(&[300f32, -300.0, 0.0]).view([3, 1]);
        let weight = Tensor::linspace(-1, 1, 301, (Kind::Float, tch::Device::Cpu)).view([301, 1]);
        let (logprobs, entropies) = head_forward(&hidden, &weight, &[300, 300, 7], 1.0, 8).unwrap();
        let wide = |t: &Tensor| t.to_kind(Kind::Double);
        let (l, e) = dense(&wide(&hidden), &wide(&weight), &[300, 300, 7], 1.0);
        assert!(relative_difference(&Tensor::from_slice(&logprobs), &l) < 1e-6);
        assert!(relative_difference(&Tensor::from_slice(&entropies), &e) < 1e-6);
    });
}

#[test]
fn f64_and_bf16_follow_the_same_formula() {
    let (hidden, weight, targets) =
        (randn(&[NUM_TOKENS as i64, 32], 1), randn(&[400, 32], 2) * 0.3, vec![17; NUM_TOKENS]);
    let [grad_logprobs, grad_entropies] = derivatives(3);
    let by = TokenDistribution { temperature: 0.8, softcap: Some(3.0) };
    let run = |kind: Kind| {
        let mut grad_weight = weight.zeros_like();
        let mut per_chunk = |tokens: std::ops::Range<usize>, _: &[f32], _: &[f32]| {
            (grad_logprobs[tokens.clone()].to_vec(), grad_entropies[tokens].to_vec())
        };
        let (h, w) = (hidden.to_kind(kind), weight.to_kind(kind));
        let grad =
            head_forward_backward(&h, &w, &targets, by, 6, Some(&mut grad_weight), &mut per_chunk).unwrap();
        let (logprobs, entropies) = head_forward(&h, &w, &targets, by, 6).unwrap();
        (grad, grad_weight, Tensor::from_slice(&logprobs), Tensor::from_slice(&entropies))
    };
    let (single, double, half) = (run(Kind::Float), run(Kind::Double), run(Kind::BFloat16));
    // bf16 rounds inputs, logits and their gradient to 8 bits each.
    for (other, tolerance) in [(double, 1e-5), (half, 0.04)] {
        assert!(relative_difference(&other.0, &single.0) < tolerance);
        assert!(relative_difference(&other.1, &single.1) < tolerance);
        assert!(relative_difference(&other.2, &single.2) < tolerance);
        assert!(relative_difference(&other.3, &single.3) < tolerance);
    }
}

#[test]
fn nothing_to_predict_gives_zeros() {
    let (hidden, weight) = (randn(&[4, 8], 1), randn(&[9, 8], 2));
    let mut calls = 0;
    let mut per_chunk = |tokens: std::ops::Range<usize>, _: &[f32], _: &[f32]| {
        calls += 1;
        (vec![1.0; tokens.len()], vec![1.0; tokens.len()])
    };
    let grad = head_forward_backward(&hidden, &weight, &[-1; 4], 1.0, 2, None, &mut per_chunk).unwrap();
    assert_eq!((grad.abs().max().double_value(&[]), calls), (0.0, 1));
    assert_eq!(head_forward(&hidden, &weight, &[-1; 4], 1.0, 2).unwrap().0, [0.0; 4]);
    assert!(head_forward(&hidden.narrow(0, 0, 0), &weight, &[], 1.0, 2).unwrap().0.is_empty());
}

#[test]
fn invalid_sizes_are_refused_with_their_numbers() {
    let (hidden, weight) = (randn(&[2, 8], 1), randn(&[9, 8], 2));
    let refused = |error: Error, part: &str| assert!(error.to_string().contains(part), "{error}");
    refused(head_forward(&hidden, &weight, &[1, 9], 1.0, 2).unwrap_err(), "9 at token 1");
    refused(head_forward(&hidden, &weight, &[1], 1.0, 2).unwrap_err(), "[2, 8]");
    refused(head_forward(&hidden, &weight, &[1, 2], 0.0, 2).unwrap_err(), "positive temperature");
    let capped = TokenDistribution { temperature: 1.0, softcap: Some(-1.0) };
    refused(head_forward(&hidden, &weight, &[1, 2], capped, 2).unwrap_err(), "positive cap");
    let mut short = |_: std::ops::Range<usize>, _: &[f32], _: &[f32]| (vec![1.0], vec![]);
    let error = head_forward_backward(&hidden, &weight, &[1, 2], 1.0, 2, None, &mut short).unwrap_err();
    refused(error, "2 derivatives");
}
