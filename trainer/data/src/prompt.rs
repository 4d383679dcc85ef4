//! Reads one row as a tokenized prompt.

use std::sync::Arc;

use rlt_api::spec::{DataSpec, OverlongPrompts, TaskSpec};
use rlt_core::images::PromptImage;
use rlt_core::types::{Prompt, TokenId};
use serde_json::{Value, json};

use super::integers::LargeIntegers;
use super::rows::Row;
use super::{DataError, Fitted, images};
use crate::tokenizer::{ChatRequest, RenderedChat, Tokenizer, TokenizerError};

/// `data_source` of a row if neither the row nor its data set names one.
const UNNAMED_SOURCE: &str = "default";

/// Columns that may hold the ground truth if the manifest names none: verl's, then TRL's.
const GROUND_TRUTHS: [&str; 4] = ["reward_model.ground_truth", "ground_truth", "answer", "solution"];

/// Reader of prompts as `spec.data` describes them.
pub(super) struct PromptReader<'a> {
    spec: &'a DataSpec,
    prompt_key: &'a str,
    max_tokens: usize,
    overlong: OverlongPrompts,
    tokenizer: &'a Tokenizer,
}

/// A prompt as text, before tokenization.
pub(super) struct Rendered {
    pub(super) text: String,
    /// Whether a chat template has already written the special tokens.
    pub(super) is_chat: bool,
    /// Messages given to the chat template, including the job's system message; null for plain text.
    pub(super) messages: Value,
}

/// Returns the name of the prompt column, which is fixed for generated tasks.
pub(super) fn prompt_key(spec: &DataSpec) -> &str {
    match &spec.task {
        Some(TaskSpec { .. }) => "prompt",
        None => &spec.prompt_key,
    }
}

/// Returns the name of the image column, which is fixed for generated tasks.
pub(super) fn images_key(spec: &DataSpec) -> &str {
    match &spec.task {
        Some(TaskSpec { .. }) => "images",
        None => &spec.images_key,
    }
}

/// Returns the image column, with the folders that its paths may lead into.
pub(super) fn image_column(spec: &DataSpec) -> images::ImageColumn<'_> {
    images::ImageColumn { key: images_key(spec), folders: &spec.image_folders }
}

impl<'a> PromptReader<'a> {
    pub(super) fn new(spec: &'a DataSpec, tokenizer: &'a Tokenizer) -> Self {
        let max_tokens = spec.max_prompt_tokens as usize;
        Self { spec, prompt_key: prompt_key(spec), max_tokens, overlong: spec.overlong_prompts, tokenizer }
    }

    pub(super) fn read(&self, row_idx: u64, row: &Row) -> Result<Fitted<Prompt>, DataError> {
        let images = images::read(row, image_column(self.spec), self.tokenizer.image_processor())?;
        let rendered = self.render(row, images.len())?;
        let tokens = encode(self.tokenizer, &rendered).map_err(|source| tokenize_error(row, source))?;
        let tokens = self.place_images(row, tokens, &images)?;
        // A beginning-of-sequence token alone is no prompt.
        if tokens.is_empty() || rendered.text.is_empty() {
            return Err(DataError::EmptyPrompt { location: row.location.clone() });
        }
        let prompt = Prompt {
            row_idx,
            tokens,
            text: rendered.text,
            messages: rendered.messages,
            data_source: data_source(row, self.spec)?,
            ground_truth: ground_truth(row, self.spec)?,
            extra_info: row.optional("extra_info").cloned().unwrap_or(Value::Null),
            images: images.into_iter().map(Arc::new).collect(),
        };
        self.fit(row, prompt)
    }

    /// Repeats the image token of each image; returns the tokens of a text model unchanged.
    fn place_images(
        &self,
        row: &Row,
        tokens: Vec<TokenId>,
        images: &[PromptImage],
    ) -> Result<Vec<TokenId>, DataError> {
        let tokens = tokens.into_iter().map(|token| (token, ())).collect();
        let placed = place_images(self.tokenizer, row, tokens, images)?;
        Ok(placed.into_iter().map(|(token, ())| token).collect())
    }

    /// Renders the prompt column or, without it, the conversation up to the assistant's last turn, with
    /// placeholders for `num_images` images.
    fn render(&self, row: &Row, num_images: usize) -> Result<Rendered, DataError> {
        if num_images > 0 || self.has_placeholder(row) {
            return self.render_with_images(row, num_images);
        }
        let column = &self.spec.messages_key;
        let (None, Some(conversation)) = (row.optional(self.prompt_key), row.optional(column)) else {
            return render(self.tokenizer, row, self.prompt_key);
        };
        let expected = "a list of chat messages";
        let messages =
            conversation.as_array().ok_or_else(|| row.wrong_type(column, conversation, expected))?;
        let is_answer = messages.last().is_some_and(|last| last["role"] == "assistant");
        let asked = &messages[..messages.len() - usize::from(is_answer)];
        check_messages(row, column, asked)?;
        let text = render_messages(self.tokenizer, row, asked, true)?;
        Ok(Rendered { text, is_chat: true, messages: self.tokenizer.conversation(asked).into() })
    }

