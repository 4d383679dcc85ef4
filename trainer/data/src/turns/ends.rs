//! Finds the token that ends a turn of the assistant.
//!
//! Most templates write an end-of-sequence token within the turn. GLM-4's write no end: the token that opens
//! the next message ends the turn, and generation stops there. Phi-3's end each turn with `<|end|>`, and the
//! last one with an end-of-sequence token, too.

use std::ops::Range;

use rlt_core::types::TokenId;
use serde_json::{Value, json};

use super::{OTHER_CONTENT, RenderMessages, Turn, is_of_assistant, turn};
use crate::tokenizer::Tokenizer;

/// A token of a rendered text, with its byte range.
pub(crate) type EncodedToken = (TokenId, Range<usize>);

/// Returns the range of a turn's tokens that count in the loss: those up to its last end-of-sequence token.
/// What a template writes after that token, such as a line break, is not the assistant's. A turn without an
/// end-of-sequence token includes the token after it if that token ends the turn.
pub(crate) fn learned(tokenizer: &Tokenizer, encoded: &[EncodedToken], turn: &Turn) -> Range<usize> {
    let first = encoded.partition_point(|(_, bytes)| bytes.start < turn.bytes.start);
    let past = without_next_role(tokenizer, encoded, turn, first);
    let is_eos = |idx: &usize| tokenizer.eos_ids().contains(&encoded[*idx].0);
    if let Some(ending) = (first..past).rev().find(is_eos) {
        return first..ending + 1;
    }
    let is_ended = encoded
        .get(past)
        .is_some_and(|(next, _)| !turn.continues && ends_turn(tokenizer, &encoded[first..past], *next));
    first..past + usize::from(is_ended)
}

/// Returns the index after the last token of a turn. If no message follows, a template may write other text
/// after the end of the turn, so that the two texts share only the beginning of the next role's token. That
/// token belongs to the turn only if no special token ends the turn before it.
fn without_next_role(tokenizer: &Tokenizer, encoded: &[EncodedToken], turn: &Turn, first: usize) -> usize {
    let past = encoded.partition_point(|(_, bytes)| bytes.start < turn.bytes.end);
    let Some(last) = past.checked_sub(1).filter(|last| *last > first) else { return past };
    let is_common = encoded[last].1.end <= turn.bytes.end;
    let is_end =
        |(token, bytes): &EncodedToken| bytes.start >= turn.content_end && tokenizer.is_special(*token);
    if is_common || !encoded[first..last].iter().any(is_end) { past } else { last }
}

/// Returns whether `next`, the first token after the tokens of a turn, ends the turn: it is a stop token, or
/// the turn has no special token and `next` is one, such as that of the next role.
fn ends_turn(tokenizer: &Tokenizer, turn: &[EncodedToken], next: TokenId) -> bool {
    let is_first = || !turn.iter().any(|(token, _)| tokenizer.is_special(*token));
    let is_role = tokenizer.is_special(next) && tokenizer.bos_id() != Some(next);
    tokenizer.eos_ids().contains(&next) || is_role && is_first()
}

/// Returns whether the last token of `encoded` is learned but does not end the turn. [`closing`] may then
/// return the token that does.
pub(crate) fn is_open(tokenizer: &Tokenizer, encoded: &[EncodedToken], turn: &Turn) -> bool {
    let learned = learned(tokenizer, encoded, turn);
    let last = encoded.last().filter(|_| learned.end == encoded.len());
    last.is_some_and(|(token, _)| !tokenizer.eos_ids().contains(token))
}

/// Returns the token that ends the assistant's turn at the end of a conversation, for a template that writes
/// that token only before a next message. `None` if the turn has an end already, or if the template refuses a
/// next message.
pub(crate) fn closing<R: RenderMessages>(
    template: &R,
    tokenizer: &Tokenizer,
    messages: &[Value],
) -> Option<TokenId> {
    let last = messages.last().filter(|message| is_of_assistant(message))?;
    let followed = [messages, &[next_message(last)]].concat();
    let text = template.render(&followed, false).ok()?;
    let turn = turn(template, &followed, messages.len() - 1, &text).ok()??;
    let encoded = tokenizer.encode_with_offsets(&text).ok()?;
    let (token, bytes) = encoded.get(learned(tokenizer, &encoded, &turn).end.checked_sub(1)?)?;
    (bytes.start >= turn.bytes.end).then_some(*token)
}

/// Returns a message that may follow a message of the assistant: the result of its tool call, or the user's.
fn next_message(message: &Value) -> Value {
    let calls = message.get("tool_calls").and_then(Value::as_array);
    match calls.and_then(|calls| calls.first()) {
        None => json!({ "role": "user", "content": OTHER_CONTENT }),
        Some(call) => {
            let name = call.pointer("/function/name").unwrap_or(&Value::Null);
            let id = call.get("id").unwrap_or(&Value::Null);
            json!({ "role": "tool", "content": OTHER_CONTENT, "name": name, "tool_call_id": id })
        }
    }
}
