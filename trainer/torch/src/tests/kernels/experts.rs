//! Routing, sorting by expert, grouped products and weighed sums against the CPU's functions.

use tch::{Device, Kind, Tensor};

use super::{KINDS, assert_near, floats, in_every_order, ints, randn, words};
use crate::ExpertRows;
use crate::cuda::{
    CombineRows, ExpertScores, GroupedLinear, GroupedLinearDw, GroupedLinearDx, Kernels, RouteExperts,
    RouteRule, SortRows,
};

const RULE: RouteRule =
    RouteRule { scores: ExpertScores::Softmax, normalises: true, rounds: false, scale: 1.0 };

fn i32s(size: &[i64]) -> Tensor {
    Tensor::zeros(size, (Kind::Int, Device::Cpu))
}

/// Choices, weights and digests of a launch.
fn routed(
    kernels: &Kernels,
    logits: &Tensor,
    (bias, rule): (Option<&Tensor>, RouteRule),
    per_token: i64,
) -> [Tensor; 3] {
    let tokens = logits.size()[0];
    let (choices, digests) = (i32s(&[tokens, per_token]), i32s(&[tokens]));
    let weights = Tensor::zeros([tokens, per_token], (Kind::Float, Device::Cpu));
    let digests_of = Some(&digests);
    RouteExperts { logits, bias, rule, choices: &choices, weights: &weights, digests: digests_of }
        .launch(kernels)
        .unwrap();
    [choices, weights, digests]
}

/// The choices by a stable sort, and their weights.
fn expected_routes(
    logits: &Tensor,
    (bias, rule): (Option<&Tensor>, RouteRule),
    per_token: i64,
) -> [Tensor; 2] {
    let scores = match rule.scores {
        ExpertScores::Softmax => logits.softmax(-1, Kind::Float),
        ExpertScores::Sigmoid => logits.to_kind(Kind::Float).sigmoid(),
    };
    let compared = bias.map_or_else(|| scores.shallow_clone(), |bias| &scores + bias);
    let choices = compared.sort_stable(true, -1, true).1.narrow(1, 0, per_token);
    let weights = scores.gather(1, &choices, false);
    let sum = if rule.normalises { weights.sum_dim_intlist(-1, true, None) } else { Tensor::from(1.0) };
    let weights = weights / sum * rule.scale;
    [choices.to_kind(Kind::Int), if rule.rounds { weights.to_kind(logits.kind()) } else { weights }]
}

#[test]
fn a_route_is_the_cpu_s_choice_with_its_weights() {
    in_every_order(|kernels| {
        for (tokens, experts, per_token) in
            [(1, 8, 2), (9, 60, 4), (3, 130, 8), (5, 4, 4), (0, 8, 2), (64, 8, 2), (255, 12, 3), (256, 8, 2)]
        {
            for kind in KINDS {
                for (scores, normalises, rounds, scale) in [
                    (ExpertScores::Softmax, true, true, 1.0),
                    (ExpertScores::Softmax, false, false, 1.0),
                    (ExpertScores::Sigmoid, true, false, 2.5),
                ] {
                    let logits = (randn(&[tokens, experts], experts) * 2.0).to_kind(kind);
                    let bias = randn(&[experts], 3) * 0.2;
                    let rule = RouteRule { scores, normalises, rounds, scale };
                    let by = ((scores == ExpertScores::Sigmoid).then_some(&bias), rule);
                    let [choices, weights, _] = routed(kernels, &logits, by, per_token);
                    let [expected, expected_weights] = expected_routes(&logits, by, per_token);
                    assert_eq!(words(&choices), words(&expected), "{experts} {kind:?} {rule:?}");
                    if tokens > 0 {
                        let kind = if rounds { kind } else { Kind::Float };
                        assert_near("weights", &weights.to_kind(kind), &expected_weights.to_kind(kind));
                    }
                }
            }
        }
    });
}

#[test]
fn the_lower_indices_of_equal_experts_are_chosen_and_a_nan_before_any_number() {
    in_every_order(|kernels| {
        let mut scores = vec![0.5_f32; 70];
        (scores[66], scores[9]) = (2.0, 2.0);
        let mut with_nan = scores.clone();
        with_nan[40] = f32::NAN;
        for kind in KINDS {
            let row = |row: &[f32]| Tensor::from_slice(row).view([1, -1]).to_kind(kind);
            let [choices, ..] = routed(kernels, &row(&scores), (None, RULE), 5);
            assert_eq!(words(&choices), [9, 66, 0, 1, 2]);
            // All scores of the row are then NaN.
            let [choices, ..] = routed(kernels, &row(&with_nan), (None, RULE), 3);
            assert_eq!(words(&choices), [0, 1, 2]);
            let by_each = RouteRule { scores: ExpertScores::Sigmoid, ..RULE };
            let [choices, ..] = routed(kernels, &row(&with_nan), (None, by_each), 3);
            assert_eq!(words(&choices), [40, 9, 66]);
        }
    });
}

