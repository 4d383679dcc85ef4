//! The draw against its definition: kept sets against a plain sort, frequencies against probabilities.

use proptest::prelude::*;

use super::*;

fn softmax(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f64> = logits.iter().map(|&z| f64::from(z - largest).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|e| (e / sum) as f32).collect()
}

/// Returns the kept tokens by the definition in the module's documentation, by sorting all of them.
fn kept_by_sorting(probs: &[f32], params: &SamplingParams) -> Vec<usize> {
    let mut order: Vec<usize> = (0..probs.len()).collect();
    order.sort_by(|&a, &b| probs[b].total_cmp(&probs[a]).then(a.cmp(&b)));
    let most = probs[order[0]];
    if let Some(k) = params.top_k.filter(|&k| k < probs.len()) {
        let kth = probs[order[k - 1]];
        order.retain(|&idx| probs[idx] >= kth);
    }
    if params.top_p < 1.0 {
        let total: f64 = order.iter().map(|&idx| f64::from(probs[idx])).sum();
        let mut reached = 0.0;
        let crossing = order.iter().position(|&idx| {
            reached += f64::from(probs[idx]);
            reached >= params.top_p * total
        });
        order.truncate(crossing.map_or(order.len(), |at| at + 1));
    }
    let least = (f64::from(most) * params.min_p) as f32;
    order.retain(|&idx| probs[idx] >= least);
    order.sort_unstable();
    order
}

fn kept_by_cut(probs: &[f32], params: &SamplingParams) -> Vec<usize> {
    let cut = Cut::of(probs, params);
    (0..probs.len()).filter(|&idx| cut.keeps(idx, probs[idx])).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn truncation_keeps_what_a_full_sort_keeps(
        logits in prop::collection::vec(-12.0f32..6.0, 1..300),
        top_k in prop::option::of(1usize..40),
        top_p in prop::sample::select(vec![0.01, 0.3, 0.9, 0.99, 1.0]),
        min_p in prop::sample::select(vec![0.0, 0.05, 0.5, 1.0]),
        quantise in any::<bool>(),
    ) {
        // Rounded logits make exact ties, at the thresholds too.
        let round = |z: f32| if quantise { z.round() } else { z };
        let probs = softmax(&logits.iter().map(|&z| round(z)).collect::<Vec<_>>());
        let params = SamplingParams { top_k, top_p, min_p, ..SamplingParams::default() };
        let expected = kept_by_sorting(&probs, &params);
        let actual = kept_by_cut(&probs, &params);
        // Sums taken in different order may put a tied share on either side: at most one token apart.
        let differing = expected.iter().filter(|idx| !actual.contains(idx)).count()
            + actual.iter().filter(|idx| !expected.contains(idx)).count();
        prop_assert!(differing <= usize::from(quantise), "{:?} {:?}", expected, actual);
    }

    #[test]
    fn the_draw_inverts_the_cumulative_distribution(
        logits in prop::collection::vec(-8.0f32..4.0, 1..400), u in 0.0f64..1.0,
    ) {
        let probs = softmax(&logits);
        let total: f64 = probs.iter().map(|&p| f64::from(p)).sum();
        let drawn = sample(&probs, &SamplingParams::default(), u) as usize;
        let below: f64 = probs[..drawn].iter().map(|&p| f64::from(p)).sum();
        let upto = below + f64::from(probs[drawn]);
        // 400 additions in f64 differ by a few 1e-16 with their order.
        prop_assert!(below <= u * total + 1e-13 && u * total <= upto + 1e-13);
    }
}

/// Draws many samples and compares their frequencies with the renormalised kept probabilities.
fn assert_frequencies(logits: &[f32], params: &SamplingParams) {
    const NUM_DRAWS: u64 = 40_000;
    let scaled: Vec<f32> = logits.iter().map(|z| z / params.temperature as f32).collect();
    let probs = softmax(&scaled);
    let kept = kept_by_sorting(&probs, params);
    let total: f64 = kept.iter().map(|&idx| f64::from(probs[idx])).sum();
    let mut counts = vec![0u32; probs.len()];
    (0..NUM_DRAWS).for_each(|seed| counts[sample(&probs, params, draw(seed, 5)) as usize] += 1);
    let mut chi_square = 0.0;
    for (idx, &count) in counts.iter().enumerate() {
        if kept.contains(&idx) {
            let expected = f64::from(probs[idx]) / total * NUM_DRAWS as f64;
            chi_square += (f64::from(count) - expected).powi(2) / expected;
        } else {
            assert_eq!(count, 0, "token {idx} was cut off");
        }
    }
    // 5 standard deviations above the mean of the chi-square distribution; the draws are fixed.
    let freedom = kept.len() as f64 - 1.0;
    let bound = freedom + 5.0 * (2.0 * freedom).sqrt();
    assert!(chi_square < bound, "chi-square {chi_square} over {freedom} degrees of freedom");
}

