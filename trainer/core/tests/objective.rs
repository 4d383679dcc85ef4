//! Proofs about the objective of an update: its gradient does not depend on how the batch is split, it is the
//! slope of the loss, and values and metrics agree with tables computed by hand.

#![expect(clippy::unwrap_used, reason = "a loss that cannot be computed is a failed test")]

use proptest::prelude::*;
use rlt_core::declaration::Family;
use rlt_core::kl::KlEstimator;
use rlt_core::loss::{
    Aggregation, Cispo, ClipCov, CovarianceInputs, Denominators, DppoKl, DppoTv, Dro, GeoMean, Gpg, Gspo,
    KlCov, KlTerm, LossInputs, LossMetrics, LossOutputs, LossScope, Objective, PolicyLoss, PositiveTerm,
    Sapo, Vanilla,
};
use rlt_core::rows::Rows;

const CLIP_LOW: f64 = 0.2;
const CLIP_HIGH: f64 = 0.28;

const CLIP_COV: ClipCov =
    ClipCov { clip_low: CLIP_LOW, clip_high: CLIP_HIGH, ratio: 0.2, lower: 1.0, upper: 5.0 };

const LOSSES: [PolicyLoss; 11] = [
    PolicyLoss::Vanilla(Vanilla { clip_low: CLIP_LOW, clip_high: CLIP_HIGH, dual_clip: Some(3.0) }),
    PolicyLoss::DppoTv(DppoTv { clip_low: CLIP_LOW, clip_high: CLIP_HIGH, ratio_cap: 3.0 }),
    PolicyLoss::DppoKl(DppoKl { clip_low: CLIP_LOW, clip_high: CLIP_HIGH, ratio_cap: 3.0 }),
    PolicyLoss::Gspo(Gspo { clip_low: CLIP_LOW, clip_high: CLIP_HIGH }),
    PolicyLoss::Sapo(Sapo { tau_positive: 1.0, tau_negative: 1.05 }),
    PolicyLoss::Gpg(Gpg {}),
    PolicyLoss::ClipCov(ClipCov { lower: 0.0, ..CLIP_COV }),
    PolicyLoss::KlCov(KlCov { ratio: 0.3, coefficient: 0.5 }),
    PolicyLoss::GeoMean(GeoMean { clip_low: CLIP_LOW, clip_high: CLIP_HIGH }),
    PolicyLoss::Cispo(Cispo { clip_low: CLIP_LOW, clip_high: CLIP_HIGH }),
    PolicyLoss::Dro(Dro { beta: 0.1 }),
];

const AGGREGATIONS: [Aggregation; 5] = [
    Aggregation::TokenMean,
    Aggregation::TokenSum,
    Aggregation::SequenceMeanTokenSum,
    Aggregation::SequenceMeanTokenSumNorm { normalization_tokens: 64 },
    Aggregation::SequenceMeanTokenMean,
];

/// A batch of sequences with everything that an objective may read.
#[derive(Clone, Debug)]
struct Batch {
    masks: Vec<Vec<bool>>,
    logprobs: Vec<Vec<f64>>,
    old_logprobs: Vec<Vec<f64>>,
    ref_logprobs: Vec<Vec<f64>>,
    entropies: Vec<Vec<f64>>,
    weights: Vec<Vec<f64>>,
    advantages: Vec<f64>,
    selected: Vec<Vec<bool>>,
    positive_weights: Vec<Vec<f64>>,
}

impl Batch {
    fn part(&self, sequences: &[usize]) -> Self {
        fn pick<T: Clone>(all: &[T], at: &[usize]) -> Vec<T> {
            at.iter().map(|at| all[*at].clone()).collect()
        }
        Self {
            masks: pick(&self.masks, sequences),
            logprobs: pick(&self.logprobs, sequences),
            old_logprobs: pick(&self.old_logprobs, sequences),
            ref_logprobs: pick(&self.ref_logprobs, sequences),
            entropies: pick(&self.entropies, sequences),
            weights: pick(&self.weights, sequences),
            advantages: pick(&self.advantages, sequences),
            selected: pick(&self.selected, sequences),
            positive_weights: pick(&self.positive_weights, sequences),
        }
    }

    fn rows(&self) -> Rows {
        Rows::from_masks(self.masks.iter().map(Vec::as_slice))
    }