#[test]
fn a_digest_is_that_of_the_chosen_experts_in_ascending_order() {
    in_every_order(|kernels| {
        let logits = randn(&[7, 40], 8);
        let [choices, _, digests] = routed(kernels, &logits, (None, RULE), 6);
        for (chosen, digest) in words(&choices).chunks(6).zip(words(&digests)) {
            let mut chosen: Vec<u64> = chosen.iter().map(|expert| *expert as u64).collect();
            chosen.sort_unstable();
            let all = chosen.into_iter().fold(0, rlt_core::digest::combine);
            assert_eq!(digest as u64, all >> 48);
        }
    });
}

/// Experts of `num` pairs; expert 3 has none, expert 1 every third.
fn choices(num: usize, experts: usize) -> Vec<i64> {
    let chosen = |pair: usize| if pair.is_multiple_of(3) { 1 } else { (pair * 7 + pair / 5) % experts };
    (0..num).map(|pair| if chosen(pair) == 3 { 0 } else { chosen(pair) as i64 }).collect()
}

fn narrow(numbers: &[i64]) -> Tensor {
    Tensor::from_slice(numbers).to_kind(Kind::Int)
}

struct Sorted {
    order: Tensor,
    inverse: Tensor,
    ends: Tensor,
}

fn sorted(kernels: &Kernels, choices: &[i64], experts: usize) -> Sorted {
    let n = choices.len() as i64;
    let (order, inverse, ends) = (i32s(&[n]), i32s(&[n]), i32s(&[experts as i64]));
    SortRows { choices: &narrow(choices), order: &order, inverse: &inverse, ends: &ends }
        .launch(kernels)
        .unwrap();
    Sorted { order, inverse, ends }
}

#[test]
fn rows_are_sorted_by_expert_as_on_the_cpu() {
    in_every_order(|kernels| {
        for (num, experts) in [(0, 4), (2, 5), (31, 8), (700, 9), (2100, 130)] {
            let choices = choices(num, experts);
            let expected = ExpertRows::new(&choices, 1, experts, Device::Cpu);
            let Sorted { order, inverse, ends } = sorted(kernels, &choices, experts);
            let pairs = Tensor::arange(num as i64, (Kind::Float, Device::Cpu)).unsqueeze(1);
            let expected_order = expected.gather(&pairs).squeeze_dim(1);
            assert_eq!(floats(&order), floats(&expected_order), "{num} of {experts}");
            assert_eq!(
                words(&inverse.index_select(0, &order.to_kind(Kind::Int64))),
                words(&ints(&(0..num as i32).collect::<Vec<_>>()))
            );
            let counts: Vec<i64> = words(&ends)
                .iter()
                .scan(0, |start, end| Some(i64::from(end - std::mem::replace(start, *end))))
                .collect();
            assert_eq!(counts, expected.counts());
        }
    });
}

/// Sizes of rows, experts, outputs and inputs: whole vectors and not, more rows than a tile, few rows.
const PRODUCTS: [(usize, usize, i64, i64); 6] =
    [(2, 5, 8, 16), (90, 4, 72, 40), (33, 8, 7, 33), (140, 5, 66, 104), (6, 40, 130, 8), (256, 4, 8, 16)];

#[test]
fn grouped_products_and_their_gradients_are_those_of_the_cpu() {
    in_every_order(|kernels| {
        for (case, (num, experts, out_width, in_width)) in PRODUCTS.into_iter().enumerate() {
            for kind in KINDS {
                let choices = choices(num, experts);
                let Sorted { ends, .. } = sorted(kernels, &choices, experts);
                let rows = ExpertRows::new(&choices, 1, experts, Device::Cpu);
                let given = |size: &[i64], seed| {
                    let seed = seed + case as i64;
                    (randn(size, seed) * 0.5).to_kind(kind).to_kind(Kind::Float)
                };
                let x = super::super::leaf(&given(&[num as i64, in_width], 1));
                let weight = super::super::leaf(&given(&[experts as i64, out_width, in_width], 2));
                let grad = given(&[num as i64, out_width], 3);
                let expected = rows.linear(&x, &weight);
                (&expected * &grad).sum(Kind::Float).backward();
                let [x_k, weight_k, grad_k] =
                    [&x, &weight, &grad].map(|tensor| tensor.detach().to_kind(kind));
                let out = grad_k.full_like(f64::NAN);
                let linear =
                    GroupedLinear { rows: &x_k, places: None, weight: &weight_k, ends: &ends, out: &out };
                linear.launch(kernels).unwrap();
                let of_case = format!("{num} rows of {experts} experts, {in_width} to {out_width}");
                assert_near(&of_case, &out, &expected.detach());
                let dx = x_k.full_like(f64::NAN);
                GroupedLinearDx { grad: &grad_k, weight: &weight_k, ends: &ends, out: &dx }
                    .launch(kernels)
                    .unwrap();
                assert_near(&format!("rows' gradient of {of_case}"), &dx, &x.grad());
                let dw = weight_k.full_like(f64::NAN);
                GroupedLinearDw { grad: &grad_k, rows: &x_k, ends: &ends, out: &dw }.launch(kernels).unwrap();
                assert_near(&format!("weight's gradient of {of_case}"), &dw, &weight.grad());
            }
        }
    });
}

