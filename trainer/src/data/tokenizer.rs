//! Text to tokens and back, and conversations to text, as a model's Hugging Face folder says.
//!
//! ```text
//! folder | alphabet -> Tokenizer -> encode, decode
//! messages -> ChatTemplate -> text -> encode_rendered
//! ```
//! Tokens equal those of transformers' `AutoTokenizer` on the same folder. Datasets and token budgets live in
//! `data`; nothing here knows a tensor.

mod characters;
mod chat;
mod folder;
#[cfg(test)]
mod parity_tests;
mod python;

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use rlt_api::ExitCode;
use rlt_api::plan::model_config::{VISION_TOKENS, VisionTokens};
use rlt_api::spec::VisionSpec;
use rlt_core::engine::{DetokenizeError, Detokenizer};
use rlt_core::types::TokenId;
use serde_json::{Map, Value, json};

pub use chat::{ChatError, ChatRequest, ChatTemplate};

use crate::data::images::{ImageError, ImageProcessor};

/// The names of the special tokens that chat templates and stopping depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begins a sequence.
    pub bos: Option<String>,
    /// Ends a sequence.
    pub eos: Option<String>,
    /// Fills batches elsewhere; batches here are packed and never filled.
    pub pad: Option<String>,
    /// Stands for text outside the vocabulary.
    pub unk: Option<String>,
}

/// A tokenizer with everything that its folder says about stopping and conversations. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<tokenizers::Tokenizer>,
    special: SpecialTokens,
    eos_ids: Vec<TokenId>,
    chat: Option<Arc<ChatTemplate>>,
    conversations: Arc<ConversationDefaults>,
    images: Option<Arc<ImageProcessor>>,
    origin: Origin,
}

/// What conversations are rendered with unless they say otherwise.
#[derive(Clone, Debug, Default)]
pub struct ConversationDefaults {
    /// The system message of a conversation that begins with none.
    pub system_prompt: Option<String>,
    /// Variables of the chat template.
    pub variables: Map<String, Value>,
}

/// Where the files behind a tokenizer are.
#[derive(Clone, Debug)]
enum Origin {
    /// Files of this folder; a chat template given afterwards replaces theirs.
    Folder { dir: PathBuf, replaced_template: bool },
    /// Built from an alphabet.
    Memory,
}

/// Why a tokenizer cannot be loaded, built, used or saved.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file of the folder is missing or unreadable.
    #[error("read tokenizer file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file is not JSON, or not the JSON it should be.
    #[error("parse tokenizer file {}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// `tokenizer.json` holds something that the `tokenizers` library refuses.
    #[error("build the tokenizer of {}: {message}", path.display())]
    Definition {
        /// The file, or `alphabet` for one built in memory.
        path: PathBuf,
        /// The library's complaint.
        message: String,
    },
    /// The folder has a vision tower and no usable image processor.
    #[error(transparent)]
    Images(#[from] Box<ImageError>),
    /// The alphabet cannot be one.
    #[error("build a character tokenizer: {message}")]
    Alphabet {
        /// What is wrong with it.
        message: String,
    },
    /// A special token is named but not in the vocabulary.
    #[error("find the {role} token {token:?} in the vocabulary: it is not there")]
    MissingToken {
        /// Which one.
        role: &'static str,
        /// Its text.
        token: String,
    },
    /// No end-of-sequence token is named anywhere.
    #[error(
        "find an end-of-sequence token in {}: expected eos_token in tokenizer_config.json or eos_token_id in \
         generation_config.json", dir.display()
    )]
    NoEos {
        /// The folder.
        dir: PathBuf,
    },
    /// Text could not be encoded.
    #[error("encode {num_bytes} bytes of text: {message}")]
    Encode {
        /// Length of the text.
        num_bytes: usize,
        /// The library's complaint.
        message: String,
    },
    /// Text holds a character that the alphabet lacks.
    #[error("encode {character:?}: it is not in the tokenizer's alphabet")]
    OutsideAlphabet {
        /// The first such character.
        character: String,
    },
    /// Tokens could not be decoded.
    #[error("decode {num_tokens} tokens: {message}")]
    Decode {
        /// How many.
        num_tokens: usize,
        /// The library's complaint.
        message: String,
    },
    /// A conversation was to be rendered without a template.
    #[error("render a conversation: the tokenizer has no chat template (set model.chatTemplate)")]
    NoChatTemplate,
    /// The chat template failed.
    #[error("render a conversation")]
    Chat(#[source] ChatError),
    /// A file could not be written.
    #[error("write tokenizer file {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl TokenizerError {
    /// The exit code of a process that ends with this: a disk may have room again, a tokenizer stays what it
    /// is.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Write { .. } => ExitCode::RetryableIo,
            _ => ExitCode::BadConfig,
        }
    }
}