    /// Loss of the batch (a part of `whole`), evaluated in chunks of at most `chunk_len` tokens.
    fn evaluate(&self, objective: &Objective, whole: &Denominators, chunk_len: usize) -> LossOutputs {
        let rows = self.rows();
        let advantages = rows.broadcast(&self.advantages);
        let (logprobs, entropies) = (self.logprobs.concat(), self.entropies.concat());
        let (old_logprobs, ref_logprobs) = (self.old_logprobs.concat(), self.ref_logprobs.concat());
        let (weights, selected) = (self.weights.concat(), self.selected.concat());
        let positive_weights = self.positive_weights.concat();
        let inputs = LossInputs {
            old_logprobs: Some(&old_logprobs),
            ref_logprobs: Some(&ref_logprobs),
            importance_weights: Some(&weights),
            actor_logprobs: Some(&logprobs),
            selected: Some(&selected),
            positive_weights: Some(&positive_weights),
            ..LossInputs::new(&rows, &advantages)
        };
        let prepared = objective.prepare(inputs, whole).unwrap();
        let mut total = LossOutputs::default();
        for start in (0..rows.num_tokens()).step_by(chunk_len) {
            let chunk = start..(start + chunk_len).min(rows.num_tokens());
            let got = prepared.evaluate(chunk.clone(), &logprobs[chunk.clone()], &entropies[chunk]).unwrap();
            total.loss += got.loss;
            total.dlogprobs.extend(got.dlogprobs);
            total.dentropies.extend(got.dentropies);
            total.metrics += got.metrics;
        }
        total
    }
}

/// Log-prob, its distance from the old and from the reference policy, entropy, weight, flags.
type Token = (f64, f64, f64, f64, f64, u8);

fn batches() -> impl Strategy<Value = Batch> {
    let token = (-3.0..-0.01_f64, -0.6..0.6_f64, -1.5..1.5_f64, 0.0..3.0_f64, 0.0..2.0_f64, 0_u8..8);
    let sequence = (prop::collection::vec(token, 1..12), -2.0..2.0_f64);
    prop::collection::vec(sequence, 1..9).prop_map(|sequences| {
        let each = |f: fn(&Token) -> f64| -> Vec<Vec<f64>> {
            sequences.iter().map(|(tokens, _)| tokens.iter().map(f).collect()).collect()
        };
        let flags = |f: fn(u8) -> bool| -> Vec<Vec<bool>> {
            sequences.iter().map(|(tokens, _)| tokens.iter().map(|token| f(token.5)).collect()).collect()
        };
        Batch {
            masks: flags(|flag| flag > 1),
            selected: flags(|flag| flag == 7),
            logprobs: each(|token| token.0),
            old_logprobs: each(|token| token.0 - token.1),
            ref_logprobs: each(|token| token.0 - token.2),
            entropies: each(|token| token.3),
            weights: each(|token| token.4),
            positive_weights: each(|token| 0.1 * (token.4 - 1.0).max(0.0)),
            advantages: sequences.iter().map(|(_, advantage)| *advantage).collect(),
        }
    })
}

fn objective(policy: PolicyLoss, aggregation: Aggregation) -> Objective {
    let kl = Some(KlTerm { estimator: KlEstimator::K3, coefficient: 0.05 });
    let positive = Some(PositiveTerm { coefficient: 0.1, threshold: 0.0 });
    Objective { policy, aggregation, kl, entropy_coefficient: 0.01, positive }
}

fn close(got: f64, expected: f64) -> bool {
    (got - expected).abs() <= 1e-12 * expected.abs().max(1.0)
}

