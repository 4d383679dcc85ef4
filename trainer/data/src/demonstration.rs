//! Reads one row as a supervised example, with a mask of the tokens that the assistant wrote.

use std::ops::Range;
use std::sync::Arc;

use rlt_api::spec::{DataSpec, OverlongPrompts, TrainOn};
use rlt_core::batch::Demonstration;
use rlt_core::images::PromptImage;
use rlt_core::types::TokenId;
use serde_json::{Value, json};

use super::prompt::{
    check_messages, encode, image_column, images_error, num_image_tokens, place_images, prompt_key, render,
    render_marked, render_messages, tokenize_error,
};
use super::rows::Row;
use super::turns::ends::{self, EncodedToken};
use super::turns::{self, RenderMessages, Turn};
use super::{DataError, Fitted, images};
use crate::tokenizer::{RenderedChat, Tokenizer};

/// Columns that may hold the response to the prompt column.
const RESPONSE_KEYS: [&str; 3] = ["response", "completion", "demonstration"];

/// Reader of supervised examples as `spec.data` describes them.
pub(super) struct DemonstrationReader<'a> {
    messages_key: &'a str,
    image_column: images::ImageColumn<'a>,
    prompt_key: &'a str,
    max_tokens: usize,
    overlong: OverlongPrompts,
    train_on: TrainOn,
    tokenizer: &'a Tokenizer,
}

impl<'a> DemonstrationReader<'a> {
    pub(super) fn new(spec: &'a DataSpec, tokenizer: &'a Tokenizer, max_tokens: usize) -> Self {
        Self {
            messages_key: &spec.messages_key,
            image_column: image_column(spec),
            prompt_key: prompt_key(spec),
            max_tokens,
            overlong: spec.overlong_prompts,
            train_on: spec.train_on,
            tokenizer,
        }
    }

    pub(super) fn read(&self, row: &Row) -> Result<Fitted<Demonstration>, DataError> {
        let images = images::read(row, self.image_column, self.tokenizer.image_processor())?;
        let mut demonstration = match row.optional(self.messages_key) {
            Some(messages) => self.conversation(row, self.messages_key, messages, &[], &images)?,
            None => self.prompt_and_response(row, &images)?,
        };
        demonstration.images = images.into_iter().map(Arc::new).collect();
        if let Some(first) = demonstration.loss_mask.first_mut() {
            *first = false;
        }
        let fitted = self.fit(row, demonstration)?;
        match &fitted {
            Fitted::Whole(fit) | Fitted::Truncated(fit) if !fit.loss_mask.contains(&true) => {
                Err(DataError::NothingToLearn { location: row.location.clone() })
            }
            _ => Ok(fitted),
        }
    }

    fn prompt_and_response(&self, row: &Row, images: &[PromptImage]) -> Result<Demonstration, DataError> {
        let key = RESPONSE_KEYS.into_iter().find(|key| row.optional(key).is_some());
        let Some(key) = key else { return Err(self.missing_column(row)) };
        let (prompt, response) = (row.column(self.prompt_key)?, row.column(key)?);
        let asked = match prompt {
            // A text becomes a user's message if there is a system prompt, or if there are images, whose
            // tokens the chat template writes.
            Value::String(text) if self.tokenizer.has_system_prompt() || !images.is_empty() => {
                Some(json!([{ "role": "user", "content": text }]))
            }
            Value::Array(_) => Some(prompt.clone()),
            _ => None,
        };
        match (asked, response) {
            (Some(asked), Value::String(text)) => {
                let answer = [json!({ "role": "assistant", "content": text })];
                self.conversation(row, self.prompt_key, &asked, &answer, images)
            }
            // TRL's conversational form: the completion is a list of messages, too.
            (Some(asked), Value::Array(answer)) => {
                self.conversation(row, self.prompt_key, &asked, answer, images)
            }
            (None, Value::String(text)) => self.plain(row, text),
            (_, other) => Err(row.wrong_type(key, other, "a text, or messages behind a prompt of messages")),
        }
    }

    fn missing_column(&self, row: &Row) -> DataError {
        let mut columns = RESPONSE_KEYS.into_iter().chain([self.messages_key]);
        // A column that exists was read as missing, so its value is null.
        if let Some(column) = columns.find(|column| row.fields.contains_key(*column)) {
            return row.missing(column);
        }
        let [response, completion, demonstration] = RESPONSE_KEYS;
        DataError::MissingColumn {
            location: row.location.clone(),
            column: format!("{} or {response}, {completion}, {demonstration}", self.messages_key),
            found: row.fields.keys().cloned().collect(),
        }
    }

