//! Servers that judge several samples in one request: those of our own protocol, in which every sample has an
//! id and a status, and those of OpenRLHF, whose answer is a list of numbers.

use rlt_core::reward::Verdict;
use serde::Deserialize;
use serde_json::{Value, json};

use super::endpoint::Endpoint;
use super::status::Status;
use super::{ExternalSample, SampleId};

/// Server with the protocol of `docs/rewards.md`.
pub(super) struct BatchServer(pub(super) Endpoint);

/// Verdict on one sample in the server's answer.
#[derive(Deserialize)]
struct Entry {
    id: String,
    #[serde(default)]
    status: Status,
    value: Option<f64>,
    message: Option<String>,
}

impl BatchServer {
    /// Judges samples, and returns one verdict for each. If an answer lacks some samples, its verdicts are
    /// kept, and only the others are requested again.
    pub(super) async fn judge(&self, samples: &[ExternalSample]) -> Vec<Verdict> {
        let known = std::sync::Mutex::new(vec![None; samples.len()]);
        let known_now = || known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let question = || {
            let known = known_now();
            let open = samples.iter().zip(&*known).filter(|(_, known)| known.is_none());
            let open: Vec<Value> = open.map(|(sample, _)| sample_json(sample)).collect();
            Ok(json!({ "deadline_seconds": self.0.timeout().as_secs_f64(), "samples": open }))
        };
        let take = |answer: Value| take_entries(answer, samples, &mut known_now());
        let asked = self.0.ask(question, take).await;
        let missing = asked.err().map(|no_answer| no_answer.verdict());
        let missing = missing.unwrap_or_else(|| Verdict::infra("the answer lacks the sample"));
        let known = std::mem::take(&mut *known_now());
        known.into_iter().map(|verdict| verdict.unwrap_or_else(|| missing.clone())).collect()
    }
}

/// Returns a sample as JSON, in the form that our protocol and sandboxes use.
pub(super) fn sample_json(sample: &ExternalSample) -> Value {
    let ExternalSample { prompt, completion, num_tokens, .. } = sample;
    json!({
        "id": wire_id(sample),
        "prompt": prompt.text,
        "completion": completion,
        "num_tokens": num_tokens,
        "data_source": prompt.data_source,
        "ground_truth": prompt.ground_truth,
        "extra_info": prompt.extra_info,
    })
}

fn wire_id(sample: &ExternalSample) -> String {
    let SampleId { prompt_idx, sample_idx } = sample.id;
    format!("{prompt_idx}.{sample_idx}")
}

/// Stores the verdicts of an answer in `known`. Fails if a verdict is invalid, or some are missing.
fn take_entries(
    answer: Value,
    samples: &[ExternalSample],
    known: &mut [Option<Verdict>],
) -> Result<(), String> {
    let entries = entries_of(answer)?;
    for entry in entries {
        if !entry.is_object() {
            return Err(format!("a verdict: expected an object with an `id`, got {}", kind_of(&entry)));
        }
        let entry: Entry = serde_json::from_value(entry).map_err(|error| format!("a verdict: {error}"))?;
        let place = samples.iter().position(|sample| wire_id(sample) == entry.id);
        let place = place.ok_or_else(|| format!("a verdict on {:?}, which was not sent", entry.id))?;
        known[place] = Some(entry.verdict()?);
    }
    match known.iter().filter(|verdict| verdict.is_none()).count() {
        0 => Ok(()),
        num => Err(format!("the answer lacks {num} of {} samples", samples.len())),
    }
}

/// Takes the list `verdicts` from an answer, which may be any JSON.
fn entries_of(answer: Value) -> Result<Vec<Value>, String> {
    let expected = |got: &str| format!("expected an object with a list `verdicts`, got {got}");
    match answer {
        Value::Object(mut fields) => match fields.remove("verdicts") {
            Some(Value::Array(entries)) => Ok(entries),
            Some(other) => Err(expected(&format!("an object in which it is {}", kind_of(&other)))),
            None => Err(expected("an object without it")),
        },
        other => Err(expected(kind_of(&other))),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

impl Entry {
    fn verdict(self) -> Result<Verdict, String> {
        let Self { id, status, value, message } = self;
        let verdict = status.verdict(value, message, "the server");
        verdict.ok_or_else(|| format!("the verdict on {id:?} has no value"))
    }
}

/// Reward server of OpenRLHF (`openrlhf/cli/serve_rm.py`).
pub(super) struct OpenRlhfServer(pub(super) Endpoint);

impl OpenRlhfServer {
    pub(super) async fn judge(&self, samples: &[ExternalSample]) -> Vec<Verdict> {
        let question = || {
            let query: Vec<String> =
                samples.iter().map(|sample| format!("{}{}", sample.prompt.text, sample.completion)).collect();
            let prompts: Vec<&str> = samples.iter().map(|sample| sample.prompt.text.as_str()).collect();
            let labels: Vec<Value> =
                samples.iter().map(|sample| label(&sample.prompt.ground_truth)).collect();
            Ok(json!({ "query": query, "prompts": prompts, "labels": labels }))
        };
        let mut rewards = Vec::new();
        let asked = self.0.ask(question, |answer| {
            rewards = rewards_of(&answer, samples.len())?;
            Ok(())
        });
        match asked.await {
            Ok(()) => rewards.into_iter().map(Verdict::ok).collect(),
            Err(no_answer) => vec![no_answer.verdict(); samples.len()],
        }
    }
}

/// Returns the label of a ground truth: a string is sent as it is, other values as JSON in a string.
fn label(ground_truth: &Value) -> Value {
    match ground_truth {
        Value::String(_) | Value::Null => ground_truth.clone(),
        other => Value::String(other.to_string()),
    }
}

fn rewards_of(answer: &Value, num_samples: usize) -> Result<Vec<f64>, String> {
    // The output of a model with shape [n, 1] is a list of lists.
    let number = |value: &Value| value.as_f64().or_else(|| value.get(0)?.as_f64());
    let rewards: Option<Vec<f64>> =
        answer["rewards"].as_array().and_then(|rewards| rewards.iter().map(number).collect());
    let rewards = rewards.ok_or("expected an object with `rewards`, a list of numbers")?;
    if rewards.len() == num_samples {
        return Ok(rewards);
    }
    Err(format!("expected {num_samples} rewards, got {}", rewards.len()))
}