proptest! {
    /// Micro-batches of any composition in any order, evaluated in chunks of any length.
    #[test]
    fn any_split_of_a_batch_gives_the_same_gradient(
        batch in batches(),
        assignment in prop::collection::vec(0_usize..3, 9),
        chunk_len in 1_usize..20,
        policy in prop::sample::select(LOSSES.to_vec()),
        aggregation in prop::sample::select(AGGREGATIONS.to_vec()),
    ) {
        let objective = objective(policy, aggregation);
        let whole = Denominators::of(&batch.rows());
        let expected = batch.evaluate(&objective, &whole, usize::MAX >> 1);
        let rows = batch.rows();
        let mut loss = 0.0;
        let mut metrics = LossMetrics::default();
        for micro_batch in 0..3 {
            let sequences: Vec<usize> =
                (0..rows.num_rows()).filter(|sequence| assignment[*sequence] == micro_batch).collect();
            let got = batch.part(&sequences).evaluate(&objective, &whole, chunk_len);
            loss += got.loss;
            metrics += got.metrics;
            let tokens = sequences.iter().flat_map(|sequence| rows.range(*sequence));
            for (at, token) in tokens.enumerate() {
                prop_assert!(close(got.dlogprobs[at], expected.dlogprobs[token]), "{policy:?}");
                prop_assert!(close(got.dentropies[at], expected.dentropies[token]));
            }
        }
        prop_assert!(close(loss, expected.loss), "{policy:?} {aggregation:?}: {loss} {}", expected.loss);
        for ((name, got), (_, expected)) in metrics.values().into_iter().zip(expected.metrics.values()) {
            prop_assert!(close(got, expected), "{name}: {got} instead of {expected}");
        }
    }

    /// Central differences of the whole loss. Losses that stop the gradient through their ratio on purpose
    /// (CISPO, DPPO) have no such slope; GSPO has, because all tokens of a sequence share its advantage.
    #[test]
    fn the_gradient_is_the_slope_of_the_loss(
        batch in batches(),
        policy in prop::sample::select(LOSSES.to_vec()),
        aggregation in prop::sample::select(AGGREGATIONS.to_vec()),
    ) {
        const STEP: f64 = 1e-6;
        let stops = matches!(
            policy,
            PolicyLoss::Cispo(_) | PolicyLoss::DppoTv(_) | PolicyLoss::DppoKl(_)
        );
        prop_assume!(!stops);
        let mut batch = batch;
        if matches!(policy, PolicyLoss::Gspo(_)) {
            batch.weights.iter_mut().flatten().for_each(|weight| *weight = 1.0);
        }
        let objective = objective(policy, aggregation);
        let whole = Denominators::of(&batch.rows());
        let got = batch.evaluate(&objective, &whole, 7);
        let rows = batch.rows();
        for (sequence, range) in rows.ranges().enumerate() {
            for token in 0..range.len() {
                let at = |step: f64| {
                    let mut moved = batch.clone();
                    moved.logprobs[sequence][token] += step;
                    moved.evaluate(&objective, &whole, 7).loss
                };
                let (up, here, down) = (at(STEP), got.loss, at(-STEP));
                let kink = ((up - here) - (here - down)).abs() > 1e-8;
                let slope = (up - down) / (2.0 * STEP);
                let error = (got.dlogprobs[range.start + token] - slope).abs();
                prop_assert!(kink || error < 1e-6, "{policy:?} {aggregation:?} is off by {error}");
            }
        }
    }

    #[test]
    fn without_old_logprobs_the_old_policy_is_the_actor(
        batch in batches(), policy in prop::sample::select(LOSSES.to_vec()),
    ) {
        let objective = Objective { kl: None, positive: None, ..objective(policy, Aggregation::TokenMean) };
        let rows = batch.rows();
        let advantages = rows.broadcast(&batch.advantages);
        let (logprobs, entropies) = (batch.logprobs.concat(), batch.entropies.concat());
        let selected = batch.selected.concat();
        let implied = LossInputs { selected: Some(&selected), ..LossInputs::new(&rows, &advantages) };
        let explicit =
            LossInputs { old_logprobs: Some(&logprobs), actor_logprobs: Some(&logprobs), ..implied };
        let evaluate = |inputs| {
            let prepared = objective.prepare(inputs, &Denominators::of(&rows)).unwrap();
            prepared.evaluate(0..rows.num_tokens(), &logprobs, &entropies).unwrap()
        };
        prop_assert_eq!(evaluate(implied), evaluate(explicit));
    }
}

/// Two sequences of three and two tokens; advantages 1 and -1.
fn table() -> Batch {
    Batch {
        masks: vec![vec![true; 3], vec![true, true, false]],
        logprobs: vec![vec![-0.5, -1.0, -1.6], vec![-0.7, -0.5, -1.0]],
        old_logprobs: vec![vec![-1.0, -1.0, -1.0], vec![-2.0, -0.5, -1.0]],
        ref_logprobs: vec![vec![-1.0, -1.0, -1.0], vec![-2.0, -0.5, -1.0]],
        entropies: vec![vec![1.0, 2.0, 3.0], vec![4.0, 5.0, 6.0]],
        weights: vec![vec![1.0; 3]; 2],
        advantages: vec![1.0, -1.0],
        selected: vec![vec![false; 3]; 2],
        positive_weights: vec![vec![0.0; 3]; 2],
    }
}