#[test]
fn a_row_has_the_same_product_in_any_batch_and_tokens_are_read_in_place() {
    in_every_order(|kernels| {
        for kind in KINDS {
            let (tokens, per_token, experts) = (37, 3, 6);
            let choices = choices(tokens * per_token, experts);
            let Sorted { order, ends, .. } = sorted(kernels, &choices, experts);
            let x = randn(&[tokens as i64, 24], 4).to_kind(kind);
            let weight = randn(&[experts as i64, 70, 24], 5).to_kind(kind);
            let n = choices.len() as i64;
            let [all, gathered] = [0, 1].map(|_| Tensor::zeros([n, 70], (kind, Device::Cpu)));
            GroupedLinear { rows: &x, places: Some(&order), weight: &weight, ends: &ends, out: &all }
                .launch(kernels)
                .unwrap();
            let tokens_of_rows = order.to_kind(Kind::Int64).divide_scalar_mode(per_token as i64, "floor");
            let rows = x.index_select(0, &tokens_of_rows);
            GroupedLinear { rows: &rows, places: None, weight: &weight, ends: &ends, out: &gathered }
                .launch(kernels)
                .unwrap();
            assert_eq!(all, gathered);
            // The row of the 50th pair, alone.
            let expert = choices[50] as usize;
            let row = words(&order).iter().position(|pair| *pair == 50).unwrap() as i64;
            let ends: Vec<i32> = (0..experts).map(|e| i32::from(e >= expert)).collect();
            let alone = Tensor::zeros([1, 70], (kind, Device::Cpu));
            GroupedLinear {
                rows: &rows.narrow(0, row, 1),
                places: None,
                weight: &weight,
                ends: &ints(&ends),
                out: &alone,
            }
            .launch(kernels)
            .unwrap();
            assert_eq!(alone, all.narrow(0, row, 1));
        }
    });
}

#[test]
fn weighted_sums_with_a_shared_expert_equal_the_cpus() {
    in_every_order(|kernels| {
        for (tokens, per_token, width) in [(1, 1, 8), (5, 2, 24), (3, 4, 7), (2, 8, 520), (256, 2, 8)] {
            for kind in KINDS {
                let choices = choices(tokens * per_token, 6);
                let Sorted { inverse, .. } = sorted(kernels, &choices, 6);
                let rows = ExpertRows::new(&choices, per_token, 6, Device::Cpu);
                let (t, k) = (tokens as i64, per_token as i64);
                let x = randn(&[t * k, width], 6).to_kind(kind);
                let weights = randn(&[t, k], 7);
                let (shared_expert, gate) =
                    (randn(&[t, width], 8).to_kind(kind), randn(&[t, 1], 9).to_kind(kind));
                let mixed = rows.combine(&x, &weights);
                let gated = &mixed + gate.sigmoid() * &shared_expert;
                for (shared_expert, gate, expected) in [
                    (None, None, &mixed),
                    (Some(&shared_expert), None, &(&mixed + &shared_expert)),
                    (Some(&shared_expert), Some(&gate), &gated),
                ] {
                    let out = Tensor::zeros([t, width], (kind, Device::Cpu));
                    let inverse = &inverse;
                    CombineRows { rows: &x, weights: &weights, inverse, shared_expert, gate, out: &out }
                        .launch(kernels)
                        .unwrap();
                    assert_near("weighed sum", &out, expected);
                }
            }
        }
    });
}

#[test]
fn operands_of_experts_that_do_not_fit_are_named() {
    in_every_order(|kernels| {
        let logits = randn(&[2, 8], 1);
        let launch = |logits: &Tensor, per_token: i64| {
            let (choices, digests) = (i32s(&[2, per_token]), i32s(&[2]));
            let weights = Tensor::zeros([2, per_token], (Kind::Float, Device::Cpu));
            let digests = Some(&digests);
            RouteExperts { logits, bias: None, rule: RULE, choices: &choices, weights: &weights, digests }
                .launch(kernels)
                .map_err(|error| error.to_string())
        };
        let error = launch(&logits, 9).unwrap_err();
        assert!(error.contains("no more than experts") && error.contains('9'), "{error}");
        let error = launch(&randn(&[2, 1030], 1), 2).unwrap_err();
        assert!(error.contains("at most 1024 experts") && error.contains("1030"), "{error}");
        let (rows, weight) = (randn(&[4, 8], 1), randn(&[3, 5, 6], 1));
        let (ends, out) = (ints(&[1, 2, 4]), randn(&[4, 5], 1));
        let linear = GroupedLinear { rows: &rows, places: None, weight: &weight, ends: &ends, out: &out }
            .launch(kernels);
        let error = linear.unwrap_err().to_string();
        assert!(error.contains("rows as dense Float [4, 6]"), "{error}");
    });
}