    /// Builds an example of plain texts: the prompt's tokens, the response's, then the end-of-sequence token,
    /// unless the response ends with one.
    fn plain(&self, row: &Row, response: &str) -> Result<Demonstration, DataError> {
        let rendered = render(self.tokenizer, row, self.prompt_key)?;
        let failed = |source| tokenize_error(row, source);
        let mut tokens = encode(self.tokenizer, &rendered).map_err(failed)?;
        let num_prompt_tokens = tokens.len();
        let response_tokens = self.tokenizer.encode_rendered(response).map_err(failed)?;
        self.tokenizer.check_alphabet(response, &response_tokens).map_err(failed)?;
        let is_ended = response_tokens.last().is_some_and(|last| self.tokenizer.eos_ids().contains(last));
        tokens.extend(response_tokens);
        tokens.extend(self.tokenizer.eos_ids().first().filter(|_| !is_ended));
        let learns_all = self.train_on == TrainOn::Everything;
        let loss_mask = (0..tokens.len()).map(|idx| learns_all || idx >= num_prompt_tokens).collect();
        Ok(Demonstration { tokens, loss_mask, images: Vec::new() })
    }

    fn conversation(
        &self,
        row: &Row,
        column: &str,
        messages: &Value,
        answer: &[Value],
        images: &[PromptImage],
    ) -> Result<Demonstration, DataError> {
        let Value::Array(messages) = messages else {
            return Err(row.wrong_type(column, messages, "a list of chat messages"));
        };
        let messages: Vec<Value> = messages.iter().chain(answer).cloned().collect();
        check_messages(row, column, &messages)?;
        let messages = match self.tokenizer.image_processor() {
            None => messages,
            Some(_) => images::placeholders::split(&messages, images.len())
                .map_err(|source| images_error(row, source))?,
        };
        let rendered = render_marked(self.tokenizer, row, &messages, false)?;
        let encoded = self.tokenizer.encode_with_offsets(&rendered.text);
        let mut encoded = encoded.map_err(|source| tokenize_error(row, source))?;
        let turns = self.turns(row, &messages, &rendered)?;
        if rendered.generated.is_empty()
            && let Some(token) = self.closing(row, &messages, &turns, &encoded)
        {
            encoded.push((token, rendered.text.len()..rendered.text.len()));
        }
        let loss_mask = self.loss_mask(&rendered, &turns, &encoded);
        let text = rendered.text;
        let tokens: Vec<TokenId> = encoded.into_iter().map(|(token, _)| token).collect();
        self.tokenizer.check_alphabet(&text, &tokens).map_err(|source| tokenize_error(row, source))?;
        let masked = tokens.into_iter().zip(loss_mask).collect();
        let masked = place_images(self.tokenizer, row, masked, images)?;
        self.check_images_are_asked_about(row, &masked)?;
        let (tokens, loss_mask) = masked.into_iter().unzip();
        Ok(Demonstration { tokens, loss_mask, images: Vec::new() })
    }

    /// Refuses an image after the first token to learn: positions are computed only for images before it.
    fn check_images_are_asked_about(&self, row: &Row, masked: &[(TokenId, bool)]) -> Result<(), DataError> {
        let Some(processor) = self.tokenizer.image_processor() else { return Ok(()) };
        let first_learned = masked.iter().position(|(_, is_learned)| *is_learned).unwrap_or(masked.len());
        let is_image = |(token, _): &(TokenId, bool)| *token == processor.image_token;
        if masked[first_learned..].iter().any(is_image) {
            return Err(images_error(row, images::ImageError::BehindAnswer));
        }
        Ok(())
    }

