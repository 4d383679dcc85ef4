//! Reads one row as a prompt with labelled completions, in TRL's formats.
//!
//! | format | columns |
//! |---|---|
//! | pairs | `prompt`, `chosen`, `rejected`; without `prompt` it is the common prefix of the other two |
//! | pairs for a reward model | those of pairs; `margin`, a number: by how much `chosen` is better |
//! | labels | `prompt`, `completion`, `label`; or a pair, whose chosen completion is the desirable one |
//!
//! Each column is a text or a list of chat messages. Prompt and completion are tokenized separately, as in
//! the rollout, so that all completions of a row share the tokens of the prompt.

use std::sync::Arc;

use rlt_api::spec::{DataSpec, OverlongPrompts};
use rlt_core::preferences::PreferenceExample;
use rlt_core::types::{Prompt, TokenId};
use serde_json::Value;

use super::demonstration::RowTemplate;
use super::prompt::{Rendered, truncated};
use super::prompt::{
    check_messages, data_source, encode, ground_truth, images_key, prompt_key, render_messages,
    tokenize_error,
};
use super::rows::Row;
use super::turns::{self, ends};
use super::{DataError, Fitted, images};
use crate::tokenizer::Tokenizer;

const CHOSEN: &str = "chosen";
const REJECTED: &str = "rejected";
const COMPLETION: &str = "completion";
const LABEL: &str = "label";
const MARGIN: &str = "margin";

/// Format of preference rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreferenceFormat {
    /// A chosen and a rejected completion.
    Pairs,
    /// A chosen and a rejected completion, with an optional margin between them.
    PairsWithMargin,
    /// Completions that are each desirable or not.
    Labels,
}

/// Maximum lengths of completions and sequences, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreferenceLimits {
    /// Maximum number of tokens of a completion.
    pub max_completion_tokens: usize,
    /// Maximum number of tokens of a prompt with a completion.
    pub max_sequence_tokens: usize,
}

/// Reader of preferences as `spec.data` describes them.
pub(super) struct PreferenceReader<'a> {
    spec: &'a DataSpec,
    format: PreferenceFormat,
    prompt_key: &'a str,
    max_prompt_tokens: usize,
    limits: PreferenceLimits,
    overlong: OverlongPrompts,
    tokenizer: &'a Tokenizer,
}

/// A completion of a row: its column, its content without the prompt, and whether it is a good one.
struct Candidate<'a> {
    column: &'static str,
    content: &'a Value,
    is_good: bool,
}

/// Prompt and completions of a row as texts.
struct Texts {
    prompt: Rendered,
    completions: Vec<String>,
}

impl<'a> PreferenceReader<'a> {
    pub(super) fn new(
        spec: &'a DataSpec,
        tokenizer: &'a Tokenizer,
        format: PreferenceFormat,
        limits: PreferenceLimits,
    ) -> Self {
        Self {
            format,
            spec,
            prompt_key: prompt_key(spec),
            max_prompt_tokens: spec.max_prompt_tokens as usize,
            limits,
            overlong: spec.overlong_prompts,
            tokenizer,
        }
    }

    pub(super) fn read(&self, row_idx: u64, row: &Row) -> Result<Fitted<PreferenceExample>, DataError> {
        images::refuse(row, images_key(self.spec))?;
        let candidates = self.candidates(row)?;
        let texts = match candidates[0].content {
            Value::Array(_) => self.conversations(row, &candidates)?,
            _ => self.plain(row, &candidates)?,
        };
        let prompt_tokens =
            encode(self.tokenizer, &texts.prompt).map_err(|source| tokenize_error(row, source))?;
        if prompt_tokens.is_empty() || texts.prompt.text.is_empty() {
            return Err(DataError::EmptyPrompt { location: row.location.clone() });
        }
        let mut completions = Vec::new();
        for (candidate, text) in candidates.iter().zip(&texts.completions) {
            let tokens = self.completion(row, candidate, text, texts.prompt.is_chat)?;
            if tokens.len() > self.limits.max_completion_tokens {
                return self.too_long(row, candidate.column, tokens.len(), self.limits.max_completion_tokens);
            }
            completions.push(tokens);
        }
        let prompt = Prompt {
            row_idx,
            tokens: prompt_tokens,
            text: texts.prompt.text,
            messages: texts.prompt.messages,
            data_source: data_source(row, self.spec)?,
            ground_truth: ground_truth(row, self.spec)?,
            extra_info: row.optional("extra_info").cloned().unwrap_or(Value::Null),
            images: Vec::new(),
        };
        let labels = candidates.iter().map(|candidate| candidate.is_good).collect();
        let example = PreferenceExample {
            prompt: Arc::new(prompt),
            completions,
            labels,
            margin: self.margin(row)?,
            step_ends: Vec::new(),
        };
        self.fit(row, example)
    }