impl Tokenizer {
    /// Tokens of `text` with the special tokens that the folder adds to plain text (most families: a leading
    /// `bos`), as `tokenizer(text)` of transformers does.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`].
    pub fn encode(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_with(text, true)
    }

    /// Tokens of `text` and nothing else: for text in which a chat template already wrote the special tokens,
    /// and for completions.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`].
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<TokenId>, TokenizerError> {
        self.encode_with(text, false)
    }

    /// Tokens of rendered text, each with the bytes of `text` that it stands for, in rising order.
    ///
    /// # Errors
    /// [`TokenizerError::Encode`].
    pub fn encode_with_offsets(&self, text: &str) -> Result<Vec<(TokenId, Range<usize>)>, TokenizerError> {
        let encoded = self.inner.encode(text, false).map_err(|error| encode_error(text, &*error))?;
        let ranges = encoded.get_offsets().iter().map(|&(start, end)| start..end);
        Ok(encoded.get_ids().iter().copied().zip(ranges).collect())
    }

    fn encode_with(&self, text: &str, add_special_tokens: bool) -> Result<Vec<TokenId>, TokenizerError> {
        let encoded = self.inner.encode_fast(text, add_special_tokens);
        encoded
            .map(|encoding| encoding.get_ids().to_vec())
            .map_err(|error| TokenizerError::Encode { num_bytes: text.len(), message: error.to_string() })
    }

    /// Text of `tokens` without special tokens; spaces are never "cleaned up".
    ///
    /// # Errors
    /// [`TokenizerError::Decode`].
    pub fn decode(&self, tokens: &[TokenId]) -> Result<String, TokenizerError> {
        self.decode_with(tokens, true)
    }

    /// Text of `tokens`, special tokens written out: for people.
    ///
    /// # Errors
    /// [`TokenizerError::Decode`].
    pub fn decode_verbatim(&self, tokens: &[TokenId]) -> Result<String, TokenizerError> {
        self.decode_with(tokens, false)
    }

    fn decode_with(&self, tokens: &[TokenId], skip_special_tokens: bool) -> Result<String, TokenizerError> {
        let decoded = self.inner.decode(tokens, skip_special_tokens);
        decoded
            .map_err(|error| TokenizerError::Decode { num_tokens: tokens.len(), message: error.to_string() })
    }

    /// The text of a conversation in the model's own format.
    ///
    /// # Errors
    /// [`TokenizerError::NoChatTemplate`], [`TokenizerError::Chat`].
    pub fn render_chat(&self, request: &ChatRequest<'_>) -> Result<String, TokenizerError> {
        let template = self.chat.as_ref().ok_or(TokenizerError::NoChatTemplate)?;
        let messages = self.conversation(request.messages);
        let mut variables = self.conversations.variables.clone();
        variables.extend(request.variables.cloned().unwrap_or_default());
        let request = ChatRequest { messages: &messages, variables: Some(&variables), ..*request };
        template.render(&request, &self.special).map_err(TokenizerError::Chat)
    }

    /// The messages of a conversation, behind the job's system message where they have none of their own.
    pub fn conversation(&self, messages: &[Value]) -> Vec<Value> {
        let own = messages.first().is_some_and(|first| first["role"] == "system");
        let system = self.conversations.system_prompt.iter().filter(|_| !own);
        let system = system.map(|text| json!({ "role": "system", "content": text }));
        system.chain(messages.iter().cloned()).collect()
    }

