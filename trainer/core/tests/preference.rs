//! Proofs about preference losses: results do not depend on how an update is split, derivatives are slopes,
//! and values at the start and under a swap are those that the formulas demand.

#![expect(clippy::unwrap_used, reason = "a loss that cannot be computed is a failed test")]

use proptest::prelude::*;
use rlt_core::declaration::{Family, Parameters};
use rlt_core::kto::{Kto, KtoInputs, ReferencePoint};
use rlt_core::preference::{
    Aot, AotUnpaired, BcoPair, Divergence, PreferenceDenominators, PreferenceInputs, PreferenceLoss,
    PreferenceLossKind, PreferenceObjective, PreferenceOutputs, RunningMean, Sigmoid,
};
use rlt_core::rows::Rows;

/// The mean log-ratio of a run's earlier completions.
const MEAN_LOG_RATIO: f64 = 0.3;

const DIVERGENCES: [Divergence; 4] = [
    Divergence::ReverseKl,
    Divergence::ForwardKl,
    Divergence::JensenShannon,
    Divergence::Alpha { alpha: 0.5 },
];

/// Completions, with what a token has: log-prob, its distance from the reference, log of the sum of squares,
/// mask.
type Completion = Vec<(f64, f64, f64, bool)>;

fn completion() -> impl Strategy<Value = Completion> {
    prop::collection::vec((-3.0..-0.01_f64, -1.0..1.0_f64, -2.0..-0.01_f64, prop::bool::weighted(0.8)), 1..7)
}

/// An even number of completions.
fn pairs() -> impl Strategy<Value = Vec<Completion>> {
    prop::collection::vec((completion(), completion()), 1..6)
        .prop_map(|pairs| pairs.into_iter().flat_map(|(chosen, rejected)| [chosen, rejected]).collect())
}

fn rows(completions: &[Completion]) -> Rows {
    let masks: Vec<Vec<bool>> =
        completions.iter().map(|tokens| tokens.iter().map(|token| token.3).collect()).collect();
    Rows::from_masks(masks.iter().map(Vec::as_slice))
}

fn each(completions: &[Completion], of: impl Fn(&(f64, f64, f64, bool)) -> f64) -> Vec<f64> {
    completions.iter().flatten().map(of).collect()
}

fn evaluate(
    objective: &PreferenceObjective,
    completions: &[Completion],
    update: &PreferenceDenominators,
) -> PreferenceOutputs {
    let inputs = PreferenceInputs {
        rows: &rows(completions),
        logprobs: &each(completions, |token| token.0),
        ref_logprobs: Some(&each(completions, |token| token.0 - token.1)),
        log_sum_squares: Some(&each(completions, |token| token.2)),
        mean_log_ratio: MEAN_LOG_RATIO,
    };
    objective.evaluate(&inputs, update).unwrap()
}

fn loss(kind: PreferenceLossKind) -> PreferenceLoss {
    PreferenceLoss::resolve(kind, &Parameters::default())
}

/// Any loss, with the mean of rewards where it takes one.
fn losses() -> impl Strategy<Value = PreferenceLoss> {
    let bco = PreferenceLoss::from(BcoPair { beta: 0.4, running_mean: true });
    let all = PreferenceLossKind::ALL.iter().map(|kind| loss(*kind)).chain([bco]);
    prop::sample::select(all.collect::<Vec<_>>())
}

/// Generates objectives of one to three weighted losses, with and without the other terms.
fn objectives() -> impl Strategy<Value = PreferenceObjective> {
    let losses = prop::collection::vec((losses(), 0.1..2.0_f64), 1..4);
    let divergence = prop::sample::select(DIVERGENCES.to_vec());
    (losses, divergence, prop::option::of(0.0..1.0_f64), any::<bool>(), 0.0..1.0_f64).prop_map(
        |(losses, divergence, desensitization, weigh_by_policy, imitation)| PreferenceObjective {
            losses,
            divergence,
            desensitization,
            weigh_by_policy,
            imitation,
        },
    )
}

fn close(got: f64, expected: f64) -> bool {
    (got - expected).abs() <= 1e-12 * expected.abs().max(1.0)
}

