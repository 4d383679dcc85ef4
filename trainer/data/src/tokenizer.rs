//! Converts text to tokens and back, and conversations to text, as a model's Hugging Face folder defines.
//!
//! ```text
//! folder | alphabet -> Tokenizer -> encode, decode
//! messages -> ChatTemplate -> text -> encode_rendered
//! ```
//! Tokens equal those of transformers' `AutoTokenizer` on the same folder. Readers of rows apply the limits
//! of tokens; this module does not use tensors.

mod characters;
mod chat;
mod clock;
mod definition;
mod error;
mod folder;
#[cfg(test)]
mod parity_tests;
mod refused;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use rlt_api::spec::VisionSpec;
use rlt_core::engine::{DetokenizeError, Detokenizer};
use rlt_core::types::TokenId;
use rlt_models::{VISION_TOKENS, VisionTokens};
use rlt_terminal::panics;
use serde_json::{Map, Value, json};

pub use chat::{ChatError, ChatRequest, ChatTemplate, RenderedChat};
pub use error::TokenizerError;

use crate::images::ImageProcessor;

/// Special tokens that chat templates and stopping depend on, by role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Token that begins a sequence.
    pub bos: Option<String>,
    /// Token that ends a sequence.
    pub eos: Option<String>,
    /// Token that pads batches. Batches here are packed and never padded.
    pub pad: Option<String>,
    /// Token for text outside the vocabulary.
    pub unk: Option<String>,
    /// Further special tokens by the name of their field, such as `image_token`, for chat templates.
    pub named: BTreeMap<String, String>,
}

/// A tokenizer with its stop tokens, its chat template and its image processor. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    /// Maximum length in bytes of a text to encode, which bounds the memory of the normalized text.
    max_text_bytes: usize,
    special: SpecialTokens,
    eos_ids: Vec<TokenId>,
    chat: Option<Arc<ChatTemplate>>,
    conversations: Arc<ConversationDefaults>,
    images: Option<Arc<ImageProcessor>>,
    origin: Origin,
}

/// Defaults of rendered conversations.
#[derive(Clone, Debug, Default)]
pub struct ConversationDefaults {
    /// System message of a conversation that does not begin with one.
    pub system_prompt: Option<String>,
    /// Variables of the chat template.
    pub variables: Map<String, Value>,
}

/// Origin of a tokenizer.
#[derive(Clone, Debug)]
enum Origin {
    /// Files of a folder, possibly with another chat template.
    Folder { dir: PathBuf, replaced_template: bool },
    /// Characters of an alphabet.
    Memory,
}