    /// Returns, for each token, whether it counts in the loss.
    fn loss_mask(&self, rendered: &RenderedChat, turns: &[Turn], encoded: &[EncodedToken]) -> Vec<bool> {
        if self.train_on == TrainOn::Everything {
            return vec![true; encoded.len()];
        }
        let marked = &rendered.generated;
        let learns_last = self.train_on == TrainOn::LastTurn;
        if !learns_last && !marked.is_empty() {
            return overlapping(encoded, marked);
        }
        let last_turn = &turns[turns.len().saturating_sub(1)..];
        if marked.is_empty() {
            return self.within_turns(encoded, if learns_last { last_turn } else { turns });
        }
        // A turn may have several tags, such as one for its text and one for its tool calls.
        let last_span = last_turn.first().map(|turn| &turn.bytes).or(marked.last());
        let start = last_span.map_or(0, |span| span.start);
        let of_last: Vec<_> = marked.iter().filter(|span| span.end > start).cloned().collect();
        overlapping(encoded, &of_last)
    }

    /// Returns the assistant's turns in the rendered conversation; none if the loss mask does not depend on
    /// turns.
    fn turns(&self, row: &Row, messages: &[Value], rendered: &RenderedChat) -> Result<Vec<Turn>, DataError> {
        let are_needed = match self.train_on {
            TrainOn::Assistant => rendered.generated.is_empty(),
            TrainOn::LastTurn => true,
            TrainOn::Everything => false,
        };
        let template = RowTemplate { tokenizer: self.tokenizer, row };
        let mut turns = Vec::new();
        for (message_idx, message) in messages.iter().enumerate().filter(|_| are_needed) {
            if turns::is_of_assistant(message) {
                turns.extend(turns::turn(&template, messages, message_idx, &rendered.text)?);
            }
        }
        Ok(turns)
    }

    /// Returns the token that ends the last turn, if the template writes that token only before a next
    /// message.
    fn closing(
        &self,
        row: &Row,
        messages: &[Value],
        turns: &[Turn],
        encoded: &[EncodedToken],
    ) -> Option<TokenId> {
        let is_open = turns.last().is_some_and(|turn| ends::is_open(self.tokenizer, encoded, turn));
        let template = RowTemplate { tokenizer: self.tokenizer, row };
        if is_open { ends::closing(&template, self.tokenizer, messages) } else { None }
    }

    /// Marks the tokens of each turn, up to the token that ends it.
    fn within_turns(&self, encoded: &[EncodedToken], turns: &[Turn]) -> Vec<bool> {
        let mut mask = vec![false; encoded.len()];
        for turn in turns {
            mask[ends::learned(self.tokenizer, encoded, turn)].fill(true);
        }
        mask
    }

    fn fit(&self, row: &Row, mut whole: Demonstration) -> Result<Fitted<Demonstration>, DataError> {
        let (num_tokens, max_tokens) = (whole.tokens.len(), self.max_tokens);
        if num_tokens <= max_tokens {
            return Ok(Fitted::Whole(whole));
        }
        match self.overlong {
            OverlongPrompts::Filter => return Ok(Fitted::TooLong),
            OverlongPrompts::Error => {
                let num_image_tokens = num_image_tokens(self.tokenizer, &whole.images);
                let location = row.location.clone();
                return Err(DataError::TooLong { location, num_tokens, num_image_tokens, max_tokens });
            }
            // An image cannot be truncated.
            _ if !whole.images.is_empty() => return Ok(Fitted::TooLong),
            OverlongPrompts::TruncateLeft => {
                whole.tokens.drain(..num_tokens - max_tokens);
                whole.loss_mask.drain(..num_tokens - max_tokens);
                whole.loss_mask.iter_mut().take(1).for_each(|first| *first = false);
            }
            OverlongPrompts::TruncateRight => {
                whole.tokens.truncate(max_tokens);
                whole.loss_mask.truncate(max_tokens);
            }
        }
        Ok(Fitted::Truncated(whole))
    }
}

/// Marks the tokens that have a byte within a span, as transformers does for `{% generation %}` tags.
fn overlapping(encoded: &[EncodedToken], spans: &[Range<usize>]) -> Vec<bool> {
    let overlaps =
        |bytes: &Range<usize>| spans.iter().any(|span| bytes.start < span.end && bytes.end > span.start);
    encoded.iter().map(|(_, bytes)| overlaps(bytes)).collect()
}

/// The chat template with the tools of a row.
pub(super) struct RowTemplate<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) row: &'a Row,
}

impl RenderMessages for RowTemplate<'_> {
    type Error = DataError;

    fn render(&self, messages: &[Value], add_generation_prompt: bool) -> Result<String, DataError> {
        render_messages(self.tokenizer, self.row, messages, add_generation_prompt)
    }
}