    /// Whether the row's prompt has an image placeholder and the model reads images. Such a row is refused if
    /// it has no images.
    fn has_placeholder(&self, row: &Row) -> bool {
        let prompt = row.optional(self.prompt_key).or_else(|| row.optional(&self.spec.messages_key));
        self.tokenizer.image_processor().is_some() && prompt.is_some_and(images::placeholders::is_in)
    }

    /// Renders a prompt with images. A text becomes a user's message, because the chat template writes the
    /// image tokens.
    fn render_with_images(&self, row: &Row, num_images: usize) -> Result<Rendered, DataError> {
        let column = match row.optional(self.prompt_key) {
            Some(_) => self.prompt_key,
            None => &self.spec.messages_key,
        };
        let messages = match row.column(column)? {
            Value::String(text) => vec![json!({ "role": "user", "content": text })],
            Value::Array(messages) => messages.clone(),
            other => return Err(row.wrong_type(column, other, "a text or a list of chat messages")),
        };
        let is_answer = messages.last().is_some_and(|last| last["role"] == "assistant");
        let asked = &messages[..messages.len() - usize::from(is_answer)];
        check_messages(row, column, asked)?;
        let asked =
            images::placeholders::split(asked, num_images).map_err(|source| images_error(row, source))?;
        let text = render_messages(self.tokenizer, row, &asked, true)?;
        Ok(Rendered { text, is_chat: true, messages: self.tokenizer.conversation(&asked).into() })
    }

    fn fit(&self, row: &Row, prompt: Prompt) -> Result<Fitted<Prompt>, DataError> {
        let (num_tokens, max_tokens) = (prompt.tokens.len(), self.max_tokens);
        if num_tokens <= max_tokens {
            return Ok(Fitted::Whole(prompt));
        }
        let location = row.location.clone();
        let is_left = match self.overlong {
            OverlongPrompts::Filter => return Ok(Fitted::TooLong),
            OverlongPrompts::Error => {
                let num_image_tokens = num_image_tokens(self.tokenizer, &prompt.images);
                return Err(DataError::TooLong { location, num_tokens, num_image_tokens, max_tokens });
            }
            // An image cannot be truncated.
            _ if !prompt.images.is_empty() => return Ok(Fitted::TooLong),
            OverlongPrompts::TruncateLeft => true,
            OverlongPrompts::TruncateRight => false,
        };
        Ok(Fitted::Truncated(truncated(self.tokenizer, row, prompt, max_tokens, is_left)?))
    }
}

/// Truncates a longer prompt to its last (`is_left`) or first `max_tokens` tokens.
pub(super) fn truncated(
    tokenizer: &Tokenizer,
    row: &Row,
    mut prompt: Prompt,
    max_tokens: usize,
    is_left: bool,
) -> Result<Prompt, DataError> {
    if is_left {
        prompt.tokens.drain(..prompt.tokens.len() - max_tokens);
    } else {
        prompt.tokens.truncate(max_tokens);
    }
    prompt.text = tokenizer.decode_verbatim(&prompt.tokens).map_err(|source| tokenize_error(row, source))?;
    Ok(prompt)
}

/// Renders the prompt column: a string without a system prompt is used unchanged; messages are rendered by
/// the chat template with the assistant's turn opened.
pub(super) fn render(tokenizer: &Tokenizer, row: &Row, column: &str) -> Result<Rendered, DataError> {
    match row.column(column)? {
        Value::String(text) if tokenizer.has_system_prompt() => {
            let messages = [json!({ "role": "user", "content": text })];
            let text = render_messages(tokenizer, row, &messages, true)?;
            Ok(Rendered { text, is_chat: true, messages: tokenizer.conversation(&messages).into() })
        }
        Value::String(text) => Ok(Rendered { text: text.clone(), is_chat: false, messages: Value::Null }),
        Value::Array(messages) => {
            check_messages(row, column, messages)?;
            let text = render_messages(tokenizer, row, messages, true)?;
            Ok(Rendered { text, is_chat: true, messages: tokenizer.conversation(messages).into() })
        }
        other => Err(row.wrong_type(column, other, "a text or a list of chat messages")),
    }
}

pub(super) fn encode(tokenizer: &Tokenizer, rendered: &Rendered) -> Result<Vec<u32>, TokenizerError> {
    let tokens = if rendered.is_chat {
        tokenizer.encode_rendered(&rendered.text)
    } else {
        tokenizer.encode(&rendered.text)
    }?;
    tokenizer.check_alphabet(&rendered.text, &tokens)?;
    Ok(tokens)
}

/// Expected form of a message, for rows of ShareGPT, whose fields and roles have other names.
const OF_SHAREGPT: &str = "a chat message with `role` and `content`; in rows of ShareGPT rename \
    `from` and `value`, and write the roles `human` as `user` and `gpt` as `assistant`";

