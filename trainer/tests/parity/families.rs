//! Every family equals transformers: values, gradients, one optimizer step, greedy continuations.

use rlt_decoder::{Adapter, Decoder, PackedInput};
use rlt_trainer::commands::score::{SequenceScores, score};
use rlt_trainer::roles::optim::{AdamW, AdamWOptions};
use tch::{Device, Tensor};

use super::fixture::{Fixture, TOLERANCE, loss, max_error, packed, predictions};
use super::models::FAMILIES;

/// Largest errors of one family, by compared quantity.
struct Errors(Vec<(&'static str, f64)>);

impl Errors {
    fn check(&mut self, what: &'static str, error: f64) {
        assert!(error <= TOLERANCE, "{what}: error {error:.2e} above {TOLERANCE:.0e}");
        self.0.push((what, error));
    }
}

#[test]
fn every_family_computes_what_transformers_computes() {
    for family in FAMILIES {
        println!("{family}");
        let fixture = Fixture::open(family, "expected.safetensors");
        let mut errors = Errors(Vec::new());
        check_values(&fixture, &mut errors);
        check_scores(&fixture, &mut errors);
        check_gradients_and_step(&fixture, &mut errors);
        check_greedy(&fixture);
        let shown: Vec<String> = errors.0.iter().map(|(what, error)| format!("{what} {error:.1e}")).collect();
        println!("{family}: {}", shown.join(", "));
    }
}

fn check_values(fixture: &Fixture, errors: &mut Errors) {
    let input = packed(&fixture.sequences());
    let decoder = fixture.load();
    let logits = tch::no_grad(|| decoder.logits(&decoder.hidden_states(&input, Adapter::On), Adapter::On));
    errors.check("logits", max_error(&logits, fixture.expected("logits")));
    for temperature in ["0.7", "1.0"] {
        let (log_probs, entropies) = predictions(&logits, &input, temperature.parse().unwrap());
        errors
            .check("log-probs", max_error(&log_probs, fixture.expected(&format!("logprobs.{temperature}"))));
        errors
            .check("entropies", max_error(&entropies, fixture.expected(&format!("entropies.{temperature}"))));
    }
}

/// Compares scores as `rlt-trainer score` computes them: packed under a small budget, the head in chunks.
fn check_scores(fixture: &Fixture, errors: &mut Errors) {
    let decoder = fixture.load();
    for temperature in ["0.7", "1.0"] {
        let scores = score(&decoder, &fixture.sequences(), temperature.parse().unwrap(), 24).unwrap();
        let flat = |pick: fn(&SequenceScores) -> &Vec<f32>| {
            Tensor::from_slice(&scores.iter().flat_map(pick).copied().collect::<Vec<_>>())
        };
        let (logprobs, entropies) = (flat(|scores| &scores.logprobs), flat(|scores| &scores.entropies));
        errors.check("scored", max_error(&logprobs, fixture.expected(&format!("logprobs.{temperature}"))));
        errors.check("scored", max_error(&entropies, fixture.expected(&format!("entropies.{temperature}"))));
    }
}

fn check_gradients_and_step(fixture: &Fixture, errors: &mut Errors) {
    let input = packed(&fixture.sequences());
    let decoder = fixture.load();
    let logits = decoder.logits(&decoder.hidden_states(&input, Adapter::On), Adapter::On);
    let loss = loss(&logits, &input, fixture.expected("loss_weights"));
    errors.check("loss", max_error(&loss, fixture.expected("loss")));
    loss.backward();
    // A parameter that is not trained has no gradient: the bias by which DeepSeek-V3 chooses experts.
    let parameters = decoder.trainable_parameters();
    assert_eq!(fixture.with_prefix("grad.").count(), parameters.len());
    let gradient_error = |(name, parameter): &(String, Tensor)| {
        max_error(&parameter.grad(), fixture.expected(&format!("grad.{name}")))
    };
    errors.check("gradients", parameters.iter().map(gradient_error).fold(0.0, f64::max));

    let options = AdamWOptions { betas: (0.9, 0.99), epsilon: 1e-3, weight_decay: 0.1, lora_b_ratio: 1.0 };
    let mut optimizer = AdamW::new(decoder.trainable_parameters(), options).unwrap();
    optimizer.step(0.01, None).unwrap();
    let step_error = |(name, parameter): &(String, Tensor)| {
        max_error(&parameter.detach(), fixture.expected(&format!("adamw.{name}")))
    };
    errors.check("AdamW step", parameters.iter().map(step_error).fold(0.0, f64::max));
}

fn check_greedy(fixture: &Fixture) {
    let expected = Vec::<i64>::try_from(fixture.expected("greedy")).unwrap();
    let decoder = fixture.load();
    let mut tokens = fixture.sequences()[0][..6].to_vec();
    for _ in &expected {
        let next = tch::no_grad(|| next_greedy(&decoder, &tokens));
        tokens.push(next);
    }
    assert_eq!(tokens[6..].iter().map(|token| i64::from(*token)).collect::<Vec<_>>(), expected);
}

fn next_greedy(decoder: &Decoder, tokens: &[u32]) -> u32 {
    let input = PackedInput::new(&[tokens], Device::Cpu);
    let hidden = decoder.hidden_states(&input, Adapter::On);
    let last = hidden.narrow(0, tokens.len() as i64 - 1, 1);
    decoder.logits(&last, Adapter::On).argmax(-1, false).int64_value(&[0]) as u32
}