proptest! {
    #[test]
    fn any_split_of_an_update_gives_the_same_loss_and_derivatives(
        completions in pairs(), objective in objectives(), cut in 0_usize..6,
    ) {
        prop_assume!(!objective.losses.iter().any(|(loss, _)| loss.sorts_update()));
        let whole = PreferenceDenominators::of(&rows(&completions));
        let expected = evaluate(&objective, &completions, &whole);
        let (head, tail) = completions.split_at((2 * cut).min(completions.len()));
        let parts = [head, tail].map(|part| evaluate(&objective, part, &whole));
        prop_assert!(close(parts[0].loss + parts[1].loss, expected.loss));
        let joined: Vec<f64> = parts.iter().flat_map(|part| part.dlogprobs.iter().copied()).collect();
        prop_assert!(joined.iter().zip(&expected.dlogprobs).all(|(got, expected)| close(*got, *expected)));
        for idx in 0..7 {
            let sum: f64 = parts.iter().map(|part| part.metrics.values()[idx].1).sum();
            prop_assert!(close(sum, expected.metrics.values()[idx].1));
        }
    }

    /// The slope is taken by central differences. WPO's weight is a constant of the gradient, so it is left
    /// out here.
    #[test]
    fn the_derivative_is_the_slope_of_the_loss(completions in pairs(), objective in objectives()) {
        const STEP: f64 = 1e-6;
        let objective = PreferenceObjective { weigh_by_policy: false, ..objective };
        let whole = PreferenceDenominators::of(&rows(&completions));
        let got = evaluate(&objective, &completions, &whole);
        let mut token_idx = 0;
        for row_idx in 0..completions.len() {
            for position in 0..completions[row_idx].len() {
                let at = |step: f64| {
                    let mut moved = completions.clone();
                    moved[row_idx][position].0 += step;
                    // The reference's log-prob is unchanged, so the distance from it moves as well.
                    moved[row_idx][position].1 += step;
                    evaluate(&objective, &moved, &whole).loss
                };
                let (up, here, down) = (at(STEP), got.loss, at(-STEP));
                let kink = ((up - here) - (here - down)).abs() > 1e-8;
                let (slope, derivative) = ((up - down) / (2.0 * STEP), got.dlogprobs[token_idx]);
                let error = (derivative - slope).abs() / slope.abs().max(1.0);
                prop_assert!(kink || error < 1e-5, "{objective:?}: {derivative} instead of {slope}");
                token_idx += 1;
            }
        }
    }

    /// Each loss by itself, times its weight, and the likelihood once.
    #[test]
    fn several_losses_add_up_by_their_weights(completions in pairs(), objective in objectives()) {
        let whole = PreferenceDenominators::of(&rows(&completions));
        let got = evaluate(&objective, &completions, &whole);
        let alone = |losses: Vec<(PreferenceLoss, f64)>, imitation: f64| {
            evaluate(&PreferenceObjective { losses, imitation, ..objective.clone() }, &completions, &whole)
        };
        let likelihood = alone(Vec::new(), objective.imitation);
        let parts = objective.losses.iter().map(|(loss, weight)| (alone(vec![(*loss, 1.0)], 0.0), *weight));
        let mut loss = likelihood.loss;
        let mut slopes = likelihood.dlogprobs;
        for (part, weight) in parts {
            loss += weight * part.loss;
            slopes.iter_mut().zip(part.dlogprobs).for_each(|(sum, slope)| *sum += weight * slope);
        }
        prop_assert!(close(got.loss, loss));
        prop_assert!(slopes.iter().zip(&got.dlogprobs).all(|(sum, got)| close(*got, *sum)));
    }

    #[test]
    fn the_mean_of_a_run_is_that_of_all_its_numbers(
        updates in prop::collection::vec(prop::collection::vec(-5.0..5.0_f64, 0..6), 0..6),
    ) {
        let running = updates.iter().fold(RunningMean::default(), |mean, numbers| mean.with(numbers));
        let all = updates.concat();
        let mean = all.iter().sum::<f64>() / all.len().max(1) as f64;
        prop_assert!(close(running.mean(), mean));
        let saved: RunningMean = serde_json::from_str(&serde_json::to_string(&running).unwrap()).unwrap();
        prop_assert_eq!(saved, running);
        prop_assert_eq!(running.with(&[f64::NAN, f64::INFINITY]), running);
    }

    /// z is a number of the whole update, so that a part's derivatives do not depend on the other parts.
    #[test]
    fn kto_does_not_depend_on_the_split(completions in pairs(), cut in 0_usize..6, flags in any::<u16>()) {
        let kto = Kto { beta: 0.3, desirable_weight: 1.0, undesirable_weight: 1.2, reference_point: true };
        let labels: Vec<bool> = (0..completions.len()).map(|idx| flags >> idx & 1 == 1).collect();
        let point = |part: &[Completion]| {
            let logprobs = each(part, |token| token.0);
            ReferencePoint::of(&rows(part), &logprobs, &each(part, |token| token.0 - token.1)).unwrap()
        };
        let evaluate = |part: &[Completion], labels: &[bool], point: &ReferencePoint| {
            let inputs = KtoInputs {
                rows: &rows(part),
                logprobs: &each(part, |token| token.0),
                ref_logprobs: &each(part, |token| token.0 - token.1),
                labels,
            };
            kto.evaluate(&inputs, point, completions.len()).unwrap()
        };
        let expected = evaluate(&completions, &labels, &point(&completions));
        let cut = cut.min(completions.len());
        let mut added = point(&completions[..cut]);
        added += point(&completions[cut..]);
        let (head, tail) = (
            evaluate(&completions[..cut], &labels[..cut], &added),
            evaluate(&completions[cut..], &labels[cut..], &added),
        );
        prop_assert!(close(head.loss + tail.loss, expected.loss));
        let joined = head.dlogprobs.iter().chain(&tail.dlogprobs);
        prop_assert!(joined.zip(&expected.dlogprobs).all(|(got, expected)| close(*got, *expected)));
    }

    #[test]
    fn the_derivative_of_kto_is_its_slope(completions in pairs(), flags in any::<u16>()) {
        const STEP: f64 = 1e-6;
        let kto = Kto { beta: 0.3, desirable_weight: 1.0, undesirable_weight: 1.2, reference_point: true };
        let (rows, reference) = (rows(&completions), each(&completions, |token| token.0 - token.1));
        let labels: Vec<bool> = (0..completions.len()).map(|idx| flags >> idx & 1 == 1).collect();
        let logprobs = each(&completions, |token| token.0);
        let point = ReferencePoint::of(&rows, &logprobs, &reference).unwrap();
        let evaluate = |logprobs: &[f64]| {
            let inputs = KtoInputs { rows: &rows, logprobs, ref_logprobs: &reference, labels: &labels };
            kto.evaluate(&inputs, &point, labels.len()).unwrap()
        };
        let got = evaluate(&logprobs);
        for token in 0..logprobs.len() {
            let at = |step: f64| {
                let mut moved = logprobs.clone();
                moved[token] += step;
                evaluate(&moved).loss
            };
            let slope = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            prop_assert!((got.dlogprobs[token] - slope).abs() < 1e-7);
        }
    }
}

