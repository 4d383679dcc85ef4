//! A language model as judge, on a server with OpenAI's chat completions: it gets a rubric, and a pattern
//! finds the score in its answer.

use std::sync::atomic::{AtomicU64, Ordering};

use regex::Regex;
use rlt_api::spec::JudgeSpec;
use rlt_core::reward::Verdict;
use rlt_core::reward::pattern::linear;
use rlt_template::Template;
use serde_json::{Map, Value, json};

use super::endpoint::Endpoint;
use super::{ExternalError, ExternalSample};

/// Limit of steps in which a rubric is rendered.
const MAX_STEPS: usize = 1_000_000;

/// Requests and tokens that a batch has used so far.
#[derive(Debug, Default)]
pub(super) struct JudgeUsage {
    requests: AtomicU64,
    tokens: AtomicU64,
}

/// A judge model with its rubric and pattern.
pub(super) struct JudgeServer {
    endpoint: Endpoint,
    spec: JudgeSpec,
    rubric: Template,
    pattern: Regex,
}

impl JudgeServer {
    pub(super) fn new(endpoint: Endpoint, spec: &JudgeSpec) -> Result<Self, ExternalError> {
        let wrong = |source| ExternalError::Pattern { pattern: spec.pattern.clone(), source };
        let pattern = linear(&spec.pattern).map_err(|error| wrong(Some(error)))?;
        if pattern.captures_len() < 2 {
            return Err(wrong(None));
        }
        let rubric = Template::new(&spec.rubric).map_err(ExternalError::Rubric)?;
        Ok(Self { endpoint, spec: spec.clone(), rubric, pattern })
    }

    pub(super) async fn judge(&self, sample: &ExternalSample, usage: &JudgeUsage) -> Verdict {
        let message = match self.message(sample) {
            Ok(message) => message,
            Err(error) => return Verdict::infra(format!("render judge.rubric: {error}")),
        };
        let question = || {
            self.spend(usage)?;
            Ok(json!({
                "model": self.spec.model,
                "messages": [{ "role": "user", "content": message }],
                "max_tokens": self.spec.max_tokens,
                "temperature": self.spec.temperature,
            }))
        };
        let mut score = 0.0;
        let asked = self.endpoint.ask(question, |answer| {
            let tokens = answer["usage"]["total_tokens"].as_u64().unwrap_or_default();
            usage.tokens.fetch_add(tokens, Ordering::Relaxed);
            score = self.score(&answer)?;
            Ok(())
        });
        match asked.await {
            Ok(()) => Verdict::ok(score),
            Err(no_answer) => no_answer.verdict(),
        }
    }

    /// Counts a request. Fails if the batch has used up its requests or tokens.
    fn spend(&self, usage: &JudgeUsage) -> Result<(), String> {
        let JudgeSpec { max_requests_per_batch, max_tokens_per_batch, .. } = &self.spec;
        let (requests, tokens) =
            (usage.requests.fetch_add(1, Ordering::Relaxed), usage.tokens.load(Ordering::Relaxed));
        if max_requests_per_batch.is_some_and(|most| requests >= most) {
            return Err(format!("the batch has spent its {requests} requests"));
        }
        if max_tokens_per_batch.is_some_and(|most| tokens >= most) {
            return Err(format!("the batch has spent its tokens: {tokens}"));
        }
        Ok(())
    }

    /// Renders the rubric for a sample. A name that is none of these values is an error.
    fn message(&self, sample: &ExternalSample) -> Result<String, rlt_template::Error> {
        let prompt = &sample.prompt;
        let variables: Map<String, Value> = [
            ("prompt", json!(prompt.text)),
            ("completion", json!(sample.completion)),
            ("ground_truth", prompt.ground_truth.clone()),
            ("data_source", json!(prompt.data_source)),
            ("extra_info", prompt.extra_info.clone()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into_iter()
        .collect();
        self.rubric.render_strictly(&variables, MAX_STEPS)
    }

    fn score(&self, answer: &Value) -> Result<f64, String> {
        let text = answer["choices"][0]["message"]["content"].as_str();
        let text = text.ok_or("expected an answer with choices[0].message.content")?;
        let found = self.pattern.captures_iter(text).last();
        let found = found.and_then(|found| found.name("score").or_else(|| found.get(1)));
        let JudgeSpec { min_score, max_score, .. } = self.spec;
        let score = found.and_then(|found| found.as_str().trim().parse().ok());
        score.filter(|score| (min_score..=max_score).contains(score)).ok_or_else(|| {
            let skipped = text.chars().count().saturating_sub(200);
            let end: String = text.chars().skip(skipped).collect();
            format!("expected a score of {min_score} to {max_score} in the answer, which ends in {end:?}")
        })
    }
}