fn evaluate_table(policy: PolicyLoss, kl: Option<KlTerm>, entropy_coefficient: f64) -> LossOutputs {
    let mut batch = table();
    let objective =
        Objective { policy, aggregation: Aggregation::TokenMean, kl, entropy_coefficient, positive: None };
    let rows = batch.rows();
    let advantages = rows.broadcast(&batch.advantages);
    let (logprobs, old_logprobs) = (batch.logprobs.concat(), batch.old_logprobs.concat());
    if policy.scope() == LossScope::Batch {
        let inputs = CovarianceInputs {
            rows: &rows,
            advantages: &advantages,
            logprobs: &logprobs,
            old_logprobs: Some(&old_logprobs),
            seed: 1,
        };
        let selected = policy.select_tokens(&inputs).unwrap();
        batch.selected = selected.chunks(3).map(<[bool]>::to_vec).collect();
    }
    batch.evaluate(&objective, &Denominators::of(&rows), 4)
}

#[test]
fn losses_and_gradients_match_the_hand_computed_table() {
    let clip_cov = ClipCov { ratio: 2e-4, ..CLIP_COV }.into();
    let kl_cov = KlCov { ratio: 0.5, coefficient: 0.1 }.into();
    let expected: [(PolicyLoss, f64, [f64; 5]); 11] = [
        (LOSSES[0], 0.234238, [0.0, -0.2, -0.109762, 0.0, 0.2]),
        (LOSSES[1], 0.020492, [-0.329744, -0.2, -0.109762, 0.6, 0.2]),
        (LOSSES[2], 0.020492, [-0.329744, -0.2, -0.109762, 0.6, 0.2]),
        (LOSSES[3], 0.474162, [-0.161203, -0.161203, -0.161203, 0.478885, 0.478885]),
        (LOSSES[4], 0.343585, [-0.24779, -0.166667, -0.086967, 0.197797, 0.25]),
        (LOSSES[5], 0.38, [-0.2, -0.2, -0.2, 0.2, 0.2]),
        (clip_cov, 0.368097, [0.0, -0.2, -0.109762, 0.733859, 0.2]),
        (kl_cov, 0.304353, [-0.309744, -0.2, -0.109762, 0.733859, 0.2]),
        (LOSSES[8], 0.508358, [0.0, -0.149804, -0.149804, 0.478885, 0.478885]),
        (LOSSES[9], 0.3048, [-0.256, -0.2, -0.16, 0.256, 0.2]),
        (LOSSES[10], 0.403, [-0.19, -0.2, -0.212, 0.226, 0.2]),
    ];
    for (policy, loss, gradient) in expected {
        let got = evaluate_table(policy, None, 0.0);
        let name = policy.kind().name();
        assert!((got.loss - loss).abs() < 1e-6, "{name}: {} instead of {loss}", got.loss);
        for (token, expected) in gradient.into_iter().chain([0.0]).enumerate() {
            let got = got.dlogprobs[token];
            assert!((got - expected).abs() < 1e-6, "{name}, token {token}: {got} instead of {expected}");
        }
    }
}

#[test]
fn metrics_match_hand_computed_values() {
    let kl = KlTerm { estimator: KlEstimator::K2, coefficient: 0.1 };
    let got = evaluate_table(LOSSES[0], Some(kl), 0.01);
    let expected = [
        ("actor/pg_loss", 0.234238),
        ("actor/kl_loss", (0.125 + 0.0 + 0.18 + 0.845 + 0.0) / 5.0),
        ("actor/entropy", (1.0 + 2.0 + 3.0 + 4.0 + 5.0) / 5.0),
        ("actor/positive_loss", 0.0),
        ("actor/ppo_kl", -(0.5 - 0.6 + 1.3) / 5.0),
        ("actor/pg_clipfrac", 0.2),
        ("actor/pg_clipfrac_lower", 0.2),
    ];
    for ((name, got), (expected_name, expected)) in got.metrics.values().into_iter().zip(expected) {
        assert_eq!(name, expected_name);
        assert!((got - expected).abs() < 1e-6, "{name}: {got} instead of {expected}");
    }
    let total = 0.234238 + 0.1 * 0.23 - 0.01 * 3.0;
    assert!((got.loss - total).abs() < 1e-6);
    assert!(got.dentropies.iter().take(5).all(|slope| (slope + 0.002).abs() < 1e-15));
    assert_eq!(got.dentropies[5], 0.0);
}

