//! A sequence gets the same values and gradients whether it is packed with others or runs alone.

use proptest::collection::vec;
use proptest::prelude::*;
use rlt_decoder::{Adapter, Decoder};
use tch::Tensor;

use super::fixture::{Fixture, loss, max_error, packed, predictions};
use super::models::FAMILIES;

/// The tolerance between packed and alone in f32.
const TOLERANCE: f64 = 1e-5;

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn packed_equals_alone(
        family_idx in 0..FAMILIES.len(),
        sequences in vec(vec(2u32..97, 2..40), 1..6),
    ) {
        let fixture = Fixture::open(FAMILIES[family_idx], "expected.safetensors");
        let total: usize = sequences.iter().map(|sequence| sequence.len() - 1).sum();
        let weights = Tensor::arange(total as i64, (tch::Kind::Float, tch::Device::Cpu)).sin();
        let (together, alone) = (fixture.load(), fixture.load());
        let log_probs = run(&together, &sequences, &weights, total);
        let mut start = 0;
        for sequence in &sequences {
            let len = sequence.len() as i64 - 1;
            let own = run(&alone, std::slice::from_ref(sequence), &weights.narrow(0, start, len), total);
            prop_assert!(max_error(&own, &log_probs.narrow(0, start, len)) <= TOLERANCE);
            start += len;
        }
        for ((name, a), (_, b)) in together.trainable_parameters().iter().zip(alone.trainable_parameters()) {
            let error = max_error(&a.grad(), &b.grad());
            prop_assert!(error <= TOLERANCE, "{name}: {error:.2e}");
        }
    }
}

/// Returns log-probs of `sequences` after the backward pass of their share of one global mean.
fn run(decoder: &Decoder, sequences: &[Vec<u32>], weights: &Tensor, total: usize) -> Tensor {
    let input = packed(sequences);
    let logits = decoder.logits(&decoder.hidden_states(&input, Adapter::On), Adapter::On);
    let share = weights.size()[0] as f64 / total as f64;
    (loss(&logits, &input, weights) * share).backward();
    predictions(&logits.detach(), &input, 1.0).0
}
