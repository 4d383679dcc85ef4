//! Reward models of a manifest: the samples that each judges, and its scores for the reward functions of kind
//! `Model`. [`reading`] builds the inputs. The pool applies weights and limits, as for all functions.
//!
//! With a sharded policy these models are sharded, too: each rank scores its own samples, and all ranks take
//! part in the passes.

mod reading;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use rlt_api::ExitCode;
use rlt_api::spec::{RewardFunctionSpec, RewardModelInput, RewardModelSpec};
use rlt_core::packing::{PackingError, pack};
use rlt_core::types::{Completion, Prompt, TokenId};
use rlt_data::tokenizer::{Tokenizer, TokenizerError};
use rlt_decoder::{Adapter, Classifier, LoadOptions, ModelError, PackedInput, Weights};
use rlt_hub::HubError;
use rlt_models::OutputHead;
use rlt_parallel::schedule::{self, DecoderPass};
use rlt_parallel::{ProcessGroups, RankError, Ranks, ShardedParameters};
use tch::no_grad;

use self::reading::{Reader, Reading, aggregate};
use super::functions::judges;
use crate::roles::error::StepFault;

/// Scores of reward models for one sample, by the name of the function.
pub type ModelScores = BTreeMap<String, f64>;

/// All reward models of a manifest.
#[derive(Debug)]
pub struct RewardModels {
    models: Vec<RewardModel>,
    max_tokens: usize,
    ranks: Ranks,
}

#[derive(Debug)]
struct RewardModel {
    name: String,
    data_sources: Vec<String>,
    classifier: Classifier,
    reader: Reader,
    /// This rank's shards of the model; `None` if it is not sharded.
    shards: Option<ShardedParameters>,
}

/// Properties of the policy that reward models must fit.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'a> {
    /// Tokenizer of the policy.
    pub tokenizer: &'a Tokenizer,
    /// Number of tokens of the longest prompt and completion together.
    pub longest_sequence: usize,
}

/// Sharding of reward models over ranks.
#[derive(Clone, Debug)]
pub struct Sharing<'a> {
    /// Ranks over which the model is sharded.
    pub mesh: Rc<ProcessGroups>,
    /// Folder for files of offloaded units, see [`ShardedParameters::new`].
    pub offload_to: Option<&'a Path>,
}

/// A reward model cannot judge.
#[derive(Debug, thiserror::Error)]
pub enum RewardModelError {
    /// The model's repository could not be fetched.
    #[error("failed to fetch the model of reward function {name:?}")]
    Hub {
        /// Name of the reward function.
        name: String,
        /// The error of the hub.
        source: Box<HubError>,
    },
    /// The model could not be read.
    #[error("failed to load the model of reward function {name:?} from {}", dir.display())]
    Model {
        /// Name of the reward function.
        name: String,
        /// Folder of the model.
        dir: PathBuf,
        /// The failing file or tensor.
        source: Box<ModelError>,
    },
    /// The model's tokenizer could not be read.
    #[error("failed to load the tokenizer of reward function {name:?} from {}", dir.display())]
    Tokenizer {
        /// Name of the reward function.
        name: String,
        /// Folder of the model.
        dir: PathBuf,
        /// The error of the tokenizer.
        source: TokenizerError,
    },
    /// The model's vocabulary differs from the policy's.
    #[error(
        "the model of reward function {name:?} has another vocabulary than the policy: expected {expected}, got {got}"
    )]
    Vocabulary {
        /// Name of the reward function.
        name: String,
        /// Requirement of the policy's vocabulary that the model misses.
        expected: String,
        /// Property of the model's vocabulary that differs.
        got: String,
    },
    /// The model judges full completions, but the manifest requests scores of steps.
    #[error(
        "the model of reward function {name:?} has one label: steps are judged by a token classifier with two"
    )]
    NoSteps {
        /// Name of the reward function.
        name: String,
    },
    /// The model reads text but has no tokenizer.
    #[error("the model of reward function {name:?} reads text, but {} has no tokenizer.json", dir.display())]
    NoTokenizer {
        /// Name of the reward function.
        name: String,
        /// Folder of the model.
        dir: PathBuf,
    },
    /// A sample could not be rendered as text for the model.
    #[error("failed to render a sample for the model of reward function {name:?}")]
    Render {
        /// Name of the reward function.
        name: String,
        /// The error of the tokenizer.
        source: TokenizerError,
    },
    /// Sequences may become longer than the model's context.
    #[error(
        "the model of reward function {name:?} reads at most {max} tokens, but prompt and completion may have {longest}"
    )]
    TooShort {
        /// Name of the reward function.
        name: String,
        /// `max_position_embeddings` of the model's configuration.
        max: usize,
        /// Number of tokens of the longest sequence of the run.
        longest: usize,
    },
    /// A sequence alone is longer than the token budget of a pass.
    #[error("failed to split a batch into passes of a reward model")]
    Packing(#[from] PackingError),
    /// The model's scores could not be read back from the device.
    #[error("failed to read the scores of a reward model")]
    Torch(#[from] rlt_torch::Error),
    /// A rank was lost, or the model could not be sharded.
    #[error("failed to shard a reward model over the ranks")]
    Ranks(#[from] RankError),
}

impl RewardModelError {
    /// Returns the exit code of a run that ends with this error.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Hub { source, .. } => source.exit_code(),
            Self::Model { source, .. } => source.exit_code(),
            Self::Tokenizer { source, .. } | Self::Render { source, .. } => source.exit_code(),
            Self::Vocabulary { .. }
            | Self::TooShort { .. }
            | Self::NoSteps { .. }
            | Self::NoTokenizer { .. }
            | Self::Packing(_) => ExitCode::BadConfig,
            Self::Torch(_) | Self::Ranks(_) => ExitCode::Failure,
        }
    }
}

