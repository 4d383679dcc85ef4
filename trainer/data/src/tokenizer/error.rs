//! Reasons for which a tokenizer cannot be loaded, built, used or saved.

use std::path::PathBuf;

use rlt_api::ExitCode;
use rlt_models::RefusedField;

use super::chat::ChatError;
use crate::images::ImageError;

/// A tokenizer cannot be loaded, built, used or saved.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file of the folder is missing or unreadable.
    #[error("read tokenizer file {}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// A file is not JSON, or has unexpected content.
    #[error("parse tokenizer file {}", path.display())]
    Parse {
        /// Path of the file.
        path: PathBuf,
        /// Error of the JSON parser.
        #[source]
        source: serde_json::Error,
    },
    /// A field would change tokens, and its value is not supported.
    #[error(
        "read {}: field `{}`: {} is not supported, supported: {}",
        path.display(),
        refused.field,
        refused.got,
        refused.supported
    )]
    Unsupported {
        /// Path of the file.
        path: PathBuf,
        /// The field with its value; boxed, as errors of many functions contain this one.
        refused: Box<RefusedField>,
    },
    /// `tokenizer.json` was refused by the `tokenizers` library.
    #[error("build the tokenizer of {}: {message}", path.display())]
    Definition {
        /// Path of the file; `alphabet` for a tokenizer built from one.
        path: PathBuf,
        /// Message of the library.
        message: String,
    },
    /// The model has a vision tower, but its image processor is missing or invalid.
    #[error(transparent)]
    Images(#[from] Box<ImageError>),
    /// The alphabet is invalid.
    #[error("build a character tokenizer: {message}")]
    Alphabet {
        /// Description of the fault.
        message: String,
    },
    /// A special token is named, but is not in the vocabulary.
    #[error("find the {role} token {token:?} in the vocabulary: it is not there")]
    MissingToken {
        /// Role of the token.
        role: &'static str,
        /// Text of the token.
        token: String,
    },
    /// The folder names no end-of-sequence token.
    #[error(
        "find an end-of-sequence token in {}: expected eos_token in tokenizer_config.json or eos_token_id in \
         generation_config.json", dir.display()
    )]
    NoEos {
        /// Path of the folder.
        dir: PathBuf,
    },
    /// Text could not be encoded.
    #[error("encode {num_bytes} bytes of text: {message}")]
    Encode {
        /// Length of the text in bytes.
        num_bytes: usize,
        /// Message of the library.
        message: String,
    },
    /// Text contains a character outside the alphabet.
    #[error("encode {character:?}: it is not in the tokenizer's alphabet")]
    OutsideAlphabet {
        /// First such character.
        character: String,
    },
    /// Tokens could not be decoded.
    #[error("decode {num_tokens} tokens: {message}")]
    Decode {
        /// Number of tokens.
        num_tokens: usize,
        /// Message of the library.
        message: String,
    },
    /// A conversation cannot be rendered, because the tokenizer has no chat template.
    #[error("render a conversation: the tokenizer has no chat template (set model.chatTemplate)")]
    NoChatTemplate,
    /// The chat template cannot be compiled or applied.
    #[error("render a conversation")]
    Chat(#[source] Box<ChatError>),
    /// A file could not be written.
    #[error("write tokenizer file {}", path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
}

impl TokenizerError {
    /// Exit code of a process that ends with this error. Writing may succeed later; all other errors are
    /// permanent.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Write { .. } => ExitCode::RetryableIo,
            _ => ExitCode::BadConfig,
        }
    }
}
