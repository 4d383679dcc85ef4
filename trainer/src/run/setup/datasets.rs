//! The data sets of a job: their locations, rows in memory, and streamed rows.

use std::path::Path;
use std::sync::Arc;

use rlt_api::resolved::{Preference, ResolvedSpec};
use rlt_api::spec::{DataSpec, HubDatasetSpec};
use rlt_channel::ModelCommit;
use rlt_core::metrics::Metrics;
use rlt_core::preferences::PreferenceExample;
use rlt_core::types::Prompt;
use rlt_data::seeds::{SeedUse, seed};
use rlt_data::tokenizer::Tokenizer;
use rlt_data::{
    CheckItem, DataError, Dataset, DatasetCounts, Demonstration, Pipeline, PreferenceFormat,
    PreferenceLimits, PreferenceRows, Split, StepDraws, StepFormat, StreamOptions, TrainingRows,
};
use rlt_models::ModelConfig;
use rlt_storage::run_folder::{DATA_RECORD, RunFolder};
use serde::{Deserialize, Serialize};

use super::hub_models;
use crate::observe::tracking::Stage;
use crate::roles::reward::RewardFunctions;
use crate::run::error::TrainError;

/// `spec.data` with the local files of the hub's data sets, and the commits of these data sets.
#[derive(Clone, Debug)]
pub(crate) struct DownloadedData {
    /// Specification in which every data set names local files.
    pub(crate) spec: DataSpec,
    /// Data sets that were found on the hub, in the order of the manifest.
    pub(crate) pinned: Vec<PinnedDataset>,
}

/// A data set of the hub, pinned to a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PinnedDataset {
    /// Index in `spec.data.datasets`.
    pub(crate) idx: usize,
    /// Specification of the data set in the manifest.
    #[serde(rename = "hub")]
    pub(crate) wanted: HubDatasetSpec,
    /// Commit that the revision resolved to when the run began.
    pub(crate) commit: String,
}

impl DownloadedData {
    /// Downloads the data sets of the hub. Commits recorded in the run's `folder` take precedence, because a
    /// branch that has moved must not change the data of a run that continues.
    pub(crate) fn find(spec: &DataSpec, folder: Option<&Path>) -> Result<Self, TrainError> {
        let record = folder.map(recorded).transpose()?.unwrap_or_default();
        let mut downloaded = Self { spec: spec.clone(), pinned: Vec::new() };
        for (idx, set) in downloaded.spec.datasets.iter_mut().enumerate() {
            let Some(wanted) = set.hub.take() else { continue };
            let recorded = record.iter().find(|pinned| (pinned.idx, &pinned.wanted) == (idx, &wanted));
            let pinned = match recorded {
                Some(pinned) => HubDatasetSpec { revision: pinned.commit.clone(), ..wanted.clone() },
                None => wanted.clone(),
            };
            let fetched = rlt_hub::fetch_dataset(&pinned, None)?;
            set.files = fetched.files.iter().map(|file| file.display().to_string()).collect();
            downloaded.pinned.push(PinnedDataset { idx, wanted, commit: fetched.commit });
        }
        Ok(downloaded)
    }

    /// Writes the commits to the run's folder, for later attempts.
    pub(super) fn record(&self, folder: &RunFolder) -> Result<(), TrainError> {
        if !self.pinned.is_empty() {
            let record = serde_json::to_value(&self.pinned).map_err(TrainError::State)?;
            folder.write_json(DATA_RECORD, &record)?;
        }
        Ok(())
    }

    /// Returns the commits of the data sets, each with the field that names the data set.
    pub(super) fn commits(&self) -> Vec<ModelCommit> {
        let commit = |pinned: &PinnedDataset| ModelCommit {
            field: format!("spec.data.datasets[{}].hub", pinned.idx),
            repo: pinned.wanted.repo.clone(),
            commit: pinned.commit.clone(),
        };
        self.pinned.iter().map(commit).collect()
    }
}