    fn margin(&self, row: &Row) -> Result<f64, DataError> {
        match row.optional(MARGIN).filter(|_| self.format == PreferenceFormat::PairsWithMargin) {
            None => Ok(0.0),
            Some(value) => value.as_f64().ok_or_else(|| row.wrong_type(MARGIN, value, "a number")),
        }
    }

    fn candidates<'r>(&self, row: &'r Row) -> Result<Vec<Candidate<'r>>, DataError> {
        let candidate = |column, is_good| -> Result<Candidate<'r>, DataError> {
            Ok(Candidate { column, content: row.column(column)?, is_good })
        };
        let has_pair = row.optional(CHOSEN).is_some() && row.optional(REJECTED).is_some();
        match self.format {
            PreferenceFormat::Labels if !has_pair => match row.column(LABEL)? {
                Value::Bool(label) => Ok(vec![candidate(COMPLETION, *label)?]),
                other => Err(row.wrong_type(LABEL, other, "true or false")),
            },
            PreferenceFormat::Pairs | PreferenceFormat::PairsWithMargin | PreferenceFormat::Labels => {
                Ok(vec![candidate(CHOSEN, true)?, candidate(REJECTED, false)?])
            }
        }
    }

    fn plain(&self, row: &Row, candidates: &[Candidate<'_>]) -> Result<Texts, DataError> {
        let mut completions = Vec::new();
        for Candidate { column, content, .. } in candidates {
            let Value::String(text) = content else {
                return Err(row.wrong_type(column, content, "a text, or in all columns chat messages"));
            };
            completions.push(text.clone());
        }
        let prompt = match row.optional(self.prompt_key) {
            Some(Value::String(prompt)) => prompt.clone(),
            Some(other) => {
                return Err(row.wrong_type(self.prompt_key, other, "a text, as its completions are"));
            }
            None => self.split_off_prompt(row, &mut completions)?,
        };
        Ok(Texts { prompt: Rendered { text: prompt, is_chat: false, messages: Value::Null }, completions })
    }

    /// Removes the common prefix of both completions and returns it as the prompt. A space before the first
    /// difference stays with the completions, as in TRL.
    fn split_off_prompt(&self, row: &Row, completions: &mut [String]) -> Result<String, DataError> {
        let [chosen, rejected] = completions else {
            // A single completion has no prefix to compare: the prompt column is missing.
            return row.column(self.prompt_key).map(|_| String::new());
        };
        let alike = chosen.char_indices().zip(rejected.chars()).take_while(|((_, one), other)| one == other);
        let mut end = alike.last().map_or(0, |((at, one), _)| at + one.len_utf8());
        if chosen[..end].ends_with(' ') {
            end -= 1;
        }
        let prompt = chosen[..end].to_owned();
        for completion in [chosen, rejected] {
            completion.drain(..end);
        }
        Ok(prompt)
    }

    fn conversations(&self, row: &Row, candidates: &[Candidate<'_>]) -> Result<Texts, DataError> {
        let mut completions: Vec<&[Value]> = Vec::new();
        for Candidate { column, content, .. } in candidates {
            let Value::Array(messages) = content else {
                return Err(row.wrong_type(column, content, "a list of chat messages, as \"chosen\" is"));
            };
            check_messages(row, column, messages)?;
            completions.push(messages);
        }
        let prompt: &[Value] = match row.optional(self.prompt_key) {
            Some(Value::Array(messages)) => messages,
            Some(other) => {
                let expected = "a list of chat messages, as its completions are";
                return Err(row.wrong_type(self.prompt_key, other, expected));
            }
            None => {
                let [chosen, rejected] = completions[..] else {
                    row.column(self.prompt_key)?;
                    return Err(DataError::EmptyPrompt { location: row.location.clone() });
                };
                let num_alike = chosen.iter().zip(rejected).take_while(|(one, other)| one == other).count();
                completions = vec![&chosen[num_alike..], &rejected[num_alike..]];
                &chosen[..num_alike]
            }
        };
        if prompt.is_empty() {
            return Err(DataError::EmptyPrompt { location: row.location.clone() });
        }
        check_messages(row, self.prompt_key, prompt)?;
        let opened = render_messages(self.tokenizer, row, prompt, true)?;
        let conversation = |completion: &&[Value]| {
            render_messages(self.tokenizer, row, &[prompt, completion].concat(), false)
        };
        let texts: Vec<String> = completions.iter().map(conversation).collect::<Result<_, _>>()?;
        let text = match texts.iter().all(|text| text.starts_with(&opened)) {
            true => opened,
            false => self.rewritten_prompt(row, prompt, &completions, &texts)?,
        };
        let completions = texts.iter().map(|whole| whole[text.len()..].to_owned()).collect();
        let prompt = Rendered { text, is_chat: true, messages: self.tokenizer.conversation(prompt).into() };
        Ok(Texts { prompt, completions })
    }

    /// Returns the prompt as it is rendered in the full conversations of `texts`. Some templates render it
    /// differently once an answer follows: DeepSeek-R1's opens a thought only as long as there is no answer.
    /// The prompt must be the same before all completions, because they share its tokens.
    fn rewritten_prompt(
        &self,
        row: &Row,
        prompt: &[Value],
        completions: &[&[Value]],
        texts: &[String],
    ) -> Result<String, DataError> {
        let template = RowTemplate { tokenizer: self.tokenizer, row };
        let unstable =
            || DataError::UnstableTemplate { location: row.location.clone(), message_idx: prompt.len() };
        let mut shared: Option<&str> = None;
        for (completion, text) in completions.iter().zip(texts) {
            if completion.is_empty() {
                return Err(unstable());
            }
            let messages = [prompt, completion].concat();
            let turn = turns::turn(&template, &messages, prompt.len(), text)?.ok_or_else(unstable)?;
            let before = &text[..turn.bytes.start];
            if shared.is_some_and(|shared| shared != before) {
                return Err(unstable());
            }
            shared = Some(before);
        }
        shared.map(str::to_owned).ok_or_else(unstable)
    }

    /// Returns the tokens of a completion, which end with an end-of-sequence token. That token is appended to
    /// plain text that does not end with one, and to a conversation whose template writes it only before a
    /// next message. Text that a chat template writes after the token, such as a line break, is not part of
    /// the completion.
    fn completion(
        &self,
        row: &Row,
        candidate: &Candidate<'_>,
        text: &str,
        is_chat: bool,
    ) -> Result<Vec<TokenId>, DataError> {
        let failed = |source| tokenize_error(row, source);
        let mut tokens = self.tokenizer.encode_rendered(text).map_err(failed)?;
        self.tokenizer.check_alphabet(text, &tokens).map_err(failed)?;
        if text.is_empty() || tokens.is_empty() {
            let (location, column) = (row.location.clone(), candidate.column);
            return Err(DataError::EmptyCompletion { location, column });
        }
        let is_eos = |token: &TokenId| self.tokenizer.eos_ids().contains(token);
        match tokens.iter().rposition(is_eos) {
            Some(last) if is_chat => tokens.truncate(last + 1),
            None if is_chat => tokens.extend(self.closing(row, candidate)),
            Some(last) if last + 1 == tokens.len() => {}
            _ => tokens.extend(self.tokenizer.eos_ids().first()),
        }
        Ok(tokens)
    }

    /// Returns the token that ends a completion of messages, if the template writes that token only before a
    /// next message.
    fn closing(&self, row: &Row, candidate: &Candidate<'_>) -> Option<TokenId> {
        let answer = candidate.content.as_array()?;
        // Without a prompt column, the completions begin with the prompt.
        let prompt = row.optional(self.prompt_key).and_then(Value::as_array);
        let messages: Vec<Value> = prompt.into_iter().flatten().chain(answer).cloned().collect();
        ends::closing(&RowTemplate { tokenizer: self.tokenizer, row }, self.tokenizer, &messages)
    }

    /// Fits a row into the limits. A prompt is truncated if the manifest says so; a completion never is,
    /// because that would change what is preferred.
    fn fit(&self, row: &Row, mut example: PreferenceExample) -> Result<Fitted<PreferenceExample>, DataError> {
        let longest = example.completions.iter().map(Vec::len).max().unwrap_or(0);
        let room = self.limits.max_sequence_tokens.saturating_sub(longest).min(self.max_prompt_tokens);
        let num_tokens = example.prompt.tokens.len();
        let is_cut = num_tokens > room;
        if is_cut && room == 0 {
            return self.too_long(row, "prompt", num_tokens, room);
        }
        if is_cut {
            let is_left = match self.overlong {
                OverlongPrompts::TruncateLeft => true,
                OverlongPrompts::TruncateRight => false,
                OverlongPrompts::Filter | OverlongPrompts::Error => {
                    return self.too_long(row, "prompt", num_tokens, room);
                }
            };
            let prompt = Arc::unwrap_or_clone(example.prompt);
            example.prompt = Arc::new(truncated(self.tokenizer, row, prompt, room, is_left)?);
        }
        Ok(if is_cut { Fitted::Truncated(example) } else { Fitted::Whole(example) })
    }

    fn too_long(
        &self,
        row: &Row,
        column: &'static str,
        num_tokens: usize,
        max_tokens: usize,
    ) -> Result<Fitted<PreferenceExample>, DataError> {
        if self.overlong == OverlongPrompts::Error {
            let location = row.location.clone();
            return Err(DataError::ColumnTooLong { location, column, num_tokens, max_tokens });
        }
        Ok(Fitted::TooLong)
    }
}

#[cfg(test)]
mod tests;
