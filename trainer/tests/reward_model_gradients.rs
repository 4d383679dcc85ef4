//! Compares reward models with those of transformers and TRL: scores, losses and gradients of pairs that
//! share one prompt, while each sequence of the other libraries has its own copy of the prompt.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use rlt_core::batch::Batch;
use rlt_core::fixtures::prompt;
use rlt_core::labelled::{JudgedSteps, ScoredPairs};
use rlt_core::preferences::PreferenceExample;
use rlt_core::types::TokenId;
use rlt_decoder::{Decoder, LoadOptions, Weights};
use rlt_layout::AxisPlace;
use rlt_models::OutputHead;
use rlt_trainer::roles::actor::Actor;
use rlt_trainer::roles::learner::MicroBatch;
use serde_json::Value;

use crate::gradients::{actor_of, assert_close, assert_gradients, fixtures, numbers, tokens};

/// Tokens of a micro-batch: all pairs in one, and so few that pairs are split.
const BUDGETS: [usize; 2] = [4096, 13];

/// A model of the fixtures with a classifier's head, in place of the actor.
fn classifier(model: &str, head: OutputHead) -> Actor {
    let weights = Weights::open_with_head(&fixtures().join("models").join(model), head, 0).unwrap();
    let options = LoadOptions { trainable: true, ..LoadOptions::default() };
    let decoder = Decoder::from_weights(&weights, &options).unwrap();
    actor_of(decoder)
}

/// Adds the gradient of a loss from its derivatives with respect to the scores that are read.
fn accumulate(actor: &Actor, batch: &Batch, derivatives: &[Vec<f64>], max_tokens: usize) {
    let derivatives: Vec<_> = derivatives.iter().map(|read| batch.at_read_positions(read)).collect();
    let row_idxs: Vec<usize> = (0..batch.rows.num_rows()).collect();
    for micro_batch in
        MicroBatch::split(batch, &row_idxs, actor.learner.decoder(), max_tokens, AxisPlace::ALONE).unwrap()
    {
        let own: Vec<_> = derivatives.iter().map(|all| batch.gather(&micro_batch.row_idxs, all)).collect();
        actor.accumulate_labels(&micro_batch, &own).unwrap();
    }
}