/// Returns the longest sequence of a model in tokens.
pub(crate) fn context_of(config: &ModelConfig) -> usize {
    let longest = config.longest_sequence().and_then(|longest| usize::try_from(longest).ok());
    longest.map_or(config.max_position_embeddings, |longest| longest.min(config.max_position_embeddings))
}

/// Limits prompts to the length that a model with a context of `context` tokens can complete, whatever
/// `data.maxPromptTokens` allows. A longer prompt would end the run at the step that samples it, so it is
/// treated as `data.overlongPrompts` says.
pub(crate) fn within_context(spec: &DataSpec, context: usize) -> DataSpec {
    let longest = u32::try_from(context).unwrap_or(u32::MAX).saturating_sub(1);
    DataSpec { max_prompt_tokens: spec.max_prompt_tokens.min(longest), ..spec.clone() }
}

/// Returns the record of an earlier attempt of the run in `folder`; empty before the first.
fn recorded(folder: &Path) -> Result<Vec<PinnedDataset>, TrainError> {
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
    /// Opens the data sets that the algorithm reads; `downloaded` names local files only. The model has a
    /// context of `context` tokens.
    pub(super) fn load(
        spec: &ResolvedSpec,
        downloaded: &DataSpec,
        tokenizer: &Tokenizer,
        context: usize,
    ) -> Result<Self, TrainError> {
        let held_out_preferences = preference_rows(spec, Split::HeldOut, context)
            .map(|rows| Dataset::preferences(downloaded, Split::HeldOut, tokenizer, &rows))
            .transpose()?;
        let wants_demonstrations = spec.algorithm.is_supervised() || spec.algorithm.cold_start.is_some();
        let options = stream_options(spec);
        let max_tokens = max_demonstration_tokens(spec, context);
        let prompts = || TrainingRows::prompts(downloaded, options, tokenizer, || check(spec));
        let demonstrations = || TrainingRows::demonstrations(downloaded, options, tokenizer, max_tokens);
        let preferences = |rows| TrainingRows::preferences(downloaded, options, tokenizer, &rows);
        Ok(Self {
            prompts: spec.algorithm.samples().then(prompts).transpose()?,
            demonstrations: wants_demonstrations.then(demonstrations).transpose()?,
            preferences: preference_rows(spec, Split::Train, context).map(preferences).transpose()?,
            held_out: match &held_out_preferences {
                Some(preferences) => preferences.to_prompts(),
                None => Dataset::prompts(downloaded, Split::HeldOut, tokenizer)?,
            },
            held_out_preferences,
        })
    }

    /// Returns the numbers of training rows in memory that are left out or cut, if there are any.
    pub(super) fn metrics(&self) -> Metrics {
        let of_kinds = [
            in_memory(self.prompts.as_ref()),
            in_memory(self.demonstrations.as_ref()),
            in_memory(self.preferences.as_ref()),
        ];
        row_metrics(of_kinds.into_iter().flatten().fold(DatasetCounts::default(), DatasetCounts::plus))
    }

    /// Returns warnings about rows that are left out or cut, and about completions that the model's context
    /// of `context` tokens may cut; each follows the words "this run". `data` is the specification with which
    /// the rows were loaded. Streamed rows are counted while they are read.
    pub(super) fn warnings(&self, spec: &ResolvedSpec, data: &DataSpec, context: usize) -> Vec<String> {
        let max_prompt_tokens = data.max_prompt_tokens;
        let of_prompts = if max_prompt_tokens < spec.data.max_prompt_tokens {
            format!("{max_prompt_tokens} tokens, which is all that the model's context leaves for a prompt")
        } else {
            format!("the {max_prompt_tokens} tokens of data.maxPromptTokens")
        };
        let max_tokens = max_demonstration_tokens(spec, context);
        let of_demonstrations = if max_tokens < max_demonstration_tokens(spec, usize::MAX) {
            format!("the {max_tokens} tokens of the model's context")
        } else {
            format!(
                "the {max_tokens} tokens of a micro-batch (training.maxTokensPerMicroBatch times workers.mesh.sp)"
            )
        };
        let mut of_preferences =
            format!("{of_prompts}, or their completions than rollout.maxCompletionTokens");
        if context < spec.max_sequence_tokens() as usize {
            of_preferences += &format!(", or both together than the {context} tokens of the model's context");
        }
        let of_held_out = if self.held_out_preferences.is_some() { &of_preferences } else { &of_prompts };
        let all = [
            ("training prompts", in_memory(self.prompts.as_ref()), &of_prompts),
            ("demonstrations", in_memory(self.demonstrations.as_ref()), &of_demonstrations),
            ("preferences", in_memory(self.preferences.as_ref()), &of_preferences),
            ("held-out rows", Some(self.held_out.counts()), of_held_out),
        ];
        let rows = all.into_iter().filter_map(|(rows, counts, limit)| Some((rows, counts?, limit)));
        let of_rows = rows.flat_map(|(rows, counts, limit)| row_warnings(rows, counts, limit));
        let prompts = self.prompts.as_ref().and_then(TrainingRows::in_memory);
        let lens =
            prompts.iter().flat_map(|prompts| prompts.items().iter()).map(|prompt| prompt.tokens.len());
        let of_completions = context_warning(lens, spec.rollout.max_completion_tokens as usize, context);
        of_rows.chain(of_completions).collect()
    }

    /// Returns warnings about data sets in memory with fewer rows than a step takes, whose rows repeat within
    /// the step; each follows the words "this run".
    pub(super) fn repeat_warnings(&self, spec: &ResolvedSpec) -> Vec<String> {
        let batch = spec.training.prompts_per_step;
        let (step, supervised_batch) = match &spec.algorithm.cold_start {
            Some(cold_start) => ("a step of the cold start", cold_start.batch_size),
            None => ("a step", batch),
        };
        let all = [
            repeat_warning("training prompts", in_memory(self.prompts.as_ref()), "a step", batch),
            repeat_warning("demonstrations", in_memory(self.demonstrations.as_ref()), step, supervised_batch),
            repeat_warning("preferences", in_memory(self.preferences.as_ref()), "a step", batch),
        ];
        all.into_iter().flatten().collect()
    }

    pub(super) fn in_order(self, spec: &ResolvedSpec) -> Result<Pipeline, TrainError> {
        let (shuffle, seed) = (spec.data.shuffle, data_seed(spec));
        Ok(Pipeline {
            prompts: self.prompts.map(|rows| rows.in_order(shuffle, seed)).transpose()?,
            demonstrations: self.demonstrations.map(|rows| rows.in_order(shuffle, seed)).transpose()?,
            preferences: self.preferences.map(|rows| rows.in_order(shuffle, seed)).transpose()?,
            held_out: self.held_out,
            held_out_preferences: self.held_out_preferences,
        })
    }

    /// Returns the number of training steps. A streamed job sets `training.steps`, so its number of rows is
    /// not needed.
    pub(super) fn num_steps(&self, spec: &ResolvedSpec) -> u64 {
        let demonstrations =
            || self.demonstrations.as_ref().and_then(TrainingRows::in_memory).map(Dataset::len);
        let preferences = || self.preferences.as_ref().and_then(TrainingRows::in_memory).map(Dataset::len);
        let prompts = self.prompts.as_ref().and_then(TrainingRows::in_memory).map(Dataset::len);
        let num_rows = prompts.or_else(preferences).or_else(demonstrations).unwrap_or(0);
        spec.training.length.num_steps(num_rows as u64, spec.training.prompts_per_step)
    }
}

