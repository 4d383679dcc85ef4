//! `rlt-trainer generate`: completes the prompts of a file with the engine that training uses.
//!
//! Each input line is an object with `id` and one of `prompt` (text), `messages` (a conversation for the
//! model's chat template) or `tokens`; other fields are ignored. Each output line is a sample with `id`,
//! `tokens` (the new ones), `text`, `logprobs` and `finish_reason`, and with `sample` if several are
//! requested per prompt.

use std::fmt;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::ProgressBar;
use rlt_api::ExitCode;
use rlt_core::engine::DetokenizeError;
use rlt_core::sampling::{SamplingError, SamplingParams, derive_seed};
use rlt_core::types::{Completion, FinishReason, TokenId};
use rlt_data::tokenizer::{ChatRequest, Tokenizer, TokenizerError};
use rlt_decoder::Decoder;
use rlt_engine::{Detokenizer, Engine, EngineError, EngineOptions, Request};
use rlt_storage::jsonl::{self, JsonlError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::commands::model_args::{ModelArgs, ModelArgsError};

/// Command line of `rlt-trainer generate`.
#[derive(Args, Clone, Debug)]
pub struct GenerateArgs {
    /// Model that generates.
    #[command(flatten)]
    pub model: ModelArgs,
    /// File of prompts, one JSON object per line
    #[arg(long, value_name = "FILE")]
    pub input: PathBuf,
    /// File of completions to write
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Maximum length of a completion in tokens, at least 1
    #[arg(long, value_name = "N")]
    pub max_new_tokens: NonZeroUsize,
    /// Sampling temperature, at least 0; 0 takes the most probable token
    #[arg(long, default_value_t = 1.0)]
    pub temperature: f64,
    /// Nucleus sampling: probability that the most probable tokens to draw from reach together, above 0 and
    /// at most 1
    #[arg(long, default_value_t = 1.0)]
    pub top_p: f64,
    /// Number of most probable tokens to draw from; 0 means all
    #[arg(long, default_value_t = 0)]
    pub top_k: usize,
    /// Minimum probability of a token relative to that of the most probable one, from 0 to 1
    #[arg(long, default_value_t = 0.0)]
    pub min_p: f64,
    /// Penalty on tokens that have already appeared, above 0; values above 1 discourage them
    #[arg(long, default_value_t = 1.0)]
    pub repetition_penalty: f64,
    /// Random seed: the same seed gives the same completions
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Number of completions of each prompt, at least 1
    #[arg(long, default_value = "1")]
    pub n: NonZeroUsize,
    /// Stop string, which ends a completion and is cut off; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Stop token, which ends a completion in addition to the model's own; may be repeated
    #[arg(long, value_name = "ID")]
    pub stop_token_id: Vec<TokenId>,
    /// Continue past the model's end-of-sequence tokens
    #[arg(long)]
    pub ignore_eos: bool,
    /// Maximum number of sequences that are decoded at the same time, at least 1
    #[arg(long, value_name = "N", default_value = "64")]
    pub max_concurrent: NonZeroUsize,
    /// Decode on a GPU without CUDA graphs
    #[arg(long)]
    pub no_graphs: bool,
}

/// Completions could not be generated.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The input cannot be read, or the output cannot be written.
    #[error(transparent)]
    Lines(#[from] JsonlError),
    /// The model cannot be loaded.
    #[error(transparent)]
    Model(#[from] ModelArgsError),
    /// The tokenizer of the model cannot be loaded.
    #[error("load the tokenizer of {}", dir.display())]
    Tokenizer {
        /// Folder of the model.
        dir: PathBuf,
        /// Error of the tokenizer.
        source: TokenizerError,
    },
    /// A sampling option is out of its range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The model's logits for a line are not finite.
    #[error("completing {}, line {line}", path.display())]
    NotFinite {
        /// Path of the input.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// Error of the engine, with the position in the completion.
        source: Box<EngineError>,
    },
    /// The engine failed for a reason that is not specific to a line.
    #[error("generate completions")]
    Rollout(#[source] EngineError),
}

impl GenerateError {
    /// Returns the exit code of a process that ends with this error, the same as that of a job with this
    /// model.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Lines(error) => error.exit_code(),
            Self::Model(error) => error.exit_code(),
            Self::Tokenizer { source, .. } => source.exit_code(),
            Self::Sampling(_) => ExitCode::Usage,
            Self::NotFinite { .. } => ExitCode::Diverged,
            Self::Rollout(_) => ExitCode::Failure,
        }
    }
}

/// A line of the input is invalid.
#[derive(Debug, thiserror::Error)]
enum PromptError {
    #[error("expected exactly one of `prompt`, `messages` and `tokens`, got {0} of them")]
    NotOne(usize),
    #[error("the prompt has no tokens; at least one is needed")]
    Empty,
    #[error("the model's folder has no tokenizer.json; give `tokens`")]
    NoTokenizer,
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// Summary of a call.
#[derive(Clone, Copy, Debug)]
pub struct GenerateReport {
    /// Number of completions written.
    pub num_completions: usize,
    /// Number of new tokens in them.
    pub num_tokens: usize,
    /// Number of prompt tokens; each prompt is counted once for all of its completions.
    pub num_prompt_tokens: usize,
    /// Time of the rollout, without loading.
    pub elapsed: Duration,
}

impl fmt::Display for GenerateReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.elapsed.as_secs_f64();
        write!(
            formatter,
            "{} completions, {} new tokens after {} prompt tokens in {seconds:.2} s: {:.1} tokens/s",
            self.num_completions,
            self.num_tokens,
            self.num_prompt_tokens,
            self.num_tokens as f64 / seconds.max(f64::MIN_POSITIVE),
        )
    }
}