#[test]
fn scores_losses_and_gradients_of_pairs_are_trls_however_they_are_split() {
    let text = std::fs::read_to_string(fixtures().join("preference/reward_cases.json")).unwrap();
    let fixture: Value = serde_json::from_str(&text).unwrap();
    let cases = fixture["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 8);
    for case in cases {
        let example = |(pair, margin): (&Value, f64)| {
            Arc::new(PreferenceExample {
                prompt: prompt(&tokens(&pair["prompt_ids"])),
                completions: ["chosen_ids", "rejected_ids"].map(|side| tokens(&pair[side])).to_vec(),
                labels: vec![true, false],
                margin,
                step_ends: Vec::new(),
            })
        };
        let pairs = fixture["pairs"].as_array().unwrap().iter();
        let pairs: Vec<_> = pairs.zip(numbers(&case["margins"])).map(example).collect();
        let batch = Batch::to_score(&pairs, fixture["pad"].as_u64().map(|pad| pad as TokenId));
        for max_tokens in BUDGETS {
            let name = format!("{} {} {} in {max_tokens}", case["model"], case["margins"], case["centring"]);
            let actor = classifier(case["model"].as_str().unwrap(), OutputHead::Sequence);
            let [scores] = actor.labels(&batch, max_tokens).unwrap();
            let scores = batch.read(&scores);
            let expected: Vec<f64> = case["scores"].as_array().unwrap().iter().flat_map(numbers).collect();
            for (got, expected) in scores.iter().zip(expected) {
                assert_close(&name, *got, expected, expected.abs().max(1.0));
            }
            let got = ScoredPairs::of(&pairs, &scores, case["centring"].as_f64().unwrap()).unwrap();
            let metrics = [
                (got.loss, &case["value"]),
                (got.accuracy, &case["metrics"]["accuracy"]),
                (got.chosen - got.rejected, &case["metrics"]["margin"]),
            ];
            for (got, expected) in metrics {
                assert_close(&name, got, expected.as_f64().unwrap(), 1.0);
            }
            accumulate(&actor, &batch, &[got.dscores], max_tokens);
            assert_gradients(&name, actor.learner.decoder(), case);
        }
    }
}

#[test]
fn numbers_losses_and_gradients_of_steps_are_transformers() {
    let text = std::fs::read_to_string(fixtures().join("preference/process_cases.json")).unwrap();
    let case: Value = serde_json::from_str(&text).unwrap();
    let example = |row: &Value| {
        Arc::new(PreferenceExample {
            prompt: prompt(&tokens(&row["prompt_ids"])),
            completions: vec![tokens(&row["completion_ids"])],
            labels: numbers(&row["labels"]).into_iter().map(|label| label == 1.0).collect(),
            margin: 0.0,
            step_ends: numbers(&row["step_ends"]).into_iter().map(|end| end as usize).collect(),
        })
    };
    let examples: Vec<_> = case["rows"].as_array().unwrap().iter().map(example).collect();
    let batch = Batch::to_judge(&examples);
    for max_tokens in [4096, 20] {
        let actor = classifier("process-llama", OutputHead::Tokens);
        let labels = actor.labels(&batch, max_tokens).unwrap().map(|labels| batch.read(&labels));
        let expected: Vec<Vec<f64>> = case["numbers"].as_array().unwrap().iter().map(numbers).collect();
        assert_eq!(labels[0].len(), expected.len());
        for (step, expected) in expected.iter().enumerate() {
            for (got, expected) in [labels[0][step], labels[1][step]].into_iter().zip(expected) {
                assert_close("a number", got, *expected, expected.abs().max(1.0));
            }
        }
        let got = JudgedSteps::of(&examples, &labels).unwrap();
        assert_close("loss", got.loss, case["value"].as_f64().unwrap(), 1.0);
        assert_close("accuracy", got.accuracy, case["accuracy"].as_f64().unwrap(), 1.0);
        accumulate(&actor, &batch, &got.dlabels, max_tokens);
        assert_gradients("steps", actor.learner.decoder(), &case);
    }
}

#[test]
fn transformers_reads_the_same_numbers_of_an_exported_process_reward_model() {
    let text = std::fs::read_to_string(fixtures().join("preference/exported_process.json")).unwrap();
    let case: Value = serde_json::from_str(&text).unwrap();
    let actor = classifier("exported-process", OutputHead::Tokens);
    for row in case["rows"].as_array().unwrap() {
        let completion = tokens(&row["completion_ids"]);
        let example = PreferenceExample {
            prompt: prompt(&tokens(&row["prompt_ids"])),
            step_ends: (1..=completion.len()).collect(),
            labels: vec![true; completion.len()],
            completions: vec![completion],
            margin: 0.0,
        };
        let batch = Batch::to_judge(&[Arc::new(example)]);
        let labels: [Vec<f64>; 2] = actor.labels(&batch, 4096).unwrap().map(|labels| batch.read(&labels));
        let expected: Vec<Vec<f64>> = row["numbers"].as_array().unwrap().iter().map(numbers).collect();
        assert_eq!(labels[0].len(), expected.len());
        for (token, expected) in expected.iter().enumerate() {
            for (label, expected) in labels.iter().zip(expected) {
                assert_close("a number", label[token], *expected, expected.abs().max(1.0));
            }
        }
    }
}

#[test]
fn a_policy_becomes_a_reward_model_with_its_body_and_a_head_drawn_from_the_seed() {
    let folder = fixtures().join("models/llama");
    let open = |seed| {
        let weights = Weights::open_with_head(&folder, OutputHead::Sequence, seed).unwrap();
        Decoder::from_weights(&weights, &LoadOptions::default()).unwrap()
    };
    let (policy, model, other) = (Decoder::load(&folder, &LoadOptions::default()).unwrap(), open(1), open(2));
    let parameters = model.named_parameters();
    let (head, body) = parameters.split_last().unwrap();
    assert_eq!((head.0.as_str(), head.1.size()), ("score.weight", vec![1, model.config.hidden_size as i64]));
    for (name, tensor) in body {
        let policys = policy.named_parameters();
        let (_, expected) = policys.iter().find(|(other, _)| other == name).unwrap();
        assert!(tensor.equal(expected), "{name}");
    }
    let spread = head.1.std(false).double_value(&[]);
    let expected = model.config.initializer_range;
    assert!((spread / expected - 1.0).abs() < 0.5, "{spread} for {expected}");
    assert!(!head.1.equal(&other.named_parameters().last().unwrap().1));
}
