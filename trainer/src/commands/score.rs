//! `rlt-trainer score`: computes the log-prob of every token of given sequences, with the code of training.
//!
//! ```text
//! {"id", "tokens" | "text"} -> packed micro-batches -> {"id", "tokens", "logprobs", "entropies"} a line
//! ```
//! Sequences are packed within a token budget and scored in any order; output lines have the order of the
//! input.

use std::path::PathBuf;

use clap::Args;
use rlt_api::ExitCode;
use rlt_core::packing::{self, PackingError};
use rlt_core::types::TokenId;
use rlt_data::tokenizer::{Tokenizer, TokenizerError};
use rlt_decoder::{Adapter, Decoder, ModelError, PackedInput};
use rlt_storage::jsonl::{self, JsonlError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::commands::model_args::{ModelArgs, ModelArgsError};

/// Default number of tokens of a micro-batch: enough to keep the matrix products large.
const DEFAULT_MAX_TOKENS: usize = 8192;
/// Maximum number of logits in memory at once.
const LOGITS_AT_ONCE: usize = 16 << 20;

/// Options of `score`.
#[derive(Args, Clone, Debug)]
pub struct ScoreArgs {
    /// Model that scores.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Temperature by which logits are divided before the softmax, above 0
    #[arg(long, value_name = "T", default_value_t = 1.0, value_parser = positive)]
    pub temperature: f64,
    /// File of JSON lines to read, each with "id" and either "tokens" or "text"
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// File of JSON lines to write, each with "id", "tokens", "logprobs" and "entropies"
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Maximum number of tokens of one forward pass; by default 8192, or the longest sequence if that is
    /// longer
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
}

/// A line of the input.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct InputLine {
    id: Value,
    tokens: Option<Vec<TokenId>>,
    text: Option<String>,
}

/// A line of the output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Scored {
    /// Id of the input line.
    pub id: Value,
    /// Tokens of the full sequence.
    pub tokens: Vec<TokenId>,
    /// Log-probs, in nats, of each token but the first, given those before it.
    pub logprobs: Vec<f32>,
    /// Entropies, in nats, of the distributions under which the tokens but the first were scored.
    pub entropies: Vec<f32>,
}

/// Scores of one sequence: a value for each token but the first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceScores {
    /// Log-probs, in nats, of each token, given those before it.
    pub logprobs: Vec<f32>,
    /// Entropies, in nats, of the distributions under which the tokens were scored.
    pub entropies: Vec<f32>,
}

