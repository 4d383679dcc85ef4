//! Finds the byte range of each turn of the assistant in a rendered conversation.
//!
//! Most templates extend their text: the text of a conversation begins with that of its first messages, so a
//! turn is the text that the template adds for it. Other templates rewrite earlier turns once later ones
//! follow: Qwen3 drops their thoughts. For these, a turn is the text of the full conversation that changes
//! when the content of its message changes.

pub(super) mod ends;

use std::ops::Range;

use serde_json::{Value, json};

/// Content that no message has: a character of the private use area, with which no text begins or ends.
const OTHER_CONTENT: &str = "\u{e000}";

/// A chat template that renders the first messages of a conversation.
pub(super) trait RenderMessages {
    type Error;

    /// Renders `messages`, with the assistant's next turn opened if `add_generation_prompt` is set.
    fn render(&self, messages: &[Value], add_generation_prompt: bool) -> Result<String, Self::Error>;
}

/// A turn of the assistant in the text of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Turn {
    /// Byte range of the turn in the text. It ends where the text of the conversation without the following
    /// messages ends or begins to differ. That may be within a token whose beginning both texts share.
    pub(super) bytes: Range<usize>,
    /// Byte index after the content of the message, where the end of the turn begins; the end of `bytes` if
    /// the template only extends its text.
    pub(super) content_end: usize,
    /// Whether the assistant wrote the next message, too, so that the token that opens it ends no turn.
    pub(super) continues: bool,
}

/// Returns whether the assistant wrote `message`.
pub(super) fn is_of_assistant(message: &Value) -> bool {
    message.get("role").and_then(Value::as_str) == Some("assistant")
}

/// Returns the turn of message `message_idx` in `text`, the rendered conversation; `None` if the text does
/// not show the message.
///
/// # Errors
/// Those of the template.
pub(super) fn turn<R: RenderMessages>(
    template: &R,
    messages: &[Value],
    message_idx: usize,
    text: &str,
) -> Result<Option<Turn>, R::Error> {
    let before = template.render(&messages[..message_idx], true)?;
    let after = template.render(&messages[..=message_idx], false)?;
    let continues = messages.get(message_idx + 1).is_some_and(is_of_assistant);
    if after.starts_with(&before) && text.starts_with(&after) {
        let bytes = before.len()..after.len();
        return Ok(Some(Turn { bytes, content_end: after.len(), continues }));
    }
    let Some(printed) = printed(template, messages, message_idx, text)? else { return Ok(None) };
    // The turn begins after the generation prompt, so that it includes thoughts before the content.
    let opened = opened(template, &messages[..message_idx], &before, text);
    let start = opened.filter(|start| *start <= printed.start).unwrap_or(printed.start);
    // The turn includes what the template writes after the content, such as tool calls and the end of the
    // turn, as far as it is the same when no message follows.
    let alone = self::printed(template, &messages[..=message_idx], message_idx, &after)?;
    let ending = alone.map_or("", |alone| &after[alone.end..]);
    let end = printed.end + common_prefix(&text[printed.end..], ending);
    Ok(Some(Turn { bytes: start..end, content_end: printed.end, continues }))
}

/// Returns the byte index of `text` after the generation prompt, with which `before`, the rendered first
/// messages, ends; `None` if `text` has nothing of the generation prompt. `text` may have only a part of it:
/// Nemotron's prompt opens a thought with a line break, and a turn without a thought closes it at once.
fn opened<R: RenderMessages>(template: &R, first: &[Value], before: &str, text: &str) -> Option<usize> {
    if text.starts_with(before) {
        return Some(before.len());
    }
    // A tag or line counts as shared only if it is the same as a whole: `<think>` and `<tool_call>` share
    // `<t`.
    let common = &text[..common_prefix(before, text)];
    let shared = common.rfind(['>', '\n']).map_or(0, |last| last + 1);
    let closed = template.render(first, false).ok()?;
    (shared > common_prefix(before, &closed)).then_some(shared)
}