impl Tokenizer {
    /// Encodes `text` with the special tokens that the folder adds to plain text (most families: a leading
    /// `bos`), as `tokenizer(text)` of transformers does.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`].
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_with(text, true)
    }

    /// Encodes `text` without adding special tokens: for text in which a chat template has written them, and
    /// for completions.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`].
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_with(text, false)
    }

    /// Encodes rendered text; each token has its byte range in `text`. Ranges are ascending.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`].
    pub fn encode_with_offsets(&self, text: &str) -> Result<Vec<(TokenId, Range<usize>)>, TokenizerError> {
        self.check_length(text)?;
        let encoded = guarded(|| self.inner.encode(text, false));
        let encoded = encoded.map_err(|message| encode_error(text, message))?;
        let ranges = encoded.get_offsets().iter().map(|&(start, end)| start..end);
        Ok(encoded.get_ids().iter().copied().zip(ranges).collect())
    }

    fn check_length(&self, text: &str) -> Result<(), TokenizerError> {
        let max = self.max_text_bytes;
        match text.len() > max {
            true => Err(encode_error(text, format!("expected at most {max} bytes, as it may become longer"))),
            false => Ok(()),
        }
    }

    fn encode_with(&self, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>, TokenizerError> {
        self.check_length(text)?;
        let encoded = guarded(|| self.inner.encode_fast(text, add_special_tokens));
        encoded.map(|encoding| encoding.get_ids().to_vec()).map_err(|message| encode_error(text, message))
    }

    /// Decodes `tokens` without special tokens; spaces are never "cleaned up".
    ///
    /// # Errors
    /// [`TokenizerError::Decode`].
    pub fn decode(&self, tokens: &[TokenId]) -> Result<String, TokenizerError> {
        self.decode_with(tokens, true)
    }

    /// Decodes `tokens` with special tokens written out, for display.
    ///
    /// # Errors
    /// [`TokenizerError::Decode`].
    pub fn decode_verbatim(&self, tokens: &[TokenId]) -> Result<String, TokenizerError> {
        self.decode_with(tokens, false)
    }

    fn decode_with(&self, tokens: &[TokenId], skip_special_tokens: bool) -> Result<String, TokenizerError> {
        let decoded = guarded(|| self.inner.decode(tokens, skip_special_tokens));
        decoded.map_err(|message| TokenizerError::Decode { num_tokens: tokens.len(), message })
    }

    /// Renders a conversation with the model's chat template.
    ///
    /// # Errors
    /// [`TokenizerError::NoChatTemplate`], [`TokenizerError::Chat`].
    pub fn render_chat(&self, request: &ChatRequest<'_>) -> Result<String, TokenizerError> {
        self.render_chat_marked(request).map(|rendered| rendered.text)
    }

    /// Renders a conversation with the model's chat template. Returns the text with the byte ranges that `{%
    /// generation %}` tags of the template mark.
    ///
    /// # Errors
    /// [`TokenizerError::NoChatTemplate`], [`TokenizerError::Chat`].
    pub fn render_chat_marked(&self, request: &ChatRequest<'_>) -> Result<RenderedChat, TokenizerError> {
        let template = self.chat.as_ref().ok_or(TokenizerError::NoChatTemplate)?;
        let messages = self.conversation(request.messages);
        let mut variables = self.conversations.variables.clone();
        variables.extend(request.variables.cloned().unwrap_or_default());
        let request = ChatRequest { messages: &messages, variables: Some(&variables), ..*request };
        let rendered = template.render_marked(&request, &self.special);
        rendered.map_err(|error| TokenizerError::Chat(Box::new(error)))
    }

    /// Messages of a conversation, preceded by the job's system message unless they begin with one.
    pub fn conversation(&self, messages: &[Value]) -> Vec<Value> {
        let own = messages.first().is_some_and(|first| first["role"] == "system");
        let system = self.conversations.system_prompt.iter().filter(|_| !own);
        let system = system.map(|text| json!({ "role": "system", "content": text }));
        system.chain(messages.iter().cloned()).collect()
    }

    /// Sets the system message and the template variables of the job (`data.systemPrompt`,
    /// `data.templateVariables`).
    pub fn with_conversation_defaults(self, defaults: ConversationDefaults) -> Self {
        Self { conversations: Arc::new(defaults), ..self }
    }

    /// Image processor of the model; `None` if the model has no vision tower.
    pub(crate) fn image_processor(&self) -> Option<&ImageProcessor> {
        self.images.as_deref()
    }

    /// Sets the image processor of a new vision tower.
    ///
    /// # Errors
    /// [`TokenizerError::MissingToken`] if the vocabulary has no image tokens.
    pub fn with_new_tower(self, tower: &VisionSpec) -> Result<Self, TokenizerError> {
        let VisionTokens([image, ..]) = self.vision_tokens()?;
        Ok(Self { images: Some(Arc::new(ImageProcessor::of_new_tower(tower, image))), ..self })
    }

    /// Ids of the tokens that mark images and their borders.
    ///
    /// # Errors
    /// [`TokenizerError::MissingToken`] with the first token that the vocabulary lacks.
    pub fn vision_tokens(&self) -> Result<VisionTokens, TokenizerError> {
        let mut ids = [0; VISION_TOKENS.len()];
        for (id, token) in ids.iter_mut().zip(VISION_TOKENS) {
            let missing = || TokenizerError::MissingToken { role: "vision", token: token.to_owned() };
            *id = self.token_id(token).ok_or_else(missing)?;
        }
        Ok(VisionTokens(ids))
    }

    /// Whether a system prompt is set, so that a plain text prompt becomes a conversation.
    pub fn has_system_prompt(&self) -> bool {
        self.conversations.system_prompt.is_some()
    }

    /// Replaces the chat template (`model.chatTemplate`).
    ///
    /// # Errors
    /// [`TokenizerError::Chat`] when the template cannot be compiled.
    pub fn with_chat_template(mut self, source: &str) -> Result<Self, TokenizerError> {
        let template = ChatTemplate::new(source).map_err(|error| TokenizerError::Chat(Box::new(error)))?;
        self.chat = Some(Arc::new(template));
        if let Origin::Folder { replaced_template, .. } = &mut self.origin {
            *replaced_template = true;
        }
        Ok(self)
    }

    /// Whether conversations can be rendered.
    pub fn has_chat_template(&self) -> bool {
        self.chat.is_some()
    }

    /// Stop tokens of completions, at least one: the tokenizer's `eos_token` first, then those of
    /// `generation_config.json`.
    pub fn eos_ids(&self) -> &[TokenId] {
        &self.eos_ids
    }

    /// Id of the beginning-of-sequence token.
    pub fn bos_id(&self) -> Option<TokenId> {
        self.special.bos.as_deref().and_then(|token| self.token_id(token))
    }

    /// Id of the padding token, which other programs use.
    pub fn pad_id(&self) -> Option<TokenId> {
        self.special.pad.as_deref().and_then(|token| self.token_id(token))
    }

    /// Special tokens by role.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }

    /// Id of a token by its exact text.
    pub fn token_id(&self, token: &str) -> Option<TokenId> {
        self.inner.token_to_id(token)
    }

    /// Whether a token is special, so that decoding without special tokens drops it. The unknown token does
    /// not count as special, because it stands for a part of the text.
    pub(crate) fn is_special(&self, token: TokenId) -> bool {
        let added = self.inner.get_added_vocabulary().get_added_tokens_decoder();
        added
            .get(&token)
            .is_some_and(|token| token.special && self.special.unk.as_ref() != Some(&token.content))
    }

    /// First token, in lexicographic order, whose id differs between the two vocabularies, with its id in
    /// each; `None` for a vocabulary that lacks it.
    pub fn first_difference(&self, other: &Self) -> Option<(String, [Option<TokenId>; 2])> {
        let vocabularies = [self, other].map(|tokenizer| tokenizer.inner.get_vocab(true));
        let tokens: BTreeSet<&String> =
            vocabularies.iter().flat_map(|vocabulary| vocabulary.keys()).collect();
        let ids = |token: &str| vocabularies.each_ref().map(|vocabulary| vocabulary.get(token).copied());
        tokens.into_iter().map(|token| (token.clone(), ids(token))).find(|(_, [own, others])| own != others)
    }

    /// One more than the largest token id: the minimum number of rows of a model's embedding.
    pub fn vocab_len(&self) -> usize {
        let largest = self.inner.get_vocab(true).into_values().max();
        largest.map_or(0, |id| id as usize + 1)
    }
}

fn encode_error(text: &str, message: String) -> TokenizerError {
    TokenizerError::Encode { num_bytes: text.len(), message }
}

/// Runs `work` of the `tokenizers` library and turns a panic into a message. The library panics where a
/// search for a pattern of the tokenizer exceeds the limits of the regex library.
fn guarded<T>(work: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(panic) => Err(format!("the library panicked: {}", panics::message(&*panic))),
    }
}

impl Detokenizer for Tokenizer {
    fn decode(&self, tokens: &[TokenId]) -> Result<String, DetokenizeError> {
        Ok(Tokenizer::decode(self, tokens)?)
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = formatter.debug_struct("Tokenizer");
        debug.field("origin", &self.origin).field("special", &self.special).field("eos_ids", &self.eos_ids);
        debug.finish_non_exhaustive()
    }
}