pub(super) fn check_messages(row: &Row, column: &str, messages: &[Value]) -> Result<(), DataError> {
    let is_message = |message: &Value| message.get("role").is_some_and(Value::is_string);
    match messages.iter().find(|message| !is_message(message)) {
        Some(message) if message.get("from").is_some() => Err(row.wrong_type(column, message, OF_SHAREGPT)),
        Some(message) => Err(row.wrong_type(column, message, "a chat message with a role")),
        None if messages.is_empty() => {
            Err(row.wrong_type(column, &Value::Array(Vec::new()), "at least one chat message"))
        }
        None => Ok(()),
    }
}

/// Renders messages as text; the `tools` column (a list of JSON schemas, or its JSON text) is given to the
/// template.
pub(super) fn render_messages(
    tokenizer: &Tokenizer,
    row: &Row,
    messages: &[Value],
    add_generation_prompt: bool,
) -> Result<String, DataError> {
    render_marked(tokenizer, row, messages, add_generation_prompt).map(|rendered| rendered.text)
}

/// Renders messages as [`render_messages`] does. Returns the text with the byte ranges that the template
/// marks as generated.
pub(super) fn render_marked(
    tokenizer: &Tokenizer,
    row: &Row,
    messages: &[Value],
    add_generation_prompt: bool,
) -> Result<RenderedChat, DataError> {
    let tools = tools(row)?;
    let request = ChatRequest { messages, tools: tools.as_deref(), add_generation_prompt, variables: None };
    tokenizer.render_chat_marked(&request).map_err(|source| tokenize_error(row, source))
}

fn tools(row: &Row) -> Result<Option<Vec<Value>>, DataError> {
    let expected = "a list of tool schemas";
    match row.optional("tools") {
        None => Ok(None),
        Some(Value::Array(tools)) => Ok(Some(tools.clone())),
        Some(text @ Value::String(json)) => {
            let tools: Vec<Value> =
                serde_json::from_str(json).map_err(|_| row.wrong_type("tools", text, expected))?;
            let large = LargeIntegers::of(json);
            tools.iter().try_for_each(|tool| large.check(&row.location, "tools", tool))?;
            Ok(Some(tools))
        }
        Some(other) => Err(row.wrong_type("tools", other, expected)),
    }
}

/// Repeats the image token of each image, each token with its value; returns the tokens of a text model
/// unchanged.
pub(super) fn place_images<T: Clone>(
    tokenizer: &Tokenizer,
    row: &Row,
    tokens: Vec<(TokenId, T)>,
    images: &[PromptImage],
) -> Result<Vec<(TokenId, T)>, DataError> {
    match tokenizer.image_processor() {
        None => Ok(tokens),
        Some(processor) => {
            let placed = images::placeholders::expand(tokens, images, processor);
            placed.map_err(|source| images_error(row, source))
        }
    }
}

/// Number of image tokens of a row.
pub(super) fn num_image_tokens(tokenizer: &Tokenizer, images: &[Arc<PromptImage>]) -> usize {
    let of_image = |image: &Arc<PromptImage>| {
        tokenizer.image_processor().map_or(0, |processor| processor.num_tokens(image))
    };
    images.iter().map(of_image).sum()
}

pub(super) fn images_error(row: &Row, source: images::ImageError) -> DataError {
    DataError::Images { location: row.location.clone(), source }
}

pub(super) fn tokenize_error(row: &Row, source: TokenizerError) -> DataError {
    DataError::Tokenize { location: row.location.clone(), source }
}

/// Data source of a row, from the column that `spec.data.dataSourceKey` names.
pub(super) fn data_source(row: &Row, spec: &DataSpec) -> Result<String, DataError> {
    let key = &spec.data_source_key;
    match row.at(key) {
        None => {
            let of_set = spec.datasets.first().and_then(|set| set.data_source.as_deref());
            Ok(of_set.unwrap_or(UNNAMED_SOURCE).to_owned())
        }
        Some(Value::String(source)) => Ok(source.clone()),
        Some(other) => Err(row.wrong_type(key, other, "a text")),
    }
}

/// Ground truth of a row, from the column that `spec.data.groundTruthKey` names, or the first of verl's and
/// TRL's columns.
pub(super) fn ground_truth(row: &Row, spec: &DataSpec) -> Result<Value, DataError> {
    let Some(key) = spec.ground_truth_key.as_ref().filter(|_| spec.task.is_none()) else {
        if let Some(other) = row.optional("reward_model").filter(|value| !value.is_object()) {
            return Err(row.wrong_type("reward_model", other, "an object with ground_truth"));
        }
        return Ok(GROUND_TRUTHS.iter().find_map(|key| row.at(key)).cloned().unwrap_or(Value::Null));
    };
    row.at(key).cloned().ok_or_else(|| row.missing(key))
}
