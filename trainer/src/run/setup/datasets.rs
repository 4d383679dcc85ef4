//! The rows of a job: where they are, those in memory, and those that are streamed.

use std::path::Path;
use std::sync::Arc;

use rlt_api::resolved::{Preference, ResolvedSpec};
use rlt_api::spec::{DataSpec, HubDatasetSpec};
use rlt_channel::ModelCommit;
use rlt_core::preferences::PreferenceExample;
use rlt_core::types::Prompt;
use serde::{Deserialize, Serialize};

use crate::data::seeds::{SeedUse, seed};
use crate::data::tokenizer::Tokenizer;
use crate::data::{
    CheckItem, Data, DataError, Dataset, Demonstration, Loader, PreferenceFormat, PreferenceLimits, Split,
    StreamOptions,
};
use crate::model::hub;
use crate::roles::reward::RewardFunctions;
use crate::run::error::TrainError;
use crate::storage::run_folder::RunFolder;

/// The file of a run that says at which commits data sets of the hub were read.
const RECORD: &str = "data.json";

/// `spec.data` with the files of the hub's data sets on this machine, and the commits of these.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    /// Every data set is of files.
    pub(crate) spec: DataSpec,
    /// Of each data set of the hub.
    pub(crate) found: Vec<Found>,
}

/// A data set of the hub, as it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Its position in `spec.data.datasets`.
    pub(crate) idx: usize,
    /// What the manifest names.
    #[serde(rename = "hub")]
    pub(crate) wanted: HubDatasetSpec,
    /// The commit that its revision resolved to when the run began.
    pub(crate) commit: String,
}

impl Located {
    /// Fetches what is on the hub, at the commits of the record in `folder` where it has them: a branch that
    /// moved in between must not change the data of a run that goes on.
    pub(crate) fn find(spec: &DataSpec, folder: &Path) -> Result<Self, TrainError> {
        let record = std::fs::read(folder.join(RECORD)).ok();
        let record: Vec<Found> =
            record.and_then(|record| serde_json::from_slice(&record).ok()).unwrap_or_default();
        let mut located = Self { spec: spec.clone(), found: Vec::new() };
        for (idx, set) in located.spec.datasets.iter_mut().enumerate() {
            let Some(wanted) = set.hub.take() else { continue };
            let recorded = record.iter().find(|found| (found.idx, &found.wanted) == (idx, &wanted));
            let pinned = match recorded {
                Some(found) => HubDatasetSpec { revision: found.commit.clone(), ..wanted.clone() },
                None => wanted.clone(),
            };
            let fetched = hub::fetch_dataset(&pinned, None)?;
            set.files = fetched.files.iter().map(|file| file.display().to_string()).collect();
            located.found.push(Found { idx, wanted, commit: fetched.commit });
        }
        Ok(located)
    }

    /// Writes the commits down for later attempts.
    pub(super) fn record(&self, folder: &RunFolder) -> Result<(), TrainError> {
        if !self.found.is_empty() {
            let record = serde_json::to_value(&self.found).map_err(TrainError::State)?;
            folder.write_json(RECORD, &record)?;
        }
        Ok(())
    }

    /// The commits, each with the field that names its data set.
    pub(super) fn commits(&self) -> Vec<ModelCommit> {
        let commit = |found: &Found| ModelCommit {
            field: format!("spec.data.datasets[{}].hub", found.idx),
            repo: found.wanted.repo.clone(),
            commit: found.commit.clone(),
        };
        self.found.iter().map(commit).collect()
    }
}

/// Rows to train on.
pub(super) enum Rows<T> {
    /// All of them, read before the training.
    InMemory(Dataset<T>),
    /// Read during the training.
    Streamed(Loader<T>),
}

impl<T> Rows<T> {
    pub(super) fn in_memory(&self) -> Option<&Dataset<T>> {
        match self {
            Self::InMemory(dataset) => Some(dataset),
            Self::Streamed(_) => None,
        }
    }

    fn in_order(self, spec: &ResolvedSpec) -> Result<Loader<T>, TrainError> {
        match self {
            Self::InMemory(dataset) => Ok(Loader::new(&dataset, spec.data.shuffle, data_seed(spec))?),
            Self::Streamed(loader) => Ok(loader),
        }
    }
}

fn data_seed(spec: &ResolvedSpec) -> u64 {
    seed(spec.training.seed, SeedUse::Data, &[])
}

/// Everything that is read before the training, and what is streamed in it.
pub(super) struct Datasets {
    pub(super) prompts: Option<Rows<Prompt>>,
    demonstrations: Option<Rows<Demonstration>>,
    preferences: Option<Rows<PreferenceExample>>,
    pub(super) held_out: Dataset<Prompt>,
    held_out_preferences: Option<Dataset<PreferenceExample>>,
}

