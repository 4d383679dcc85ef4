//! Inputs of a run: the policy's folder with its tokenizer and weights, and the data sets.

use std::path::{Path, PathBuf};

use rlt_api::resolved::{ResolvedSpec, TokenizerSource};
use rlt_channel::ModelCommit;
use rlt_data::tokenizer::Tokenizer;
use rlt_decoder::{BaseModel, Weights, unknown_fields};
use rlt_models::ModelFile;
use rlt_parallel::Ranks;
use rlt_plan::check_model;
use rlt_storage::run_folder::RunFolder;
use tch::Device;

use super::datasets::{Datasets, DownloadedData, context_of, within_context};
use super::{device, hub_models, load_tokenizer, model, source_kind};
use crate::run::ModelOrigin;
use crate::run::error::TrainError;

/// The files of the policy.
pub(super) struct ModelFiles {
    /// Folder of the model; `None` for a new one.
    dir: Option<PathBuf>,
    /// The model that the policy starts from; `None` for a new one.
    base: Option<BaseModel>,
}

impl ModelFiles {
    /// Returns the sources of all models of a run, with the `commits` of its data sets.
    pub(super) fn origin(
        self,
        spec: &ResolvedSpec,
        reward_folders: &[PathBuf],
        commits: Vec<ModelCommit>,
    ) -> ModelOrigin {
        let dir = self.dir.as_deref();
        ModelOrigin {
            commits: [model::commits(spec, dir, reward_folders), commits].concat(),
            // A model with merged adapters exists in no other folder.
            base: self.base.filter(|_| spec.model.adapters.is_empty()),
            kind: source_kind(dir),
        }
    }
}

/// Inputs of a run, which are read before it starts.
pub(super) struct Inputs {
    /// The files of the policy.
    pub(super) model: ModelFiles,
    /// The policy's tokenizer.
    pub(super) tokenizer: Tokenizer,
    /// The data sets as local files.
    pub(super) downloaded: DownloadedData,
    /// The policy's weights as they are stored.
    pub(super) weights: Weights,
    /// The rows of the data sets.
    pub(super) datasets: Datasets,
    /// Warnings about rows that are left out or cut.
    pub(super) data_warnings: Vec<String>,
    /// Warnings about rows that repeat within a step, because a data set has fewer rows than a step takes.
    pub(super) repeat_warnings: Vec<String>,
}

impl Inputs {
    /// Finds and opens the inputs of a job that runs on `device`.
    ///
    /// # Errors
    /// [`TrainError`], which names the mismatch.
    pub(super) fn load(
        spec: &ResolvedSpec,
        device: Device,
        folder: &RunFolder,
        ranks: &Ranks,
    ) -> Result<Self, TrainError> {
        // The leader downloads, the other ranks use the cache.
        let (dir, base) = ranks.leader_first(|| hub_models::model_folder(spec, folder, ranks))?.unzip();
        let tokenizer = load_tokenizer(spec, dir.as_deref())?;
        let downloaded = ranks.leader_first(|| DownloadedData::find(&spec.data, Some(folder.root())))?;
        if ranks.is_leader() {
            downloaded.record(folder)?;
        }
        let weights = model::weights(spec, dir.as_deref(), &tokenizer)?;
        check_model(spec, weights.config(), device::chosen(device))?;
        if ranks.is_leader() {
            report_unknown_fields(spec, dir.as_deref())?;
        }
        let model_context = context_of(weights.config());
        let data = within_context(&downloaded.spec, model_context);
        let datasets = Datasets::load(spec, &data, &tokenizer, model_context)?;
        Ok(Self {
            data_warnings: datasets.warnings(spec, &data, model_context),
            repeat_warnings: datasets.repeat_warnings(spec),
            model: ModelFiles { dir, base },
            tokenizer,
            downloaded,
            weights,
            datasets,
        })
    }
}

/// Reports unknown fields in the files of the model in `dir` and of its tokenizer.
fn report_unknown_fields(spec: &ResolvedSpec, dir: Option<&Path>) -> Result<(), TrainError> {
    let tokenizer_dir = match &spec.model.tokenizer {
        Some(TokenizerSource::Path(path)) => Some(Path::new(path)),
        Some(TokenizerSource::Characters(_)) => None,
        None => dir,
    };
    let of_model: &[ModelFile] = &[ModelFile::Config, ModelFile::GenerationConfig];
    let of_tokenizer: &[ModelFile] = &[ModelFile::TokenizerConfig, ModelFile::SpecialTokensMap];
    for (dir, files) in [(dir, of_model), (tokenizer_dir, of_tokenizer)] {
        for sentence in dir.map_or(Ok(Vec::new()), |dir| unknown_fields(dir, files))? {
            tracing::warn!("{sentence}");
        }
    }
    Ok(())
}