/// A line of the input.
#[derive(Debug, Deserialize)]
struct PromptLine {
    id: Value,
    prompt: Option<String>,
    messages: Option<Vec<Value>>,
    tokens: Option<Vec<TokenId>>,
}

/// A line of the output.
#[derive(Debug, Serialize)]
struct CompletionLine<'a> {
    id: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    sample: Option<usize>,
    tokens: &'a [TokenId],
    text: Option<&'a str>,
    logprobs: &'a [f32],
    finish_reason: FinishReason,
}

/// Generates completions for the prompts of a file and writes them to another.
///
/// # Errors
/// [`GenerateError`], which names the file and number of an invalid line. No output is written then.
pub fn run(args: &GenerateArgs) -> Result<GenerateReport, GenerateError> {
    sampling(args).validate()?;
    let lines: Vec<(usize, PromptLine)> = jsonl::read(&args.input)?;
    let tokenizer = load_tokenizer(&args.model)?;
    let requests = requests(args, &lines, tokenizer.as_ref())?;
    let decoder = args.model.load()?;
    let mut engine = Engine::new(options(args, &decoder, tokenizer.as_ref()));
    let failed = |error: EngineError| match error.request_idx().map(|request_idx| lines[request_idx].0) {
        Some(line) if matches!(error, EngineError::NonFiniteLogits { .. }) => {
            GenerateError::NotFinite { path: args.input.clone(), line, source: Box::new(error) }
        }
        Some(line) => JsonlError::at_line(&args.input, line, error).into(),
        None => GenerateError::Rollout(error),
    };
    engine.sync_weights(&decoder, 0).map_err(failed)?;

    let bar = ProgressBar::new((requests.len() * args.n.get()) as u64);
    let text = Text(tokenizer.as_ref());
    let started = Instant::now();
    let completions = engine
        .generate(&decoder, &requests, &text, &mut |progress| {
            bar.set_position(progress.num_finished as u64);
            ControlFlow::Continue(())
        })
        .map_err(failed)?;
    let elapsed = started.elapsed();
    bar.finish_and_clear();

    jsonl::write(&args.output, output_lines(&lines, &completions, tokenizer.is_some()))?;
    Ok(GenerateReport {
        num_completions: completions.iter().map(Vec::len).sum(),
        num_tokens: engine.stats().num_tokens,
        num_prompt_tokens: requests.iter().map(|request| request.prompt.len()).sum(),
        elapsed,
    })
}

/// Loads the tokenizer of the model's folder; `None` if it has none, which suffices for prompts given as
/// tokens.
fn load_tokenizer(model: &ModelArgs) -> Result<Option<Tokenizer>, GenerateError> {
    if !model.model.join("tokenizer.json").exists() {
        return Ok(None);
    }
    let failed = |source| GenerateError::Tokenizer { dir: model.model.clone(), source };
    Tokenizer::load(&model.model).map(Some).map_err(failed)
}