impl Datasets {
    /// Of a job whose data are at `located`.
    pub(super) fn load(
        spec: &ResolvedSpec,
        located: &DataSpec,
        tokenizer: &Tokenizer,
    ) -> Result<Self, TrainError> {
        let preferences_of =
            |(format, limits), split| Dataset::preferences(located, split, tokenizer, format, limits);
        let preference = preference_rows(spec);
        let held_out_preferences = preference.map(|rows| preferences_of(rows, Split::HeldOut)).transpose()?;
        let wants_demonstrations = spec.algorithm.is_supervised() || spec.algorithm.cold_start.is_some();
        let options = stream_options(spec);
        let prompts = || match options {
            None => Dataset::prompts(located, Split::Train, tokenizer).map(Rows::InMemory),
            Some(options) => {
                Loader::stream_prompts(located, options, tokenizer, check(spec)?).map(Rows::Streamed)
            }
        };
        let max_tokens = max_demonstration_tokens(spec);
        let demonstrations = || match options {
            None => Dataset::demonstrations(located, Split::Train, tokenizer, max_tokens).map(Rows::InMemory),
            Some(options) => {
                Loader::stream_demonstrations(located, options, tokenizer, max_tokens).map(Rows::Streamed)
            }
        };
        let preferences = |rows: (PreferenceFormat, PreferenceLimits)| match options {
            None => preferences_of(rows, Split::Train).map(Rows::InMemory),
            Some(options) => {
                Loader::stream_preferences(located, options, tokenizer, rows.0, rows.1).map(Rows::Streamed)
            }
        };
        Ok(Self {
            prompts: spec.algorithm.samples().then(prompts).transpose()?,
            demonstrations: wants_demonstrations.then(demonstrations).transpose()?,
            preferences: preference.map(preferences).transpose()?,
            held_out: match &held_out_preferences {
                Some(preferences) => preferences.to_prompts(),
                None => Dataset::prompts(located, Split::HeldOut, tokenizer)?,
            },
            held_out_preferences,
        })
    }

    pub(super) fn in_order(self, spec: &ResolvedSpec) -> Result<Data, TrainError> {
        Ok(Data {
            prompts: self.prompts.map(|prompts| prompts.in_order(spec)).transpose()?,
            demonstrations: self.demonstrations.map(|rows| rows.in_order(spec)).transpose()?,
            preferences: self.preferences.map(|rows| rows.in_order(spec)).transpose()?,
            held_out: self.held_out,
            held_out_preferences: self.held_out_preferences,
        })
    }

    /// Steps of the training; a stream needs `training.steps`, which no rows change.
    pub(super) fn num_steps(&self, spec: &ResolvedSpec) -> u64 {
        let demonstrations = || self.demonstrations.as_ref().and_then(Rows::in_memory).map(Dataset::len);
        let preferences = || self.preferences.as_ref().and_then(Rows::in_memory).map(Dataset::len);
        let prompts = self.prompts.as_ref().and_then(Rows::in_memory).map(Dataset::len);
        let num_rows = prompts.or_else(preferences).or_else(demonstrations).unwrap_or(0);
        spec.training.length.num_steps(num_rows as u64, spec.training.prompts_per_step)
    }
}

/// Tokens that a demonstration may have.
pub(crate) fn max_demonstration_tokens(spec: &ResolvedSpec) -> usize {
    spec.training.max_tokens_per_micro_batch as usize * spec.workers.mesh.sp as usize
}

/// What the preferences of a data set are, where the algorithm learns from those.
pub(crate) fn preference_rows(spec: &ResolvedSpec) -> Option<(PreferenceFormat, PreferenceLimits)> {
    let format = match &spec.algorithm.preference {
        _ if spec.algorithm.reward_model.is_some() => PreferenceFormat::PairsWithMargin,
        Some(_) if spec.algorithm.samples() => return None,
        Some(Preference::Pairs(_)) => PreferenceFormat::Pairs,
        Some(Preference::Labels(_)) => PreferenceFormat::Labels,
        None => return None,
    };
    let limits = PreferenceLimits {
        max_completion_tokens: spec.rollout.max_completion_tokens as usize,
        max_sequence_tokens: spec.max_sequence_tokens() as usize,
    };
    Some((format, limits))
}

fn stream_options(spec: &ResolvedSpec) -> Option<StreamOptions> {
    spec.data.streaming.map(|streaming| StreamOptions {
        block_rows: streaming.block_rows as usize,
        seed: spec.data.shuffle.then(|| data_seed(spec)),
    })
}

/// Whether the reward functions can judge a prompt that is read during the training.
fn check(spec: &ResolvedSpec) -> Result<CheckItem<Prompt>, DataError> {
    let boxed = |error| DataError::Check(Box::new(error));
    let functions = RewardFunctions::new(&spec.rewards, spec.rollout.max_completion_tokens as usize);
    let functions = Arc::new(functions.map_err(boxed)?);
    let is_judged = !spec.rewards.functions.is_empty();
    Ok(Box::new(move |prompt, location| match is_judged {
        true => functions.check_prompt(prompt, location).map_err(boxed),
        false => Ok(()),
    }))
}
