//! Reads one row as a completion of several steps, each right or wrong, in TRL's format for stepwise
//! supervision: `prompt`, `completions` (the steps, a list of texts) and `labels` (one per step).
//!
//! Every step is tokenized separately and followed by the separator, so that a step always ends at a token
//! boundary.

use std::sync::Arc;

use rlt_api::spec::{DataSpec, OverlongPrompts};
use rlt_core::preferences::PreferenceExample;
use rlt_core::types::{Prompt, TokenId};
use serde_json::Value;

use super::prompt::{PromptReader, tokenize_error};
use super::rows::Row;
use super::{DataError, Fitted, PreferenceLimits};
use crate::tokenizer::{Tokenizer, TokenizerError};

const PROMPT: &str = "prompt";
const STEPS: &str = "completions";
const LABELS: &str = "labels";

/// Format of rows with labelled steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepFormat {
    /// Text that follows every step.
    pub separator: String,
    /// Whether only the last step has a label.
    pub last_only: bool,
    /// Maximum lengths of completions and sequences.
    pub limits: PreferenceLimits,
}

/// Tokenizes `steps`, each followed by `separator`; also returns the number of tokens up to the end of each
/// step.
///
/// # Errors
/// [`TokenizerError`].
pub fn encode_steps<'s>(
    tokenizer: &Tokenizer,
    steps: impl IntoIterator<Item = &'s str>,
    separator: &str,
) -> Result<(Vec<TokenId>, Vec<usize>), TokenizerError> {
    let separator_tokens = tokenizer.encode_rendered(separator)?;
    let (mut tokens, mut ends) = (Vec::new(), Vec::new());
    for step in steps {
        let own = tokenizer.encode_rendered(step)?;
        tokenizer.check_alphabet(step, &own)?;
        tokens.extend(own);
        tokens.extend(&separator_tokens);
        ends.push(tokens.len());
    }
    Ok((tokens, ends))
}

/// Reader of completions with labelled steps, as `spec.data` describes them.
pub(super) struct StepReader<'a> {
    prompts: PromptReader<'a>,
    format: &'a StepFormat,
    overlong: OverlongPrompts,
    tokenizer: &'a Tokenizer,
}

impl<'a> StepReader<'a> {
    pub(super) fn new(spec: &'a DataSpec, tokenizer: &'a Tokenizer, format: &'a StepFormat) -> Self {
        let prompts = PromptReader::new(spec, tokenizer);
        Self { prompts, format, overlong: spec.overlong_prompts, tokenizer }
    }

    pub(super) fn read(&self, row_idx: u64, row: &Row) -> Result<Fitted<PreferenceExample>, DataError> {
        let steps = texts(row)?;
        let mut labels = labels(row, steps.len())?;
        let encoded = encode_steps(self.tokenizer, steps, &self.format.separator);
        let (tokens, mut step_ends) = encoded.map_err(|source| tokenize_error(row, source))?;
        let PreferenceLimits { max_completion_tokens, max_sequence_tokens } = self.format.limits;
        let num_tokens = tokens.len();
        if num_tokens > max_completion_tokens {
            return self.too_long(row, STEPS, [num_tokens, max_completion_tokens]);
        }
        if self.format.last_only {
            labels.drain(..labels.len() - 1);
            step_ends.drain(..step_ends.len() - 1);
        }
        let example = |prompt: Prompt| PreferenceExample {
            prompt: Arc::new(prompt),
            completions: vec![tokens],
            labels,
            margin: 0.0,
            step_ends,
        };
        let prompt = self.prompts.read(row_idx, row)?;
        if let Fitted::Whole(prompt) | Fitted::Truncated(prompt) = &prompt
            && prompt.tokens.len() + num_tokens > max_sequence_tokens
        {
            let room = max_sequence_tokens.saturating_sub(num_tokens);
            return self.too_long(row, PROMPT, [prompt.tokens.len(), room]);
        }
        Ok(match prompt {
            Fitted::Whole(prompt) => Fitted::Whole(example(prompt)),
            Fitted::Truncated(prompt) => Fitted::Truncated(example(prompt)),
            Fitted::TooLong => Fitted::TooLong,
        })
    }

    /// Leaves out a row with `num_tokens` in a column that may have `max_tokens`, or refuses it.
    fn too_long(
        &self,
        row: &Row,
        column: &'static str,
        [num_tokens, max_tokens]: [usize; 2],
    ) -> Result<Fitted<PreferenceExample>, DataError> {
        if self.overlong != OverlongPrompts::Error {
            return Ok(Fitted::TooLong);
        }
        let location = row.location.clone();
        Err(DataError::ColumnTooLong { location, column, num_tokens, max_tokens })
    }
}

fn list<'r>(row: &'r Row, column: &str, expected: &'static str) -> Result<&'r [Value], DataError> {
    let value = row.column(column)?;
    match value.as_array() {
        Some(items) if !items.is_empty() => Ok(items),
        _ => Err(row.wrong_type(column, value, expected)),
    }
}

fn texts(row: &Row) -> Result<Vec<&str>, DataError> {
    let expected = "a list of at least one text";
    let steps = list(row, STEPS, expected)?;
    match steps.iter().find(|step| !step.is_string()) {
        Some(other) => Err(row.wrong_type(STEPS, other, expected)),
        None => Ok(steps.iter().filter_map(Value::as_str).collect()),
    }
}

fn labels(row: &Row, num_steps: usize) -> Result<Vec<bool>, DataError> {
    let expected = "one of true and false (or 1 and 0) for each of the completions";
    let given = list(row, LABELS, expected)?;
    let label = |value: &Value| value.as_bool().or(value.as_u64().filter(|n| *n < 2).map(|n| n == 1));
    let labels: Option<Vec<bool>> = given.iter().map(label).collect();
    labels
        .filter(|labels| labels.len() == num_steps)
        .ok_or_else(|| row.wrong_type(LABELS, &Value::Array(given.to_vec()), expected))
}