/// Returns the numbers of rows that are left out or cut, if there are any.
pub(crate) fn row_metrics(counts: DatasetCounts) -> Metrics {
    let numbers = [("data/num_filtered", counts.num_filtered), ("data/num_truncated", counts.num_truncated)];
    let counted = numbers.into_iter().filter(|(_, number)| *number > 0);
    counted.map(|(name, number)| (name.to_owned(), number as f64)).collect()
}

/// Returns the warnings about streamed rows that were left out or cut.
pub(crate) fn streamed_warnings(counts: DatasetCounts) -> Vec<String> {
    row_warnings("streamed rows", counts, "the job or the model's context allows")
}

/// Returns the number of rows that a step drew again, if there are any.
pub(crate) fn repeat_metrics(draws: StepDraws) -> Metrics {
    let repeated = (draws.num_repeated > 0).then_some(("data/num_repeated", draws.num_repeated));
    repeated.into_iter().map(|(name, number)| (name.to_owned(), number as f64)).collect()
}

/// Returns a warning if the first step of a stage drew rows again. Before the start, the number of rows of a
/// stream is unknown, and so is how often a step draws the rows of a weighted data set.
pub(crate) fn first_step_warning(stage: Stage, draws: StepDraws) -> Option<String> {
    let StepDraws { num_drawn, num_repeated } = draws;
    let step = match stage {
        Stage::ColdStart => "the first step of the cold start",
        Stage::Training => "the first step",
    };
    (num_repeated > 0).then(|| {
        let num_new = num_drawn - num_repeated;
        format!(
            "repeats rows within a step: {step} takes {num_drawn} rows and has {num_new} without repetition"
        )
    })
}