fn requests(
    args: &GenerateArgs,
    lines: &[(usize, PromptLine)],
    tokenizer: Option<&Tokenizer>,
) -> Result<Vec<Request>, JsonlError> {
    let request = |(row_idx, (line, row)): (usize, &(usize, PromptLine))| {
        let prompt =
            prompt_tokens(row, tokenizer).map_err(|error| JsonlError::at_line(&args.input, *line, error))?;
        let seeds = (0..args.n.get() as u64).map(|sample| derive_seed(&[args.seed, row_idx as u64, sample]));
        Ok(Request {
            images: Vec::new(),
            prompt,
            seeds: seeds.collect(),
            sampling: sampling(args),
            max_new_tokens: args.max_new_tokens.get(),
        })
    };
    lines.iter().enumerate().map(request).collect()
}

fn prompt_tokens(row: &PromptLine, tokenizer: Option<&Tokenizer>) -> Result<Arc<[TokenId]>, PromptError> {
    let tokenizer = || tokenizer.ok_or(PromptError::NoTokenizer);
    let tokens = match (&row.prompt, &row.messages, &row.tokens) {
        (Some(prompt), None, None) => tokenizer()?.encode(prompt)?,
        (None, Some(messages), None) => {
            let chat = ChatRequest { messages, add_generation_prompt: true, ..ChatRequest::default() };
            let tokenizer = tokenizer()?;
            tokenizer.encode_rendered(&tokenizer.render_chat(&chat)?)?
        }
        (None, None, Some(tokens)) => tokens.clone(),
        (prompt, messages, tokens) => {
            let given = [prompt.is_some(), messages.is_some(), tokens.is_some()];
            return Err(PromptError::NotOne(given.into_iter().filter(|given| *given).count()));
        }
    };
    if tokens.is_empty() { Err(PromptError::Empty) } else { Ok(tokens.into()) }
}

fn sampling(args: &GenerateArgs) -> SamplingParams {
    SamplingParams {
        temperature: args.temperature,
        top_k: (args.top_k > 0).then_some(args.top_k),
        top_p: args.top_p,
        min_p: args.min_p,
        repetition_penalty: args.repetition_penalty,
        stop_token_ids: args.stop_token_id.clone(),
        stop: args.stop.clone(),
        ignore_eos: args.ignore_eos,
    }
}

fn options(args: &GenerateArgs, decoder: &Decoder, tokenizer: Option<&Tokenizer>) -> EngineOptions {
    let mut eos_token_ids = decoder.config.eos_token_ids.clone();
    eos_token_ids.extend(tokenizer.iter().flat_map(|tokenizer| tokenizer.eos_ids()));
    EngineOptions {
        max_num_seqs: args.max_concurrent.get(),
        uses_graphs: !args.no_graphs,
        eos_token_ids,
        ..EngineOptions::default()
    }
}

fn output_lines<'a>(
    lines: &'a [(usize, PromptLine)],
    completions: &'a [Vec<Completion>],
    has_text: bool,
) -> impl Iterator<Item = CompletionLine<'a>> {
    lines.iter().zip(completions).flat_map(move |((_, row), samples)| {
        let several = samples.len() > 1;
        samples.iter().enumerate().map(move |(sample_idx, completion)| CompletionLine {
            id: &row.id,
            sample: several.then_some(sample_idx),
            tokens: &completion.tokens,
            text: has_text.then_some(completion.text.as_str()),
            logprobs: &completion.rollout_logprobs,
            finish_reason: completion.finish_reason,
        })
    })
}

/// A detokenizer that returns empty texts if there is no tokenizer.
struct Text<'a>(Option<&'a Tokenizer>);

impl Detokenizer for Text<'_> {
    fn decode(&self, tokens: &[TokenId]) -> Result<String, DetokenizeError> {
        match self.0 {
            Some(tokenizer) => Ok(tokenizer.decode(tokens)?),
            None => Ok(String::new()),
        }
    }
}

#[cfg(test)]
mod tests;
