//! Models of the hub, pinned to the commits that the run read first: a branch that has moved must not change
//! the weights of a run that continues.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rlt_api::resolved::{ModelSource, ResolvedSpec};
use rlt_api::spec::HubSpec;
use rlt_decoder::BaseModel;
use rlt_parallel::Ranks;
use rlt_storage::run_folder::{MODEL_RECORD, REWARD_MODELS_RECORD, RunFolder};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::run::error::TrainError;

/// A repository of the hub at a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RepoCommit {
    /// Repository as `owner/name`.
    pub(crate) repo: String,
    /// Commit hash, 40 hexadecimal digits.
    pub(crate) commit: String,
}

impl RepoCommit {
    /// Returns the commit of a model that is cached in the folder `dir`, which is named after the commit.
    pub(crate) fn of(hub: &HubSpec, dir: &Path) -> Option<Self> {
        Some(Self { repo: hub.repo.clone(), commit: dir.file_name()?.to_str()?.to_owned() })
    }

    fn pin(&self, hub: &mut HubSpec) {
        if hub.repo == self.repo {
            self.commit.clone_into(&mut hub.revision);
        }
    }
}

/// Returns `spec` with the revisions of models replaced by the commits that the run in the folder `root` has
/// recorded; before its first attempt there are none.
///
/// # Errors
/// [`TrainError::Io`] and [`TrainError::HubRecord`] for a record that cannot be read.
pub(crate) fn pinned(spec: &ResolvedSpec, root: &Path) -> Result<ResolvedSpec, TrainError> {
    let mut spec = spec.clone();
    if let ModelSource::Hub(hub) = &mut spec.model.source
        && let Some(recorded) = read_record::<RepoCommit>(&root.join(MODEL_RECORD))?
    {
        recorded.pin(hub);
    }
    let judges: Option<BTreeMap<String, RepoCommit>> = read_record(&root.join(REWARD_MODELS_RECORD))?;
    for function in &mut spec.rewards.functions {
        let recorded = judges.as_ref().and_then(|judges| judges.get(&function.name));
        if let (Some(hub), Some(recorded)) =
            (function.model.as_mut().and_then(|model| model.hub.as_mut()), recorded)
        {
            recorded.pin(hub);
        }
    }
    Ok(spec)
}

/// Returns the folder that the model is read from, and the name of the model; `None` for a new model. A model
/// of the hub is downloaded at the commit that the run in the folder `root` has recorded.
///
/// # Errors
/// As [`pinned`], and [`TrainError::Hub`].
pub(crate) fn base_model(
    spec: &ResolvedSpec,
    root: &Path,
) -> Result<Option<(PathBuf, BaseModel)>, TrainError> {
    match &pinned(spec, root)?.model.source {
        ModelSource::Path(path) => {
            Ok(Some((path.into(), BaseModel { name_or_path: path.clone(), revision: None })))
        }
        ModelSource::Hub(hub) => {
            let model = rlt_hub::fetch(hub, None)?;
            let base = BaseModel { name_or_path: hub.repo.clone(), revision: Some(model.commit) };
            Ok(Some((model.dir, base)))
        }
        ModelSource::Architecture(_) => Ok(None),
    }
}

/// Returns the [`base_model`] of the run in `folder`. The leader records the commit of a model from the hub.
pub(super) fn model_folder(
    spec: &ResolvedSpec,
    folder: &RunFolder,
    ranks: &Ranks,
) -> Result<Option<(PathBuf, BaseModel)>, TrainError> {
    let base = base_model(spec, folder.root())?;
    if let (ModelSource::Hub(hub), Some((dir, _)), true) = (&spec.model.source, &base, ranks.is_leader()) {
        let record = serde_json::to_value(RepoCommit::of(hub, dir)).map_err(TrainError::State)?;
        folder.write_json(MODEL_RECORD, &record)?;
    }
    Ok(base)
}

/// Records the commits of the hub's reward models, which were read from `folders`.
pub(super) fn record_judges(
    folder: &RunFolder,
    spec: &ResolvedSpec,
    folders: &[PathBuf],
) -> Result<(), TrainError> {
    let judges = spec.rewards.functions.iter().filter_map(|one| Some((&one.name, one.model.as_ref()?)));
    let commits: BTreeMap<&String, RepoCommit> = judges
        .zip(folders)
        .filter_map(|((name, model), dir)| Some((name, RepoCommit::of(model.hub.as_ref()?, dir)?)))
        .collect();
    let record = serde_json::to_value(&commits).map_err(TrainError::State)?;
    Ok(folder.write_json(REWARD_MODELS_RECORD, &record)?)
}

/// Reads a record of commits; `None` if the run has not written it yet.
///
/// # Errors
/// As [`pinned`].
pub(crate) fn read_record<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, TrainError> {
    match std::fs::read(path) {
        Ok(record) => serde_json::from_slice(&record)
            .map(Some)
            .map_err(|source| TrainError::HubRecord { path: path.to_owned(), source }),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TrainError::Io { act: "read", path: path.display().to_string(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_pinned_to_the_commits_of_the_run_s_records() {
        let text = r#"
apiVersion: rltraining.dev/v1alpha1
kind: RLTrainingJob
metadata: {name: hub}
spec:
  model: {hub: {repo: owner/policy, revision: main}}
  data: {train: [a.jsonl]}
  rewards:
    functions:
      - {name: near, kind: Model, model: {path: /models/judge}}
      - {name: far, kind: Model, model: {hub: {repo: owner/judge, revision: v1}}}
      - {name: other, kind: Model, model: {hub: {repo: owner/other, revision: v2}}}
  algorithm: {kind: GRPO}
  training: {steps: 1}
"#;
        let job = rlt_api::validate(text).unwrap();
        let root = tempfile::tempdir().unwrap();
        let revisions = || -> Result<Vec<String>, TrainError> {
            let spec = pinned(job.spec(), root.path())?;
            let ModelSource::Hub(policy) = spec.model.source else { panic!("the hub's") };
            let judges = spec.rewards.functions.into_iter();
            let judges = judges.filter_map(|one| Some(one.model?.hub?.revision));
            Ok([policy.revision].into_iter().chain(judges).collect())
        };
        assert_eq!(revisions().unwrap(), ["main", "v1", "v2"]);
        let folders = ["/models/judge", "/hub/models--owner--judge/snapshots/b", "/hub/x"].map(PathBuf::from);
        let folder = RunFolder::open(root.path(), false).unwrap();
        record_judges(&folder, job.spec(), &folders).unwrap();
        let policy = serde_json::json!({ "repo": "owner/policy", "commit": "a" });
        folder.write_json(MODEL_RECORD, &policy).unwrap();
        assert_eq!(revisions().unwrap(), ["a", "b", "x"]);
        std::fs::write(
            root.path().join(REWARD_MODELS_RECORD),
            r#"{"far": {"repo": "owner/c", "commit": "d"}}"#,
        )
        .unwrap();
        assert_eq!(revisions().unwrap(), ["a", "v1", "v2"]);
        std::fs::write(root.path().join(REWARD_MODELS_RECORD), "[]").unwrap();
        let error = revisions().unwrap_err().to_string();
        assert!(
            error.contains("reward-models.json, which says at which commits the run read models"),
            "{error}"
        );
    }
}
