//! The data sets of a job: their locations, rows in memory, and streamed rows.

use std::path::Path;
use std::sync::Arc;

use rlt_api::resolved::{Preference, ResolvedSpec};
use rlt_api::spec::{DataSpec, HubDatasetSpec};
use rlt_channel::ModelCommit;
use rlt_core::preferences::PreferenceExample;
use rlt_core::types::Prompt;
use serde::{Deserialize, Serialize};

use super::hub_models;
use crate::data::seeds::{SeedUse, seed};
use crate::data::tokenizer::Tokenizer;
use crate::data::{
    CheckItem, Data, DataError, Dataset, Demonstration, PreferenceFormat, PreferenceLimits, PreferenceRows,
    Split, StepFormat, StreamOptions, TrainingRows,
};
use crate::model::hub;
use crate::roles::reward::RewardFunctions;
use crate::run::error::TrainError;
use crate::storage::run_folder::{DATA_RECORD, RunFolder};

/// `spec.data` with the local files of the hub's data sets, and the commits of these data sets.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    /// Specification in which every data set names local files.
    pub(crate) spec: DataSpec,
    /// Data sets that were found on the hub, in the order of the manifest.
    pub(crate) found: Vec<Found>,
}

/// A data set of the hub, pinned to a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Index in `spec.data.datasets`.
    pub(crate) idx: usize,
    /// Specification of the data set in the manifest.
    #[serde(rename = "hub")]
    pub(crate) wanted: HubDatasetSpec,
    /// Commit that the revision resolved to when the run began.
    pub(crate) commit: String,
}

impl Located {
    /// Downloads the data sets of the hub. Commits recorded in the run's `folder` take precedence, because a
    /// branch that has moved must not change the data of a run that continues.
    pub(crate) fn find(spec: &DataSpec, folder: Option<&Path>) -> Result<Self, TrainError> {
        let record = folder.map(recorded).transpose()?.unwrap_or_default();
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

    /// Writes the commits to the run's folder, for later attempts.
    pub(super) fn record(&self, folder: &RunFolder) -> Result<(), TrainError> {
        if !self.found.is_empty() {
            let record = serde_json::to_value(&self.found).map_err(TrainError::State)?;
            folder.write_json(DATA_RECORD, &record)?;
        }
        Ok(())
    }

    /// Commits of the data sets, each with the field that names the data set.
    pub(super) fn commits(&self) -> Vec<ModelCommit> {
        let commit = |found: &Found| ModelCommit {
            field: format!("spec.data.datasets[{}].hub", found.idx),
            repo: found.wanted.repo.clone(),
            commit: found.commit.clone(),
        };
        self.found.iter().map(commit).collect()
    }
}

/// The record of an earlier attempt of the run in `folder`; empty before the first.
fn recorded(folder: &Path) -> Result<Vec<Found>, TrainError> {
    Ok(hub_models::read_record(&folder.join(DATA_RECORD))?.unwrap_or_default())
}

fn data_seed(spec: &ResolvedSpec) -> u64 {
    seed(spec.training.seed, SeedUse::Data, &[])
}

/// Data sets in memory, and those that are streamed.
pub(super) struct Datasets {
    pub(super) prompts: Option<TrainingRows<Prompt>>,
    demonstrations: Option<TrainingRows<Demonstration>>,
    preferences: Option<TrainingRows<PreferenceExample>>,
    pub(super) held_out: Dataset<Prompt>,
    held_out_preferences: Option<Dataset<PreferenceExample>>,
}

impl Datasets {
    /// Opens the data sets that the job's algorithm reads; `located` names local files only.
    pub(super) fn load(
        spec: &ResolvedSpec,
        located: &DataSpec,
        tokenizer: &Tokenizer,
    ) -> Result<Self, TrainError> {
        let held_out_preferences = preference_rows(spec, Split::HeldOut)
            .map(|rows| Dataset::preferences(located, Split::HeldOut, tokenizer, &rows))
            .transpose()?;
        let wants_demonstrations = spec.algorithm.is_supervised() || spec.algorithm.cold_start.is_some();
        let options = stream_options(spec);
        let max_tokens = max_demonstration_tokens(spec);
        let prompts = || TrainingRows::prompts(located, options, tokenizer, || check(spec));
        let demonstrations = || TrainingRows::demonstrations(located, options, tokenizer, max_tokens);
        let preferences = |rows| TrainingRows::preferences(located, options, tokenizer, &rows);
        Ok(Self {
            prompts: spec.algorithm.samples().then(prompts).transpose()?,
            demonstrations: wants_demonstrations.then(demonstrations).transpose()?,
            preferences: preference_rows(spec, Split::Train).map(preferences).transpose()?,
            held_out: match &held_out_preferences {
                Some(preferences) => preferences.to_prompts(),
                None => Dataset::prompts(located, Split::HeldOut, tokenizer)?,
            },
            held_out_preferences,
        })
    }

