//! Placeholders of images: `<image>` in a message's text becomes a part of type image, which the chat
//! template writes as one token. That token is then repeated, once per image token that the model expects.

use rlt_core::images::PromptImage;
use rlt_core::types::TokenId;
use serde_json::{Value, json};

use super::{ImageError, ImageProcessor};

/// Placeholder of an image in a text, the same as verl's.
const PLACEHOLDER: &str = "<image>";

/// Replaces the placeholders in the messages' texts by parts of type image.
///
/// # Errors
/// [`ImageError::Count`] unless there are `images` placeholders.
pub(crate) fn split(messages: &[Value], images: usize) -> Result<Vec<Value>, ImageError> {
    let messages: Vec<Value> = messages.iter().map(with_parts).collect();
    let parts = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let placeholders = parts.filter(|part| part["type"] == "image").count();
    if placeholders == images { Ok(messages) } else { Err(ImageError::Count { images, placeholders }) }
}

/// Whether a prompt, a text or a list of messages, contains a placeholder or an image part.
pub(crate) fn is_in(prompt: &Value) -> bool {
    match prompt {
        Value::String(text) => text.contains(PLACEHOLDER),
        Value::Array(items) => items.iter().any(|item| item["type"] == "image" || is_in(item)),
        Value::Object(message) => ["content", "text"].iter().filter_map(|key| message.get(*key)).any(is_in),
        _ => false,
    }
}

fn with_parts(message: &Value) -> Value {
    let mut message = message.clone();
    let parts = match &message["content"] {
        Value::String(text) if text.contains(PLACEHOLDER) => text_parts(text),
        Value::Array(parts) => parts
            .iter()
            .flat_map(|part| match part["text"].as_str() {
                Some(text) if text.contains(PLACEHOLDER) => text_parts(text),
                _ => vec![part.clone()],
            })
            .collect(),
        _ => return message,
    };
    message["content"] = parts.into();
    message
}

fn text_parts(text: &str) -> Vec<Value> {
    let mut parts = Vec::new();
    for (idx, piece) in text.split(PLACEHOLDER).enumerate() {
        if idx > 0 {
            parts.push(json!({ "type": "image" }));
        }
        if !piece.is_empty() {
            parts.push(json!({ "type": "text", "text": piece }));
        }
    }
    parts
}

/// Repeats the image token of each image as often as the image has tokens. Each token carries a value, such
/// as its loss mask, which is repeated with it.
///
/// # Errors
/// [`ImageError::Count`] unless there is one such token for each image: a text may contain it, too.
pub(crate) fn expand<T: Clone>(
    tokens: Vec<(TokenId, T)>,
    images: &[PromptImage],
    processor: &ImageProcessor,
) -> Result<Vec<(TokenId, T)>, ImageError> {
    let placeholders = tokens.iter().filter(|(token, _)| *token == processor.image_token).count();
    if placeholders != images.len() {
        return Err(ImageError::Count { images: images.len(), placeholders });
    }
    let mut pieces = images.iter().map(|image| processor.num_tokens(image));
    let repeated = tokens.into_iter().flat_map(|token| {
        let times = if token.0 == processor.image_token { pieces.next().unwrap_or_default() } else { 1 };
        std::iter::repeat_n(token, times)
    });
    Ok(repeated.collect())
}