/// Returns the byte range of `text` that changes when the content of a message changes.
fn printed<R: RenderMessages>(
    template: &R,
    messages: &[Value],
    message_idx: usize,
    text: &str,
) -> Result<Option<Range<usize>>, R::Error> {
    let other = template.render(&with_other_content(messages, message_idx), false)?;
    Ok(difference(text, &other))
}

/// Returns the messages with other content in one of them. Its tool calls stay, because messages with their
/// results may follow.
fn with_other_content(messages: &[Value], message_idx: usize) -> Vec<Value> {
    let mut messages = messages.to_vec();
    if let Some(Value::Object(message)) = messages.get_mut(message_idx) {
        message.insert("content".to_owned(), json!(OTHER_CONTENT));
    }
    messages
}

/// Returns the byte range of `text` between the prefix and the suffix that it shares with `other`; `None` for
/// equal texts.
fn difference(text: &str, other: &str) -> Option<Range<usize>> {
    if text == other {
        return None;
    }
    let start = common_prefix(text, other);
    let pairs = text[start..].chars().rev().zip(other[start..].chars().rev());
    let suffix: usize = pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum();
    Some(start..text.len() - suffix)
}

/// Returns the number of bytes of the longest common prefix.
fn common_prefix(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Renders each message by a function of the message, its index and the number of messages.
    struct Template(fn(&Value, usize, usize) -> String);

    impl RenderMessages for Template {
        type Error = Infallible;

        fn render(&self, messages: &[Value], add_generation_prompt: bool) -> Result<String, Infallible> {
            let text = messages.iter().enumerate().map(|(at, message)| self.0(message, at, messages.len()));
            let opened = if add_generation_prompt { "<assistant>" } else { "" };
            Ok(text.collect::<String>() + opened)
        }
    }

    fn turns(template: &Template, messages: &[(&str, &str)]) -> Vec<String> {
        let messages: Vec<Value> =
            messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
        let Ok(text) = template.render(&messages, false);
        let assistants = (0..messages.len()).filter(|at| is_of_assistant(&messages[*at]));
        let found = assistants.map(|at| {
            let Ok(turn) = turn(template, &messages, at, &text);
            turn.map_or("nothing".to_owned(), |turn| text[turn.bytes].to_owned())
        });
        found.collect()
    }

    fn content(message: &Value) -> &str {
        message["content"].as_str().unwrap()
    }

    const CONVERSATION: [(&str, &str); 4] =
        [("user", "a?"), ("assistant", "(why)yes"), ("user", "b?"), ("assistant", "(because)no")];

    #[test]
    fn a_turn_is_what_the_template_adds() {
        let plain = Template(|message, _, _| {
            format!("<{}>{}<end>\n", message["role"].as_str().unwrap(), content(message))
        });
        assert_eq!(turns(&plain, &CONVERSATION), ["(why)yes<end>\n", "(because)no<end>\n"]);
    }

    #[test]
    fn a_turn_whose_thoughts_are_dropped_later_is_the_text_that_is_left() {
        let dropping = Template(|message, at, count| {
            let content = content(message);
            let shown = if at + 1 < count { content.rsplit(')').next().unwrap() } else { content };
            format!("<{}>{shown}<end>\n", message["role"].as_str().unwrap())
        });
        assert_eq!(turns(&dropping, &CONVERSATION), ["yes<end>\n", "(because)no<end>\n"]);
    }

    #[test]
    fn a_turn_whose_end_depends_on_later_turns_ends_with_the_common_part() {
        let ending = Template(|message, at, count| {
            let end = if at + 1 == count { "<return>" } else { "<end>" };
            format!("<{}>{}{end}", message["role"].as_str().unwrap(), content(message))
        });
        assert_eq!(turns(&ending, &CONVERSATION), ["(why)yes<", "(because)no<return>"]);
    }

    #[test]
    fn a_turn_that_is_not_printed_is_none() {
        let last = Template(
            |message, at, count| if at + 1 == count { content(message).to_owned() } else { String::new() },
        );
        assert_eq!(turns(&last, &CONVERSATION), ["nothing", "(because)no"]);
    }
}