fn two(completions: [&[f64]; 2]) -> Vec<Completion> {
    completions
        .iter()
        .map(|tokens| tokens.iter().map(|logprob| (*logprob, 0.0, -0.1, true)).collect())
        .collect()
}

#[test]
fn an_actor_that_is_the_reference_has_a_loss_of_ln_2_and_opposite_derivatives() {
    let completions = two([&[-0.5, -1.0], &[-0.2, -0.3]]);
    let whole = PreferenceDenominators::of(&rows(&completions));
    let got = evaluate(&PreferenceObjective::new(loss(PreferenceLossKind::Sigmoid)), &completions, &whole);
    assert!((got.loss - std::f64::consts::LN_2).abs() < 1e-15);
    assert_eq!(got.dlogprobs, [-0.05, -0.05, 0.05, 0.05]);
    assert_eq!(got.metrics.accuracy, 0.0, "equal rewards are no preference");
}

#[test]
fn swapped_completions_at_the_start_have_the_opposite_derivatives() {
    let (one, other) = (two([&[-0.5, -1.0], &[-0.2, -0.3]]), two([&[-0.2, -0.3], &[-0.5, -1.0]]));
    let whole = PreferenceDenominators::of(&rows(&one));
    for kind in [PreferenceLossKind::Sigmoid, PreferenceLossKind::Hinge, PreferenceLossKind::Robust] {
        let objective = PreferenceObjective::new(loss(kind));
        let [one, other] = [&one, &other].map(|pair| evaluate(&objective, pair, &whole).dlogprobs);
        // On the other side of a pair a completion has the same slope with the opposite sign.
        let swapped: Vec<f64> = [&other[2..], &other[..2]].concat().iter().map(|slope| -slope).collect();
        assert_eq!(one, swapped, "{kind:?}");
    }
}