impl StepFault for RewardModelError {
    fn act(&self) -> &'static str {
        "failed to judge by a reward model"
    }

    fn exit_code(&self) -> ExitCode {
        RewardModelError::exit_code(self)
    }
}

impl RewardModels {
    /// Whether any model that `functions` name must be fetched from the hub.
    pub fn is_any_on_hub(functions: &[RewardFunctionSpec]) -> bool {
        functions.iter().filter_map(|function| function.model.as_ref()).any(|model| model.hub.is_some())
    }

    /// Returns the folders of the models that `functions` name, in order. Models of the hub are fetched
    /// first.
    ///
    /// # Errors
    /// [`RewardModelError::Hub`], with the function's name.
    pub fn folders(functions: &[RewardFunctionSpec]) -> Result<Vec<PathBuf>, RewardModelError> {
        named(functions).map(|(function, model)| folder(&function.name, model)).collect()
    }

    /// Loads the models that `functions` name from their `folders`, for passes of at most `max_tokens`
    /// tokens. With `sharing`, the policy's mesh, every rank holds a shard of each; this is then collective.
    ///
    /// # Errors
    /// [`RewardModelError`], with the function's name.
    pub fn load(
        functions: &[RewardFunctionSpec],
        folders: &[PathBuf],
        policy: Policy<'_>,
        max_tokens: usize,
        options: &LoadOptions,
        ranks: &Ranks,
        sharing: Option<Sharing<'_>>,
    ) -> Result<Self, RewardModelError> {
        let load = |((function, model), dir): ((&RewardFunctionSpec, &RewardModelSpec), &PathBuf)| {
            let (classifier, shards) = classifier(&function.name, dir, options, sharing.as_ref())?;
            let reader = reader(&function.name, model, dir, &classifier, policy, max_tokens)?;
            let (name, data_sources) = (function.name.clone(), function.data_sources.clone());
            Ok(RewardModel { name, data_sources, classifier, reader, shards })
        };
        let models = named(functions).zip(folders).map(load).collect::<Result<_, RewardModelError>>()?;
        Ok(Self { models, max_tokens, ranks: ranks.clone() })
    }

    /// Whether models are sharded, so that all ranks must take part in scoring.
    pub fn are_shared(&self) -> bool {
        self.models.iter().any(|model| model.shards.is_some())
    }

