//! The reward models of a manifest: the samples that each judges, and its scores for the reward functions of
//! kind `Model`. [`reading`] builds the inputs. The pool applies weights and limits, as for all functions.
//!
//! With a sharded policy these models are sharded too: each rank scores its own samples, and all ranks take
//! part in the passes.

mod reading;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use rlt_api::spec::{RewardFunctionSpec, RewardModelInput, RewardModelSpec};
use rlt_core::packing::{PackingError, pack};
use rlt_core::types::{Completion, Prompt, TokenId};
use tch::no_grad;

use self::reading::{Reader, Reading, aggregate};
use super::functions::judges;
use crate::data::tokenizer::{Tokenizer, TokenizerError};
use crate::model::hub::{self, HubError};
use crate::model::{Adapter, Classifier, LoadOptions, ModelError, OutputHead, PackedInput, Weights};
use crate::parallel::{MeshRanks, RankError, Ranks, ShardedParameters};
use crate::roles::actor::layer_schedule::{self, Model};

/// The numbers of reward models for one sample, by the name of the function.
pub type ModelScores = BTreeMap<String, f64>;

/// Every reward model of a manifest.
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
    /// This rank's shards of it; `None` where every rank has the whole.
    shards: Option<ShardedParameters>,
}

/// The properties of a run's policy that its reward models must fit.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'a> {
    /// Its tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// Tokens of the longest prompt and completion together.
    pub longest_sequence: usize,
}

/// How ranks share a model.
#[derive(Clone, Debug)]
pub struct Sharing<'a> {
    /// Those that have a copy of it together.
    pub mesh: Rc<MeshRanks>,
    /// The folder in whose files units are offloaded between passes, see [`ShardedParameters::new`].
    pub offload_to: Option<&'a Path>,
}