    pub(super) fn in_order(self, spec: &ResolvedSpec) -> Result<Data, TrainError> {
        let (shuffle, seed) = (spec.data.shuffle, data_seed(spec));
        Ok(Data {
            prompts: self.prompts.map(|rows| rows.in_order(shuffle, seed)).transpose()?,
            demonstrations: self.demonstrations.map(|rows| rows.in_order(shuffle, seed)).transpose()?,
            preferences: self.preferences.map(|rows| rows.in_order(shuffle, seed)).transpose()?,
            held_out: self.held_out,
            held_out_preferences: self.held_out_preferences,
        })
    }

    /// Number of training steps. A streamed job sets `training.steps`, so its number of rows is not needed.
    pub(super) fn num_steps(&self, spec: &ResolvedSpec) -> u64 {
        let demonstrations =
            || self.demonstrations.as_ref().and_then(TrainingRows::in_memory).map(Dataset::len);
        let preferences = || self.preferences.as_ref().and_then(TrainingRows::in_memory).map(Dataset::len);
        let prompts = self.prompts.as_ref().and_then(TrainingRows::in_memory).map(Dataset::len);
        let num_rows = prompts.or_else(preferences).or_else(demonstrations).unwrap_or(0);
        spec.training.length.num_steps(num_rows as u64, spec.training.prompts_per_step)
    }
}

/// Maximum number of tokens of a demonstration.
pub(crate) fn max_demonstration_tokens(spec: &ResolvedSpec) -> usize {
    spec.training.max_tokens_per_micro_batch as usize * spec.workers.mesh.sp as usize
}

/// Preference rows of a split; `None` if the algorithm does not learn from preferences of a data set.
pub(crate) fn preference_rows(spec: &ResolvedSpec, split: Split) -> Option<PreferenceRows> {
    let max_completion_tokens = spec.rollout.max_completion_tokens as usize;
    if let Some(process_reward) = &spec.algorithm.process_reward {
        return Some(PreferenceRows::Steps(StepFormat {
            separator: process_reward.step_separator.clone().unwrap_or_else(|| "\n".into()),
            last_only: process_reward.last_step_only && split == Split::Train,
            max_completion_tokens,
        }));
    }
    let format = match &spec.algorithm.preference {
        _ if spec.algorithm.reward_model.is_some() => PreferenceFormat::PairsWithMargin,
        Some(_) if spec.algorithm.samples() => return None,
        Some(Preference::Pairs(_)) => PreferenceFormat::Pairs,
        Some(Preference::Labels(_)) => PreferenceFormat::Labels,
        None => return None,
    };
    let max_sequence_tokens = spec.max_sequence_tokens() as usize;
    let limits = PreferenceLimits { max_completion_tokens, max_sequence_tokens };
    Some(PreferenceRows::Completions(format, limits))
}

fn stream_options(spec: &ResolvedSpec) -> Option<StreamOptions> {
    spec.data.streaming.map(|streaming| StreamOptions {
        block_rows: streaming.block_rows as usize,
        seed: spec.data.shuffle.then(|| data_seed(spec)),
    })
}

/// Returns a check that the reward functions can score a prompt, for prompts that are read during the
/// training.
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