#[test]
fn a_loss_fails_without_an_input_that_it_reads() {
    let rows = Rows::unmasked([2]);
    let advantages = [1.0, 1.0];
    let refuses = |objective: Objective, inputs: LossInputs<'_>| {
        objective.prepare(inputs, &Denominators::of(&rows)).unwrap_err().to_string()
    };
    let inputs = LossInputs::new(&rows, &advantages);
    let plain = |policy| Objective { kl: None, positive: None, ..objective(policy, Aggregation::TokenMean) };
    let old = LossInputs { old_logprobs: Some(&[0.0, 0.0]), ..inputs };
    assert_eq!(refuses(plain(LOSSES[3]), old), "loss Gspo needs actor_logprobs, which is missing");
    assert_eq!(refuses(plain(LOSSES[6]), inputs), "loss ClipCov needs selected, which is missing");
    assert_eq!(
        refuses(objective(LOSSES[0], Aggregation::TokenMean), inputs),
        "loss kl needs ref_logprobs, which is missing"
    );
    let without_kl = Objective { kl: None, ..objective(LOSSES[0], Aggregation::TokenMean) };
    assert_eq!(refuses(without_kl, inputs), "loss positive needs positive_weights, which is missing");
    let short = LossInputs { old_logprobs: Some(&[0.0]), ..inputs };
    assert_eq!(refuses(plain(LOSSES[0]), short), "loss inputs do not fit together");
}

#[test]
fn chunks_take_single_precision_and_refuse_a_wrong_length() {
    let rows = Rows::unmasked([3]);
    let objective = Objective { kl: None, positive: None, ..objective(LOSSES[5], Aggregation::TokenSum) };
    let advantages = [1.0, 2.0, 3.0];
    let prepared = objective.prepare(LossInputs::new(&rows, &advantages), &Denominators::of(&rows)).unwrap();
    let got = prepared.evaluate(1..3, &[-1.0_f32, -2.0], &[0.0, 0.0]).unwrap();
    assert_eq!((got.loss, got.dlogprobs), (8.0, vec![-2.0, -3.0]));
    assert!(prepared.evaluate(1..3, &[-1.0_f32], &[0.0]).is_err());
    assert!(prepared.evaluate(2..4, &[-1.0_f32, 0.0], &[0.0, 0.0]).is_err());
}

/// VAPO, section 4.3: the mean over the tokens of completions with a reward above the threshold.
#[test]
fn positive_examples_become_likelier_by_the_mean_over_their_tokens() {
    let rows = Rows::from_masks([&[true, true][..], &[true, false], &[true, true]]);
    let term = Some(PositiveTerm { coefficient: 0.3, threshold: 0.5 });
    let plain = Objective { kl: None, positive: None, ..objective(LOSSES[5], Aggregation::TokenMean) };
    let pulled = Objective { positive: term, ..plain };
    // The third reward is not above the threshold; the second completion has one token that counts.
    let weights = pulled.positive_weights(&rows, &[1.0, 2.0, 0.5]).unwrap().unwrap();
    assert!(weights.iter().zip([0.1, 0.1, 0.1, 0.0, 0.0, 0.0]).all(|(got, expected)| close(*got, expected)));
    assert_eq!(plain.positive_weights(&rows, &[1.0, 2.0, 0.5]).unwrap(), None);
    assert!(pulled.positive_weights(&rows, &[1.0]).is_err());
    let (advantages, entropies) = ([0.0; 6], [0.0; 6]);
    let inputs = LossInputs { positive_weights: Some(&weights), ..LossInputs::new(&rows, &advantages) };
    let logprobs = [-1.0, -2.0, -4.0, f64::NAN, -8.0, -16.0];
    let got = pulled.prepare(inputs, &Denominators::of(&rows)).unwrap();
    let got = got.evaluate(0..6, &logprobs, &entropies).unwrap();
    assert!(close(got.loss, 0.3 * 7.0 / 3.0) && close(got.metrics.positive_loss, got.loss));
    assert_eq!(got.dlogprobs, weights.iter().map(|weight| 0.0 - weight).collect::<Vec<_>>());
}
