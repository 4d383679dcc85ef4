//! Products by experts equal a loop over tokens, values and gradients, for any number of rows.

use tch::{Device, Kind, Tensor};

use super::{leaf, randn, relative_difference};
use crate::ExpertRows;

const EXPERTS: i64 = 5;

/// Sum by autograd: each token separately times the full weight of each of its experts.
fn token_by_token(x: &Tensor, weight: &Tensor, weights: &Tensor, choices: &[i64]) -> Tensor {
    let per_token = weights.size()[1];
    let sums = (0..x.size()[0]).map(|token| {
        let terms = (0..per_token).map(|choice| {
            let expert = choices[(token * per_token + choice) as usize];
            weight.select(0, expert).mv(&x.select(0, token)) * weights.select(0, token).select(0, choice)
        });
        terms.fold(Tensor::zeros([weight.size()[1]], (Kind::Float, Device::Cpu)), |sum, term| sum + term)
    });
    Tensor::stack(&sums.collect::<Vec<_>>(), 0)
}

/// Choices of different experts for each token; expert 3 has none.
fn choices(num_tokens: i64) -> Vec<i64> {
    let experts = [0, 1, 2, 4];
    (0..num_tokens)
        .flat_map(|token| [experts[token as usize % 4], experts[(token as usize + 1) % 4]])
        .collect()
}

#[test]
fn experts_compute_what_a_loop_over_tokens_computes() {
    for num_tokens in [1, 2, 13] {
        let choices = choices(num_tokens);
        let inputs = || {
            let weight = leaf(&randn(&[EXPERTS, 7, 6], 1));
            (leaf(&randn(&[num_tokens, 6], 2)), weight, leaf(&randn(&[num_tokens, 2], 3)))
        };
        let (ours, theirs) = (inputs(), inputs());
        let rows = ExpertRows::new(&choices, 2, EXPERTS as usize, Device::Cpu);
        let got = rows.combine(&rows.linear(&rows.gather(&ours.0), &ours.1), &ours.2);
        let expected = token_by_token(&theirs.0, &theirs.1, &theirs.2, &choices);
        assert!(relative_difference(&got, &expected) < 1e-6);
        let grad = randn(&[num_tokens, 7], 4);
        (got * &grad).sum(Kind::Float).backward();
        (expected * &grad).sum(Kind::Float).backward();
        for (ours, theirs) in [(&ours.0, &theirs.0), (&ours.1, &theirs.1), (&ours.2, &theirs.2)] {
            assert!(relative_difference(&ours.grad(), &theirs.grad()) < 1e-6, "{num_tokens} tokens");
        }
    }
}

#[test]
fn the_sum_of_a_token_does_not_depend_on_other_tokens() {
    let (x, weights) = (randn(&[9, 6], 5), randn(&[9, 2], 6));
    let choices = choices(9);
    let together = ExpertRows::new(&choices, 2, EXPERTS as usize, Device::Cpu);
    let sum = together.combine(&together.gather(&x), &weights);
    for token in 0..9 {
        let own = &choices[2 * token as usize..][..2];
        let alone = ExpertRows::new(own, 2, EXPERTS as usize, Device::Cpu);
        let rows = alone.gather(&x.narrow(0, token, 1));
        assert_eq!(alone.combine(&rows, &weights.narrow(0, token, 1)), sum.narrow(0, token, 1));
    }
}

#[test]
fn rows_of_an_expert_are_a_stretch_and_experts_without_tokens_have_none() {
    let rows = ExpertRows::new(&[4, 0, 1, 4], 2, EXPERTS as usize, Device::Cpu);
    assert_eq!(rows.of_experts().collect::<Vec<_>>(), [(0, 0..1), (1, 1..2), (4, 2..4)]);
    let x = Tensor::from_slice(&[10_f32, 20.0]).unsqueeze(1);
    let sorted = rows.gather(&x).squeeze_dim(1);
    assert_eq!(Vec::<f32>::try_from(sorted).unwrap_or_default(), [10.0, 20.0, 10.0, 20.0]);
}
