//! Compares pairs that share one prompt with TRL's trainers on the same pairs and models, where each sequence
//! has its own copy of the prompt: losses, metrics, gradients.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use rlt_api::resolved::{PairLosses, PairPreference, WeightedLoss};
use rlt_core::batch::Batch;
use rlt_core::declaration::Parameters;
use rlt_core::kto::{Kto, KtoInputs, ReferencePoint};
use rlt_core::loss::{Denominators, LossInputs};
use rlt_core::preference::{
    Divergence, PreferenceDenominators, PreferenceInputs, PreferenceLoss, PreferenceOutputs,
};
use rlt_core::rows::Rows;
use rlt_decoder::{Adapter, Decoder, LoadOptions};
use rlt_layout::AxisPlace;
use rlt_trainer::roles::actor::Actor;
use rlt_trainer::roles::learner::MicroBatch;
use rlt_trainer::roles::objective::{preference_objective, supervised_objective};
use serde_json::{Value, json};

use crate::gradients::{actor_of, assert_close, assert_gradients, fixtures, numbers, tokens};

/// Tokens of a micro-batch: all pairs in one, and so few that pairs are split.
const BUDGETS: [usize; 2] = [4096, 12];

fn batch(fixture: &Value) -> Batch {
    let example = |pair: &Value| {
        let [prompt, chosen, rejected] =
            ["prompt_ids", "chosen_ids", "rejected_ids"].map(|name| tokens(&pair[name]));
        rlt_core::fixtures::preference(&prompt, &[&chosen, &rejected])
    };
    let examples: Vec<_> = fixture["pairs"].as_array().unwrap().iter().map(example).collect();
    let reference = fixture["ref_logprobs"].as_array().unwrap().iter();
    let reference = reference.flat_map(|pair| pair.as_array().unwrap()).flat_map(numbers).collect();
    Batch { ref_logprobs: Some(reference), ..Batch::from_preferences(&examples) }
}

fn actor(model: &str) -> Actor {
    let folder = fixtures().join("models").join(model);
    let decoder = Decoder::load(&folder, &LoadOptions { trainable: true, ..LoadOptions::default() }).unwrap();
    actor_of(decoder)
}

/// A loss with its parameters.
fn loss(section: &Value) -> PreferenceLoss {
    let known = ["beta", "labelSmoothing", "simpoGamma", "discopopTau", "alphaPoAlpha"];
    let given = known.iter().filter(|name| !section[**name].is_null());
    let parameters: Value = given.map(|name| ((*name).to_owned(), section[*name].clone())).collect();
    let parameters: Parameters<_> = serde_json::from_value(parameters).unwrap();
    PreferenceLoss::resolve(serde_json::from_value(section["loss"].clone()).unwrap(), &parameters)
}

/// The section `preference` of a manifest.
fn preference(section: &Value) -> PairPreference {
    let several = section["losses"].as_array().map(|losses| {
        let weighted =
            |one: &Value| WeightedLoss { loss: loss(one), weight: one["weight"].as_f64().unwrap() };
        PairLosses::Several { losses: losses.iter().map(weighted).collect() }
    });
    PairPreference {
        losses: several.unwrap_or_else(|| PairLosses::One(loss(section))),
        divergence: match section["divergence"].as_str() {
            Some("ForwardKl") => Divergence::ForwardKl,
            Some("JensenShannon") => Divergence::JensenShannon,
            Some("Alpha") => Divergence::Alpha { alpha: section["divergenceAlpha"].as_f64().unwrap() },
            _ => Divergence::ReverseKl,
        },
        length_desensitization: section["lengthDesensitization"].as_f64(),
        weigh_by_policy: section["weighByPolicy"] == true,
        sft_weight: section["sftWeight"].as_f64().unwrap_or(0.0),
    }
}

/// Computes loss and derivatives, then the gradients of all parameters.
fn evaluate(
    actor: &mut Actor,
    batch: &Batch,
    preference: &PairPreference,
    max_tokens: usize,
) -> PreferenceOutputs {
    let objective = preference_objective(preference);
    let logprobs = actor.score(batch, Adapter::On, max_tokens).unwrap().logprobs;
    let squares = objective.weigh_by_policy.then(|| actor.sum_pi_squared(batch, max_tokens).unwrap());
    let squares: Option<Vec<f64>> = squares.map(|squares| squares.into_iter().map(f64::ln).collect());
    let inputs = PreferenceInputs {
        rows: &batch.rows,
        logprobs: &logprobs,
        ref_logprobs: batch.ref_logprobs.as_deref(),
        log_sum_squares: squares.as_deref(),
        mean_log_ratio: 0.0,
    };
    let outputs = objective.evaluate(&inputs, &PreferenceDenominators::of(&batch.rows)).unwrap();
    descend(actor, batch, &outputs.dlogprobs, max_tokens);
    outputs
}