fn in_memory<T>(rows: Option<&TrainingRows<T>>) -> Option<DatasetCounts> {
    rows.and_then(TrainingRows::in_memory).map(Dataset::counts)
}

/// Returns the warnings about `rows`, such as "training prompts", of which those longer than `limit` were
/// left out or cut.
fn row_warnings(rows: &str, counts: DatasetCounts, limit: &str) -> Vec<String> {
    let DatasetCounts { num_rows, num_filtered, num_truncated } = counts;
    let mut warnings = Vec::new();
    if num_filtered > 0 {
        warnings
            .push(format!("leaves out {num_filtered} of {num_rows} {rows}: they are longer than {limit}"));
    }
    if num_truncated > 0 {
        warnings.push(format!("cuts {num_truncated} of {num_rows} {rows}: they are longer than {limit}"));
    }
    warnings
}

/// Returns a warning if `rows`, such as "training prompts", are fewer than the `batch` that `step` takes;
/// `None` for `counts` if the job has no such rows in memory.
fn repeat_warning(rows: &str, counts: Option<DatasetCounts>, step: &str, batch: u32) -> Option<String> {
    let counts = counts?;
    let num_kept = counts.num_rows - counts.num_filtered;
    (num_kept < u64::from(batch))
        .then(|| format!("repeats {rows} within a step: there are {num_kept}, and {step} takes {batch}"))
}

/// Returns a warning if prompts of these lengths leave less than `max_completion_tokens` of the model's
/// context for a completion.
fn context_warning(
    prompt_lens: impl Iterator<Item = usize>,
    max_completion_tokens: usize,
    context: usize,
) -> Option<String> {
    let num_short = prompt_lens.filter(|len| len + max_completion_tokens > context).count();
    (num_short > 0).then(|| {
        format!(
            "has {num_short} training prompts whose completions may be cut before rollout.maxCompletionTokens: \
             the model's context has {context} tokens"
        )
    })
}

/// Returns the maximum number of tokens of a demonstration for a model with a context of `context` tokens.
pub(crate) fn max_demonstration_tokens(spec: &ResolvedSpec, context: usize) -> usize {
    let budget = spec.training.max_tokens_per_micro_batch as usize * spec.workers.mesh.sp as usize;
    budget.min(context)
}