    /// Computes the scores of every model for the samples that it judges, in the order of the samples.
    /// Collective with FSDP; each rank gives its own samples.
    ///
    /// # Errors
    /// [`RewardModelError::Packing`] if a sequence alone is longer than a pass, [`RewardModelError::Torch`],
    /// and [`RewardModelError::Ranks`] when a rank is lost.
    pub fn scores(
        &self,
        samples: &[(Arc<Prompt>, Completion)],
    ) -> Result<Vec<ModelScores>, RewardModelError> {
        let mut all = vec![ModelScores::new(); samples.len()];
        for model in &self.models {
            let asked: Vec<usize> = (0..samples.len())
                .filter(|idx| judges(&model.data_sources, &samples[*idx].0.data_source))
                .collect();
            let read = |idx: &usize| model.reader.read(&samples[*idx].0, &samples[*idx].1);
            let readings: Result<Vec<Reading>, _> = asked.iter().map(read).collect();
            let failed = |source| RewardModelError::Render { name: model.name.clone(), source };
            let readings = readings.map_err(failed)?;
            for (idx, score) in asked.iter().zip(model.scores(&readings, self.max_tokens, &self.ranks)?) {
                all[*idx].insert(model.name.clone(), score);
            }
        }
        Ok(all)
    }
}

impl RewardModel {
    fn scores(
        &self,
        readings: &[Reading],
        max_tokens: usize,
        ranks: &Ranks,
    ) -> Result<Vec<f64>, RewardModelError> {
        let decoder = self.classifier.decoder();
        let lens: Vec<usize> = readings.iter().map(|reading| reading.tokens.len()).collect();
        let packing = pack(&lens, max_tokens, decoder.config.hidden_size)?;
        let model = DecoderPass { decoder, shards: self.shards.as_ref(), sp_group: None };
        let mut scores = vec![0.0; readings.len()];
        for pass in model.passes(ranks, packing.micro_batches)? {
            let Some(pass) = pass else {
                model.join_forward(Adapter::Off)?;
                continue;
            };
            let read: Vec<&Reading> = pass.iter().map(|idx| &readings[*idx]).collect();
            let tokens: Vec<&[TokenId]> = read.iter().map(|reading| reading.tokens.as_slice()).collect();
            let input = PackedInput::new(&tokens, decoder.device());
            let normed_td = schedule::infer(model, &input, &mut decoder.context(&input, Adapter::Off))?;
            model.end_pass()?;
            let (positions, counts) = self.positions(&read);
            let numbers_kn = no_grad(|| self.classifier.numbers_of(&normed_td, &positions));
            let numbers_kn = numbers_kn.to_device(tch::Device::Cpu).contiguous();
            let rewards = self.rewards(rlt_torch::f32_slice(&numbers_kn)?, &counts);
            pass.iter().zip(rewards).for_each(|(idx, reward)| scores[*idx] = reward);
        }
        Ok(scores)
    }

    /// Returns the positions of a pass at which scores are read, and the number of positions of each
    /// sequence.
    fn positions(&self, read: &[&Reading]) -> (Vec<i64>, Vec<usize>) {
        let (mut all, mut counts, mut start) = (Vec::new(), Vec::new(), 0);
        for Reading { tokens, positions } in read {
            let end = || vec![self.classifier.end_of(tokens)];
            let own = positions.clone().unwrap_or_else(end);
            counts.push(own.len());
            all.extend(own.into_iter().map(|position| (start + position) as i64));
            start += tokens.len();
        }
        (all, counts)
    }

    /// Computes the reward of each sequence from the values `[k, n]` that a pass has read; `counts` holds the
    /// number of values of each sequence.
    fn rewards(&self, numbers: &[f32], counts: &[usize]) -> Vec<f64> {
        let num_read: usize = counts.iter().sum();
        let number = |label: usize, at: usize| f64::from(numbers[label * num_read + at]);
        let Some(steps) = &self.reader.steps else {
            return (0..num_read).map(|at| number(0, at)).collect();
        };
        let verdicts: Vec<f64> =
            (0..num_read).map(|at| 1.0 / (1.0 + (number(0, at) - number(1, at)).exp())).collect();
        let mut rest = verdicts.as_slice();
        let of_sequence = |count: &usize| {
            let (own, others) = rest.split_at(*count);
            rest = others;
            aggregate(own, steps.aggregation)
        };
        counts.iter().map(of_sequence).collect()
    }
}