#[test]
fn a_preference_loss_fails_without_an_input_that_it_reads() {
    let completions = two([&[-0.5], &[-0.2]]);
    let (rows, logprobs) = (rows(&completions), [-0.5, -0.2]);
    let whole = PreferenceDenominators::of(&rows);
    let inputs = PreferenceInputs {
        rows: &rows,
        logprobs: &logprobs,
        ref_logprobs: None,
        log_sum_squares: None,
        mean_log_ratio: 0.0,
    };
    let refuses = |objective: &PreferenceObjective, inputs: &PreferenceInputs<'_>| {
        objective.evaluate(inputs, &whole).unwrap_err().to_string()
    };
    let dpo = PreferenceObjective::new(loss(PreferenceLossKind::Sigmoid));
    assert_eq!(refuses(&dpo, &inputs), "loss Sigmoid needs ref_logprobs, which is missing");
    let simpo = PreferenceObjective::new(loss(PreferenceLossKind::SimPo));
    assert!(simpo.evaluate(&inputs, &whole).is_ok(), "SimPO has no reference");
    let weighted = PreferenceObjective { weigh_by_policy: true, ..simpo };
    assert_eq!(refuses(&weighted, &inputs), "loss wpo needs log_sum_squares, which is missing");
    let odd = Rows::unmasked([1, 1, 1]);
    let unpaired = PreferenceInputs { rows: &odd, logprobs: &[-0.5, -0.2, -0.1], ..inputs };
    assert_eq!(refuses(&dpo, &unpaired), "loss inputs do not fit together");
}

/// Sorting of one pair compares that pair.
#[test]
fn a_loss_that_sorts_is_dpo_of_one_pair_and_takes_the_whole_update_of_several() {
    let one = two([&[-0.5, -1.0], &[-0.2, -0.3]]);
    let one: Vec<Completion> = one
        .into_iter()
        .map(|tokens| tokens.into_iter().map(|token| (token.0, 0.4, token.2, true)).collect())
        .collect();
    let whole = PreferenceDenominators::of(&rows(&one));
    let dpo = evaluate(&PreferenceObjective::new(Sigmoid { beta: 0.3 }), &one, &whole);
    let aot = Aot { beta: 0.3, label_smoothing: 0.0 };
    let unpaired = AotUnpaired { beta: 0.3, label_smoothing: 0.0 };
    for loss in [PreferenceLoss::from(aot), PreferenceLoss::from(unpaired)] {
        let got = evaluate(&PreferenceObjective::new(loss), &one, &whole);
        assert!(close(got.loss, dpo.loss), "{loss:?}");
        assert!(got.dlogprobs.iter().zip(&dpo.dlogprobs).all(|(got, dpo)| close(*got, *dpo)), "{loss:?}");
        let more = PreferenceDenominators { num_pairs: 2, ..whole };
        let part = PreferenceInputs {
            rows: &rows(&one),
            logprobs: &each(&one, |token| token.0),
            ref_logprobs: Some(&each(&one, |token| token.0 - token.1)),
            log_sum_squares: None,
            mean_log_ratio: 0.0,
        };
        let refused = PreferenceObjective::new(loss).evaluate(&part, &more).unwrap_err();
        assert_eq!(refused.to_string(), "loss inputs do not fit together");
    }
}