/// Returns the preference rows of a split; `None` if the algorithm does not learn from preferences of a data
/// set. The model has a context of `context` tokens.
pub(crate) fn preference_rows(spec: &ResolvedSpec, split: Split, context: usize) -> Option<PreferenceRows> {
    let max_sequence_tokens = (spec.max_sequence_tokens() as usize).min(context);
    let max_completion_tokens = spec.rollout.max_completion_tokens as usize;
    let limits = PreferenceLimits { max_completion_tokens, max_sequence_tokens };
    if let Some(process_reward) = &spec.algorithm.process_reward {
        return Some(PreferenceRows::Steps(StepFormat {
            separator: process_reward.step_separator.clone().unwrap_or_else(|| "\n".into()),
            last_only: process_reward.last_step_only && split == Split::Train,
            limits,
        }));
    }
    let format = match &spec.algorithm.preference {
        _ if spec.algorithm.reward_model.is_some() => PreferenceFormat::PairsWithMargin,
        Some(_) if spec.algorithm.samples() => return None,
        Some(Preference::Pairs(_)) => PreferenceFormat::Pairs,
        Some(Preference::Labels(_)) => PreferenceFormat::Labels,
        None => return None,
    };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_leaves_room_for_a_token_in_the_models_context() {
        let spec = DataSpec { max_prompt_tokens: 512, ..DataSpec::default() };
        let longest = |context| within_context(&spec, context).max_prompt_tokens;
        assert_eq!([1, 512, 513, usize::MAX].map(longest), [0, 511, 512, 512]);
    }

    /// Returns a job of this kind with prompts of 512 tokens, completions of 256 and micro-batches of 2048.
    fn job(kind: &str) -> rlt_api::ValidatedJob {
        let text = format!(
            "apiVersion: rltraining.dev/v1alpha1\nkind: RLTrainingJob\nmetadata: {{name: rows}}\nspec:\n  \
             model: {{path: /models/one}}\n  data: {{train: [a.jsonl], maxPromptTokens: 512}}\n  \
             algorithm: {{kind: {kind}}}\n  rollout: {{maxCompletionTokens: 256}}\n  \
             training: {{steps: 1, maxTokensPerMicroBatch: 2048}}\n"
        );
        rlt_api::validate(&text).unwrap()
    }

    #[test]
    fn demonstrations_fit_into_a_micro_batch_and_into_the_models_context() {
        let job = job("SFT");
        let longest = |context| max_demonstration_tokens(job.spec(), context);
        assert_eq!([100, 2048, usize::MAX].map(longest), [100, 2048, 2048]);
    }

    #[test]
    fn preferences_and_steps_fit_into_the_models_context() {
        for kind in ["DPO", "KTO", "RewardModel", "ProcessReward"] {
            let job = job(kind);
            let longest = |context| match preference_rows(job.spec(), Split::Train, context).unwrap() {
                PreferenceRows::Completions(_, limits) => limits.max_sequence_tokens,
                PreferenceRows::Steps(format) => format.limits.max_sequence_tokens,
            };
            assert_eq!([100, 768, usize::MAX].map(longest), [100, 768, 768], "{kind}");
        }
    }

    #[test]
    fn completions_that_the_context_may_cut_are_counted_by_their_prompts() {
        let warning = |context| context_warning([3, 4, 5].into_iter(), 10, context);
        assert_eq!(warning(15), None);
        let warning = warning(13).unwrap();
        assert!(
            warning.starts_with("has 2 training prompts") && warning.ends_with("has 13 tokens"),
            "{warning}"
        );
    }

    #[test]
    fn rows_that_are_left_out_cut_or_repeated_are_counted() {
        let counts = |num_filtered, num_truncated| DatasetCounts { num_rows: 8, num_filtered, num_truncated };
        assert_eq!(row_warnings("prompts", counts(0, 0), "4 tokens"), [""; 0]);
        assert_eq!(
            row_warnings("prompts", counts(3, 2), "4 tokens"),
            [
                "leaves out 3 of 8 prompts: they are longer than 4 tokens",
                "cuts 2 of 8 prompts: they are longer than 4 tokens",
            ]
        );
        let repeats = |counts| repeat_warning("prompts", counts, "a step", 6);
        assert_eq!([None, Some(counts(2, 2))].map(repeats), [None, None]);
        assert_eq!(
            repeats(Some(counts(3, 2))).unwrap(),
            "repeats prompts within a step: there are 5, and a step takes 6"
        );
        let first =
            |num_repeated| first_step_warning(Stage::ColdStart, StepDraws { num_drawn: 9, num_repeated });
        assert_eq!(first(0), None);
        assert_eq!(
            first(2).unwrap(),
            "repeats rows within a step: the first step of the cold start takes 9 rows and has 7 without \
             repetition"
        );
    }
}