#[test]
fn frequencies_are_the_truncated_softmax() {
    let logits: Vec<f32> = (0..40).map(|i| ((i * 17 + 5) % 40) as f32 / 10.0).collect();
    let with = |change: fn(&mut SamplingParams)| {
        let mut params = SamplingParams::default();
        change(&mut params);
        params
    };
    assert_frequencies(&logits, &with(|_| {}));
    assert_frequencies(&logits, &with(|p| p.temperature = 0.7));
    assert_frequencies(&logits, &with(|p| p.temperature = 1.5));
    assert_frequencies(&logits, &with(|p| p.top_k = Some(7)));
    assert_frequencies(&logits, &with(|p| p.top_p = 0.9));
    assert_frequencies(&logits, &with(|p| p.min_p = 0.2));
    let all = with(|p| (p.temperature, p.top_k, p.top_p, p.min_p) = (1.3, Some(20), 0.8, 0.3));
    assert_frequencies(&logits, &all);
}

#[test]
fn top_p_includes_the_token_that_crosses_the_threshold() {
    let probs = [0.25f32, 0.5, 0.125, 0.125];
    let params = |top_p| SamplingParams { top_p, ..SamplingParams::default() };
    assert_eq!(kept_by_cut(&probs, &params(0.4)), [1], "never empty");
    assert_eq!(kept_by_cut(&probs, &params(0.5)), [1], "reached exactly");
    assert_eq!(kept_by_cut(&probs, &params(0.51)), [0, 1]);
    assert_eq!(kept_by_cut(&probs, &params(0.8)), [0, 1, 2], "of equal tokens the lower id comes first");
}

#[test]
fn top_p_is_a_share_of_what_top_k_left() {
    let probs = [0.4f32, 0.3, 0.2, 0.1];
    let params = SamplingParams { top_k: Some(2), top_p: 0.6, ..SamplingParams::default() };
    assert_eq!(kept_by_cut(&probs, &params), [0, 1], "0.4 is only 0.57 of the 0.7 that are left");
}

#[test]
fn tokens_of_probability_zero_are_never_drawn() {
    let probs = [0.0f32, 0.5, 0.0, 0.5, 0.0];
    for u in [0.0, 0.25, 0.499_999, 0.5, 0.999_999_999_999] {
        assert!([1, 3].contains(&sample(&probs, &SamplingParams::default(), u)), "at {u}");
    }
}

#[test]
fn repetition_penalty_counts_a_token_once_and_respects_the_sign() {
    let mut logits = [2.0f32, -2.0, 1.0, -1.0];
    apply_repetition_penalty(&mut logits, &[0, 1, 0, 1, 99], 2.0);
    assert_eq!(logits, [1.0, -4.0, 1.0, -1.0]);
}

#[test]
fn argmax_takes_the_first_of_equal_logits() {
    assert_eq!(argmax(&[-3.0, 7.0, 1.0, 7.0]), 1);
}

#[test]
fn parameters_out_of_range_are_named() {
    type Spoil = fn(&mut SamplingParams);
    let broken: [(&str, Spoil); 7] = [
        ("temperature", |p| p.temperature = -0.1),
        ("temperature", |p| p.temperature = f64::NAN),
        ("top_k", |p| p.top_k = Some(0)),
        ("top_p", |p| p.top_p = 0.0),
        ("min_p", |p| p.min_p = 1.5),
        ("repetition_penalty", |p| p.repetition_penalty = 0.0),
        ("the length of a stop string", |p| p.stop = vec![String::new()]),
    ];
    for (name, spoil) in broken {
        let mut params = SamplingParams::default();
        assert_eq!(params.validate(), Ok(()));
        spoil(&mut params);
        assert_eq!(params.validate().unwrap_err().name, name);
    }
}
