//! Servers that work, and those that hang, drip, err, break off and flood: every sample gets a verdict, and
//! the step ends in time.

mod authorities;
mod hostile;
mod modules;
mod protocols;
mod python;
mod server;
mod unit_tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use rlt_api::spec::RewardsSpec;
use rlt_core::fixtures;
use rlt_core::reward::{Verdict, Verdicts};
use rlt_core::types::{Completion, Prompt, RewardStatus};
use serde_json::{Value, json};

use super::*;

fn prompt(ground_truth: Value) -> Arc<Prompt> {
    Arc::new(Prompt {
        text: "question ".into(),
        data_source: "a".into(),
        ground_truth,
        extra_info: json!({"level": 3}),
        ..Prompt::from_tokens(0, vec![1])
    })
}

fn sample_id(prompt_idx: usize, sample_idx: usize) -> SampleId {
    SampleId { prompt_idx, sample_idx }
}

fn completion(text: &str) -> Completion {
    fixtures::completion(&vec![1; text.len().max(1)], text)
}

/// Sets up one function `f` of this kind; `settings` are its fields besides `server`.
fn functions(kind: &str, server: Value, settings: Value) -> Result<ExternalFunctions, RewardSetupError> {
    let mut function = json!({"name": "f", "kind": kind, "server": server});
    function.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    let spec: RewardsSpec =
        serde_json::from_value(json!({"functions": [function], "batchTimeoutSeconds": 20.0})).unwrap();
    ExternalFunctions::new(&spec)
}

/// Judges completions of one prompt; returns the verdicts of `f` in the order of the completions.
fn judge(functions: &ExternalFunctions, ground_truth: Value, texts: &[&str]) -> Vec<Verdict> {
    let (mut judging, prompt) = (functions.begin().unwrap(), prompt(ground_truth));
    for (idx, text) in texts.iter().enumerate() {
        judging.submit(sample_id(0, idx), &prompt, &completion(text));
    }
    of_f(judging.finish(&|| false))
}

fn of_f(verdicts: BTreeMap<SampleId, Verdicts>) -> Vec<Verdict> {
    verdicts.into_values().map(|mut verdicts| verdicts.remove("f").unwrap()).collect()
}

fn statuses(verdicts: &[Verdict]) -> Vec<RewardStatus> {
    verdicts.iter().map(|verdict| verdict.status).collect()
}

fn values(verdicts: &[Verdict]) -> Vec<f64> {
    verdicts.iter().map(|verdict| verdict.value).collect()
}