    /// Renders conversations with a system message and variables of the job's (`data.systemPrompt`,
    /// `data.templateVariables`).
    pub fn with_conversation_defaults(self, defaults: ConversationDefaults) -> Self {
        Self { conversations: Arc::new(defaults), ..self }
    }

    /// What makes patches of a prompt's images; `None` where the model reads text alone.
    pub(crate) fn image_processor(&self) -> Option<&ImageProcessor> {
        self.images.as_deref()
    }

    /// The same with the image processor of a new vision tower.
    ///
    /// # Errors
    /// [`TokenizerError::MissingToken`] where the vocabulary has none for images.
    pub fn with_new_tower(self, tower: &VisionSpec) -> Result<Self, TokenizerError> {
        let VisionTokens([image, ..]) = self.vision_tokens()?;
        Ok(Self { images: Some(Arc::new(ImageProcessor::of_new_tower(tower, image))), ..self })
    }

    /// The ids of the tokens of images and their borders.
    ///
    /// # Errors
    /// [`TokenizerError::MissingToken`] with the first that the vocabulary lacks.
    pub fn vision_tokens(&self) -> Result<VisionTokens, TokenizerError> {
        let mut ids = [0; VISION_TOKENS.len()];
        for (id, token) in ids.iter_mut().zip(VISION_TOKENS) {
            let missing = || TokenizerError::MissingToken { role: "vision", token: token.to_owned() };
            *id = self.token_id(token).ok_or_else(missing)?;
        }
        Ok(VisionTokens(ids))
    }

    /// Whether a prompt that is a text becomes a conversation.
    pub fn has_system_prompt(&self) -> bool {
        self.conversations.system_prompt.is_some()
    }

    /// Replaces the chat template (`model.chatTemplate`).
    ///
    /// # Errors
    /// [`TokenizerError::Chat`] when it is not a template.
    pub fn with_chat_template(mut self, source: &str) -> Result<Self, TokenizerError> {
        self.chat = Some(Arc::new(ChatTemplate::new(source).map_err(TokenizerError::Chat)?));
        if let Origin::Folder { replaced_template, .. } = &mut self.origin {
            *replaced_template = true;
        }
        Ok(self)
    }

    /// Whether conversations can be rendered.
    pub fn has_chat_template(&self) -> bool {
        self.chat.is_some()
    }

    /// Tokens after which a completion ends, at least one: the tokenizer's `eos_token` first, then those of
    /// `generation_config.json`.
    pub fn eos_ids(&self) -> &[TokenId] {
        &self.eos_ids
    }

    /// The token that begins a sequence.
    pub fn bos_id(&self) -> Option<TokenId> {
        self.special.bos.as_deref().and_then(|token| self.token_id(token))
    }

    /// The token that fills batches in other programs.
    pub fn pad_id(&self) -> Option<TokenId> {
        self.special.pad.as_deref().and_then(|token| self.token_id(token))
    }

    /// The special tokens by role.
    pub fn special_tokens(&self) -> &SpecialTokens {
        &self.special
    }

    /// Id of a token by its exact text.
    pub fn token_id(&self, token: &str) -> Option<TokenId> {
        self.inner.token_to_id(token)
    }

    /// The first token by text that `other` numbers otherwise, or only one of the two knows, with its id in
    /// each.
    pub fn first_difference(&self, other: &Self) -> Option<(String, [Option<TokenId>; 2])> {
        let vocabularies = [self, other].map(|tokenizer| tokenizer.inner.get_vocab(true));
        let tokens: BTreeSet<&String> =
            vocabularies.iter().flat_map(|vocabulary| vocabulary.keys()).collect();
        let ids = |token: &str| vocabularies.each_ref().map(|vocabulary| vocabulary.get(token).copied());
        tokens.into_iter().map(|token| (token.clone(), ids(token))).find(|(_, [own, others])| own != others)
    }

    /// One more than the largest token id: a model's embedding needs at least so many rows.
    pub fn vocab_len(&self) -> usize {
        let largest = self.inner.get_vocab(true).into_values().max();
        largest.map_or(0, |id| id as usize + 1)
    }
}

fn encode_error(text: &str, error: &dyn std::error::Error) -> TokenizerError {
    TokenizerError::Encode { num_bytes: text.len(), message: error.to_string() }
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