/// Loads a model: in full, or this rank's shards of it.
fn classifier(
    name: &str,
    dir: &Path,
    options: &LoadOptions,
    sharing: Option<&Sharing<'_>>,
) -> Result<(Classifier, Option<ShardedParameters>), RewardModelError> {
    let failed = |source| {
        let (name, dir) = (name.to_owned(), dir.to_owned());
        RewardModelError::Model { name, dir, source: Box::new(source) }
    };
    let Some(Sharing { mesh, offload_to }) = sharing else {
        return Ok((Classifier::load(dir, options).map_err(failed)?, None));
    };
    let (weights, head) = Weights::open_classifier(dir).map_err(failed)?;
    let classifier = Classifier::meta(&weights, head, options).map_err(failed)?;
    let shards = ShardedParameters::new(classifier.decoder(), Rc::clone(mesh), *offload_to)?;
    shards.read(&weights).map_err(failed)?;
    Ok((classifier, Some(shards)))
}

/// Creates the reader of a model's inputs. A model that reads the policy's tokens must have the policy's
/// vocabulary, and a context for its longest sequence.
fn reader(
    name: &str,
    model: &RewardModelSpec,
    dir: &Path,
    classifier: &Classifier,
    policy: Policy<'_>,
    max_tokens: usize,
) -> Result<Reader, RewardModelError> {
    let steps = match (classifier.head(), &model.steps) {
        (OutputHead::Tokens, steps) => Some(steps.clone().unwrap_or_default()),
        (_, None) => None,
        (_, Some(_)) => return Err(RewardModelError::NoSteps { name: name.to_owned() }),
    };
    let tokenizer = match model.input {
        RewardModelInput::Tokens => {
            fits(name, dir, classifier, policy)?;
            policy.tokenizer.clone()
        }
        RewardModelInput::Text if !dir.join("tokenizer.json").exists() => {
            return Err(RewardModelError::NoTokenizer { name: name.to_owned(), dir: dir.to_owned() });
        }
        RewardModelInput::Text => own_tokenizer(name, dir)?,
    };
    let max_tokens = max_tokens.min(classifier.decoder().config.max_position_embeddings);
    Ok(Reader { input: model.input, tokenizer, steps, max_tokens })
}

fn own_tokenizer(name: &str, dir: &Path) -> Result<Tokenizer, RewardModelError> {
    Tokenizer::load(dir).map_err(|source| RewardModelError::Tokenizer {
        name: name.to_owned(),
        dir: dir.to_owned(),
        source,
    })
}

/// Returns the reward functions with a model, each with its model.
fn named(functions: &[RewardFunctionSpec]) -> impl Iterator<Item = (&RewardFunctionSpec, &RewardModelSpec)> {
    functions.iter().filter_map(|function| Some((function, function.model.as_ref()?)))
}

/// Returns the folder of a model on this machine. A model of the hub is fetched first.
fn folder(name: &str, model: &RewardModelSpec) -> Result<PathBuf, RewardModelError> {
    match (&model.path, &model.hub) {
        (Some(path), _) => Ok(path.into()),
        (None, Some(spec)) => {
            let failed = |source| RewardModelError::Hub { name: name.to_owned(), source: Box::new(source) };
            Ok(rlt_hub::fetch(spec, None).map_err(failed)?.dir)
        }
        (None, None) => Ok(PathBuf::new()),
    }
}

/// Checks that a model reads the policy's tokens, and sequences as long as the policy's.
fn fits(name: &str, dir: &Path, classifier: &Classifier, policy: Policy<'_>) -> Result<(), RewardModelError> {
    let config = &classifier.decoder().config;
    let other =
        |expected: String, got: String| RewardModelError::Vocabulary { name: name.to_owned(), expected, got };
    let num_tokens = policy.tokenizer.vocab_len();
    if config.vocab_size < num_tokens {
        return Err(other(format!("at least {num_tokens} tokens"), config.vocab_size.to_string()));
    }
    if dir.join("tokenizer.json").exists() {
        let own = own_tokenizer(name, dir)?;
        if let Some((token, ids)) = policy.tokenizer.first_difference(&own) {
            let [expected, got] = ids.map(|id| id.map_or_else(|| "none".to_owned(), |id| id.to_string()));
            return Err(other(format!("id {expected} for token {token:?}"), got));
        }
    }
    let (max, longest) = (config.max_position_embeddings, policy.longest_sequence);
    if max < longest {
        return Err(RewardModelError::TooShort { name: name.to_owned(), max, longest });
    }
    Ok(())
}