/// Computes the gradients of all parameters from the derivatives of the loss with respect to each log-prob.
fn descend(actor: &mut Actor, batch: &Batch, dlogprobs: &[f64], max_tokens: usize) {
    let num_tokens = batch.rows.num_tokens() as f64;
    let advantages: Vec<f64> = dlogprobs.iter().map(|slope| -slope * num_tokens).collect();
    let row_idxs: Vec<usize> = (0..batch.rows.num_rows()).collect();
    for micro_batch in
        MicroBatch::split(batch, &row_idxs, actor.learner.decoder(), max_tokens, AxisPlace::ALONE).unwrap()
    {
        let advantages = batch.gather(&micro_batch.row_idxs, &advantages);
        let inputs = LossInputs::new(&micro_batch.rows, &advantages);
        let loss = supervised_objective().prepare(inputs, &Denominators::of(&batch.rows)).unwrap();
        actor.accumulate(&micro_batch, &loss).unwrap();
    }
}

fn fixture() -> Value {
    let text = std::fs::read_to_string(fixtures().join("preference/cases.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The section `preference` of a manifest of KTO.
fn kto(section: &Value) -> Kto {
    let number = |name: &str| section[name].as_f64();
    Kto {
        beta: number("beta").unwrap(),
        desirable_weight: number("desirableWeight").unwrap_or(1.0),
        undesirable_weight: number("undesirableWeight").unwrap_or(1.0),
        reference_point: section["referencePoint"] != false,
    }
}

#[test]
fn losses_and_gradients_of_labels_are_trls_however_they_are_split() {
    let fixture = fixture();
    let batch = batch(&fixture);
    let one = Rows::from_masks([&[true][..]]);
    let point = ReferencePoint::of(&one, &[fixture["z"].as_f64().unwrap()], &[0.0]).unwrap();
    let labels = [true, false].repeat(batch.rows.num_rows() / 2);
    let cases = fixture["of_labels"].as_array().unwrap();
    assert_eq!(cases.len(), 6);
    for case in cases {
        for max_tokens in BUDGETS {
            let name = format!("{} {} in {max_tokens}", case["model"], case["preference"]);
            let mut actor = actor(case["model"].as_str().unwrap());
            let logprobs = actor.score(&batch, Adapter::On, max_tokens).unwrap().logprobs;
            let ref_logprobs = batch.ref_logprobs.as_deref().unwrap();
            let inputs = KtoInputs { rows: &batch.rows, logprobs: &logprobs, ref_logprobs, labels: &labels };
            let got = kto(&case["preference"]).evaluate(&inputs, &point, labels.len()).unwrap();
            descend(&mut actor, &batch, &got.dlogprobs, max_tokens);
            let expected = case["value"].as_f64().unwrap();
            assert_close(&name, got.loss, expected, expected.abs().max(1.0));
            assert_gradients(&name, actor.learner.decoder(), case);
        }
    }
}

#[test]
fn losses_and_gradients_of_pairs_are_trls_however_they_are_split() {
    let fixture = fixture();
    let batch = batch(&fixture);
    let cases = fixture["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 54);
    for case in cases {
        for max_tokens in BUDGETS {
            let name = format!("{} {} in {max_tokens}", case["model"], case["preference"]);
            let mut actor = actor(case["model"].as_str().unwrap());
            let got = evaluate(&mut actor, &batch, &preference(&case["preference"]), max_tokens);
            let expected = case["value"].as_f64().unwrap();
            assert_close(&name, got.loss, expected, expected.abs().max(1.0));
            let metrics: Value =
                json!(got.metrics.values().into_iter().collect::<std::collections::BTreeMap<_, _>>());
            for (metric, value) in case["metrics"].as_object().unwrap() {
                let value = value.as_f64().unwrap();
                assert_close(
                    &format!("{name}, {metric}"),
                    metrics[metric].as_f64().unwrap(),
                    value,
                    value.abs().max(1.0),
                );
            }
            assert_gradients(&name, actor.learner.decoder(), case);
        }
    }
}