/// The scoring of the sequences failed.
#[derive(Debug, thiserror::Error)]
pub enum ScoreError {
    /// The model cannot be loaded.
    #[error(transparent)]
    Load(#[from] ModelArgsError),
    /// Input or output cannot be read or written, or a line is malformed.
    #[error(transparent)]
    Jsonl(#[from] JsonlError),
    /// The tokenizer, which texts need, cannot be loaded.
    #[error("loading the tokenizer of {dir} for the texts to score", dir = dir.display())]
    Tokenizer {
        /// Folder of the model.
        dir: PathBuf,
        /// Error of the tokenizer.
        source: TokenizerError,
    },
    /// The tokenizer has token ids beyond the model's vocabulary.
    #[error(transparent)]
    Vocabulary(Box<ModelError>),
    /// A sequence exceeds the token budget.
    #[error("packing sequences under a budget of {max_tokens} tokens")]
    Packing {
        /// Maximum number of tokens of a micro-batch.
        max_tokens: usize,
        /// Error of packing, which names the sequence.
        source: PackingError,
    },
    /// The computation of log-probs failed in libtorch.
    #[error("computing log-probs")]
    Head(#[from] rlt_torch::Error),
    /// The model's log-probs or entropies for a line are not finite.
    #[error("scoring {}, line {line}: expected finite log-probs and entropies, got others", path.display())]
    NotFinite {
        /// Path of the input.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
    },
}

impl ScoreError {
    /// Returns the exit code of a process that ends with this error, the same as that of a job with this
    /// model.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Load(error) => error.exit_code(),
            Self::Jsonl(error) => error.exit_code(),
            Self::Tokenizer { source, .. } => source.exit_code(),
            Self::Vocabulary(error) => error.exit_code(),
            Self::Packing { .. } => ExitCode::BadConfig,
            Self::Head(_) => ExitCode::Failure,
            Self::NotFinite { .. } => ExitCode::Diverged,
        }
    }
}

/// A line of the input is invalid.
#[derive(Debug, thiserror::Error)]
enum LineError {
    #[error("expected either \"tokens\" or \"text\", got {got}")]
    Fields { got: &'static str },
    #[error("expected at least one token, got none")]
    NoTokens,
    #[error("expected token ids below vocab_size {vocab_size}, got {got}")]
    TokenId { vocab_size: usize, got: TokenId },
    #[error(transparent)]
    Tokenizer(TokenizerError),
}

/// Scores the lines of `args.input` and writes the results to `args.output`, all or none.
///
/// # Errors
/// [`ScoreError`], which names the file and number of a malformed line.
pub fn run(args: &ScoreArgs) -> Result<(), ScoreError> {
    let lines: Vec<(usize, InputLine)> = jsonl::read(&args.input)?;
    let decoder = args.model.load()?;
    let sequences = sequences(args, &decoder, &lines)?;
    let longest = sequences.iter().map(Vec::len).max().unwrap_or_default();
    let max_tokens = args.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS.max(longest));
    let scores = score(&decoder, &sequences, args.temperature, max_tokens)?;
    let mut scored = Vec::with_capacity(lines.len());
    for ((line, input), (tokens, scores)) in lines.into_iter().zip(sequences.into_iter().zip(scores)) {
        let SequenceScores { logprobs, entropies } = scores;
        if !logprobs.iter().chain(&entropies).all(|value| value.is_finite()) {
            return Err(ScoreError::NotFinite { path: args.input.clone(), line });
        }
        scored.push(Scored { id: input.id, tokens, logprobs, entropies });
    }
    Ok(jsonl::write(&args.output, scored)?)
}

/// Computes log-probs and entropies of every token but the first of each sequence, in micro-batches of at
/// most `max_tokens` tokens.
///
/// # Errors
/// [`ScoreError::Packing`] if a sequence is longer than that, [`ScoreError::Head`] if libtorch fails.
pub fn score(
    decoder: &Decoder,
    sequences: &[Vec<TokenId>],
    temperature: f64,
    max_tokens: usize,
) -> Result<Vec<SequenceScores>, ScoreError> {
    let lens: Vec<usize> = sequences.iter().map(Vec::len).collect();
    let packing = packing::pack(&lens, max_tokens, decoder.config.hidden_size)
        .map_err(|source| ScoreError::Packing { max_tokens, source })?;
    let mut scores = vec![SequenceScores::default(); sequences.len()];
    for sequence_idxs in &packing.micro_batches {
        let slices: Vec<&[TokenId]> = sequence_idxs.iter().map(|idx| sequences[*idx].as_slice()).collect();
        let (logprobs, entropies) = score_packed(decoder, &slices, temperature)?;
        let mut start = 0;
        for (idx, tokens) in sequence_idxs.iter().zip(&slices) {
            let predictors = start..start + tokens.len() - 1;
            scores[*idx] = SequenceScores {
                logprobs: logprobs[predictors.clone()].to_vec(),
                entropies: entropies[predictors].to_vec(),
            };
            start += tokens.len();
        }
    }
    Ok(scores)
}

/// Returns one value per packed token, about the token after it; zero at the end of each sequence.
fn score_packed(
    decoder: &Decoder,
    sequences: &[&[TokenId]],
    temperature: f64,
) -> Result<(Vec<f32>, Vec<f32>), rlt_torch::Error> {
    let input = PackedInput::new(sequences, decoder.device());
    let next = |tokens: &&[TokenId]| {
        tokens[1..].iter().map(|token| i64::from(*token)).chain([-1]).collect::<Vec<_>>()
    };
    let targets: Vec<i64> = sequences.iter().flat_map(next).collect();
    let chunk = (LOGITS_AT_ONCE / decoder.config.vocab_size).clamp(16, 4096);
    tch::no_grad(|| {
        let hidden_td = decoder.hidden_states(&input, Adapter::On);
        let by = decoder.distribution(temperature);
        rlt_torch::head_forward(&hidden_td, &decoder.compute_head_weight(Adapter::On), &targets, by, chunk)
    })
}

/// Returns the tokens of all lines; texts are tokenized by the model's tokenizer.
fn sequences(
    args: &ScoreArgs,
    decoder: &Decoder,
    lines: &[(usize, InputLine)],
) -> Result<Vec<Vec<TokenId>>, ScoreError> {
    let dir = &args.model.model;
    let tokenizer = if lines.iter().any(|(_, line)| line.text.is_some()) {
        let tokenizer =
            Tokenizer::load(dir).map_err(|source| ScoreError::Tokenizer { dir: dir.clone(), source })?;
        let max_token_id = tokenizer.vocab_len().saturating_sub(1) as TokenId;
        decoder.check_vocabulary(max_token_id).map_err(|error| ScoreError::Vocabulary(Box::new(error)))?;
        Some(tokenizer)
    } else {
        None
    };
    let vocab_size = decoder.config.vocab_size;
    let sequence = |(line, input): &(usize, InputLine)| {
        tokens_of(input, tokenizer.as_ref(), vocab_size)
            .map_err(|error| JsonlError::at_line(&args.input, *line, error).into())
    };
    lines.iter().map(sequence).collect()
}

fn tokens_of(
    line: &InputLine,
    tokenizer: Option<&Tokenizer>,
    vocab_size: usize,
) -> Result<Vec<TokenId>, LineError> {
    let tokens = match (&line.tokens, &line.text, tokenizer) {
        (Some(tokens), None, _) => tokens.clone(),
        (None, Some(text), Some(tokenizer)) => tokenizer.encode(text).map_err(LineError::Tokenizer)?,
        (None, _, _) => return Err(LineError::Fields { got: "neither" }),
        (Some(_), Some(_), _) => return Err(LineError::Fields { got: "both" }),
    };
    match tokens.iter().find(|token| **token as usize >= vocab_size) {
        Some(token) => Err(LineError::TokenId { vocab_size, got: *token }),
        None if tokens.is_empty() => Err(LineError::NoTokens),
        None => Ok(tokens),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value.is_finite() => Ok(value),
        _ => Err("expected a number above 0".to_owned()),
    }
}

#[cfg(test)]
mod tests;