/// Why a reward model cannot judge.
#[derive(Debug, thiserror::Error)]
pub enum RewardModelError {
    /// Its repository cannot be fetched.
    #[error("fetch the model of reward function {name:?}")]
    Hub {
        /// The function's name.
        name: String,
        /// Why.
        source: Box<HubError>,
    },
    /// It cannot be read.
    #[error("load the model of reward function {name:?} from {}", dir.display())]
    Model {
        /// The function's name.
        name: String,
        /// Its folder.
        dir: PathBuf,
        /// The error.
        source: Box<ModelError>,
    },
    /// Its tokenizer cannot be read.
    #[error("load the tokenizer of reward function {name:?} from {}", dir.display())]
    Tokenizer {
        /// The function's name.
        name: String,
        /// Its folder.
        dir: PathBuf,
        /// The error.
        source: TokenizerError,
    },
    /// It reads other tokens than the policy writes.
    #[error(
        "the model of reward function {name:?} has another vocabulary than the policy: expected {expected}, got {got}"
    )]
    Vocabulary {
        /// The function's name.
        name: String,
        /// The policy's.
        expected: String,
        /// Its own.
        got: String,
    },
    /// It judges whole completions, and the manifest asks for steps.
    #[error(
        "the model of reward function {name:?} has one label: steps are judged by a token classifier with two"
    )]
    NoSteps {
        /// The function's name.
        name: String,
    },
    /// It reads text and has no tokenizer.
    #[error("the model of reward function {name:?} reads text, but {} has no tokenizer.json", dir.display())]
    NoTokenizer {
        /// The function's name.
        name: String,
        /// Its folder.
        dir: PathBuf,
    },
    /// A sample's text cannot be rendered for it.
    #[error("render a sample for the model of reward function {name:?}")]
    Render {
        /// The function's name.
        name: String,
        /// Why.
        source: TokenizerError,
    },
    /// Sequences may become longer than it was made for.
    #[error(
        "the model of reward function {name:?} reads at most {max} tokens, but prompt and completion may have {longest}"
    )]
    TooShort {
        /// The function's name.
        name: String,
        /// `max_position_embeddings` of its configuration.
        max: usize,
        /// The longest sequence of the run.
        longest: usize,
    },
    /// A sequence alone is longer than a pass may be.
    #[error("split a batch into passes of a reward model")]
    Packing(#[from] PackingError),
    /// Its numbers cannot be read back.
    #[error("read the numbers of a reward model")]
    Torch(#[from] rlt_torch::Error),
    /// Ranks could not share it.
    #[error("share a reward model with the other ranks")]
    Ranks(#[from] RankError),
}

impl RewardModelError {
    /// The exit code of a run that ends with this.
    pub fn exit_code(&self) -> rlt_api::ExitCode {
        match self {
            Self::Hub { source, .. } => source.exit_code(),
            Self::Model { source, .. } => source.exit_code(),
            Self::Tokenizer { source, .. } | Self::Render { source, .. } => source.exit_code(),
            Self::Vocabulary { .. }
            | Self::TooShort { .. }
            | Self::NoSteps { .. }
            | Self::NoTokenizer { .. }
            | Self::Packing(_) => rlt_api::ExitCode::BadConfig,
            Self::Torch(_) | Self::Ranks(_) => rlt_api::ExitCode::Failure,
        }
    }
}

impl RewardModels {
    /// Whether one of the models that `functions` name is to be fetched from the hub.
    pub fn is_any_on_hub(functions: &[RewardFunctionSpec]) -> bool {
        functions.iter().filter_map(|function| function.model.as_ref()).any(|model| model.hub.is_some())
    }

    /// The folders of the models that `functions` name, in their order; those of the hub are fetched first.
    ///
    /// # Errors
    /// [`RewardModelError::Hub`], with the function's name.
    pub fn folders(functions: &[RewardFunctionSpec]) -> Result<Vec<PathBuf>, RewardModelError> {
        named(functions).map(|(function, model)| folder(&function.name, model)).collect()
    }

    /// Loads the models that `functions` name from their `folders`, to be asked in passes of at most
    /// `max_tokens` tokens. With `sharing`, the policy's mesh, every rank keeps a shard of each; all `ranks`
    /// do so alike.
    ///
    /// # Errors
    /// [`RewardModelError`], with the function's name.
    pub fn load(
        (functions, folders): (&[RewardFunctionSpec], &[PathBuf]),
        policy: Policy<'_>,
        max_tokens: usize,
        options: &LoadOptions,
        (ranks, sharing): (&Ranks, Option<Sharing<'_>>),
    ) -> Result<Self, RewardModelError> {
        let load = |((function, model), dir): ((&RewardFunctionSpec, &RewardModelSpec), &PathBuf)| {
            let (classifier, shards) = classifier(&function.name, dir, options, sharing.as_ref())?;
            let reader = reader((&function.name, model), dir, &classifier, (policy, max_tokens))?;
            let (name, data_sources) = (function.name.clone(), function.data_sources.clone());
            Ok(RewardModel { name, data_sources, classifier, reader, shards })
        };
        let models = named(functions).zip(folders).map(load).collect::<Result<_, RewardModelError>>()?;
        Ok(Self { models, max_tokens, ranks: ranks.clone() })
    }

    /// Whether ranks make passes together, so that all must ask where one does.
    pub fn are_shared(&self) -> bool {
        self.models.iter().any(|model| model.shards.is_some())
    }

    /// The scores of every model for its samples, in the order of the samples. With FSDP all ranks take part,
    /// each with its own samples.
    ///
    /// # Errors
    /// [`RewardModelError::Packing`] when a sequence alone is longer than a pass,
    /// [`RewardModelError::Torch`], and [`RewardModelError::Ranks`] when a rank is lost.
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
        let model = Model { decoder, shards: self.shards.as_ref(), sp_group: None };
        let mut scores = vec![0.0; readings.len()];
        for pass in model.passes(ranks, packing.micro_batches)? {
            let Some(pass) = pass else {
                model.join_forward(Adapter::Off)?;
                continue;
            };
            let read: Vec<&Reading> = pass.iter().map(|idx| &readings[*idx]).collect();
            let tokens: Vec<&[TokenId]> = read.iter().map(|reading| reading.tokens.as_slice()).collect();
            let input = PackedInput::new(&tokens, decoder.device());
            let normed_td = layer_schedule::infer(model, &input, &mut decoder.context(&input, Adapter::Off))?;
            model.leave()?;
            let (positions, counts) = self.positions(&read);
            let numbers_kn = no_grad(|| self.classifier.numbers_of(&normed_td, &positions));
            let numbers_kn = numbers_kn.to_device(tch::Device::Cpu).contiguous();
            let rewards = self.rewards(rlt_torch::f32_slice(&numbers_kn)?, &counts);
            pass.iter().zip(rewards).for_each(|(idx, reward)| scores[*idx] = reward);
        }
        Ok(scores)
    }

    /// The positions of a pass that are read, and how many of each sequence.
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

    /// The reward of each sequence from the numbers `[k, n]` that are read of a pass, so many of each.
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

/// A model, whole or this rank's shards of it.
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
    let classifier = Classifier::outline((&weights, head), options).map_err(failed)?;
    let shards = ShardedParameters::new(classifier.decoder(), Rc::clone(mesh), *offload_to)?;
    shards.read(&weights).map_err(failed)?;
    Ok((classifier, Some(shards)))
}

/// The reader of a model. A model that reads the policy's tokens must have its vocabulary, and a context for
/// its longest sequence.
fn reader(
    (name, model): (&str, &RewardModelSpec),
    dir: &Path,
    classifier: &Classifier,
    (policy, max_tokens): (Policy<'_>, usize),
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

/// The functions that a model judges for, with it.
fn named(functions: &[RewardFunctionSpec]) -> impl Iterator<Item = (&RewardFunctionSpec, &RewardModelSpec)> {
    functions.iter().filter_map(|function| Some((function, function.model.as_ref()?)))
}

/// Where a model is on this machine, fetched first where the hub has it.
fn folder(name: &str, model: &RewardModelSpec) -> Result<PathBuf, RewardModelError> {
    match (&model.path, &model.hub) {
        (Some(path), _) => Ok(path.into()),
        (None, Some(spec)) => {
            let failed = |source| RewardModelError::Hub { name: name.to_owned(), source: Box::new(source) };
            Ok(hub::fetch(spec, None).map_err(failed)?.dir)
        }
        (None, None) => Ok(PathBuf::new()),
    }
}

/// Whether a model reads the tokens that the policy writes, and as many of them.
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
