//! Downloads models and data sets from the Hugging Face hub, or from a mirror with the same protocol.
//!
//! A revision is first resolved to a commit, and all files are then fetched at that commit, so that a branch
//! that moves meanwhile cannot mix two versions. Files go to the hub's ordinary cache (`HF_HOME`,
//! `HF_HUB_CACHE`), shared with other tools. The user's token (`HF_TOKEN`, or the file of a login) is sent to
//! the public hub and to the mirror of `HF_ENDPOINT`, but to no other mirror that a manifest names. [`push`]
//! commits a folder to a model repository.

mod cache;
mod client;
mod credentials;
mod dataset_files;
pub mod push;
mod snapshot;

use std::path::{Path, PathBuf};

use rlt_api::ExitCode;
use rlt_api::spec::{HubDatasetSpec, HubSpec};

pub use client::RequestError;
use client::{HubRepository, RepositoryKind};
pub use dataset_files::DatasetFilesError;
use snapshot::Listed;
pub use snapshot::{SnapshotError, is_of_model};

/// File whose metadata may say which files belong to a data set.
const README: &str = "README.md";
/// Maximum size of the README in bytes.
const MAX_README_BYTES: u64 = 4 << 20;
/// Maximum number of characters of the hub's answer that an error quotes.
const MAX_SHOWN_CHARS: usize = 100;

/// A model that was fetched to the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// Commit to which the revision was resolved, 40 hexadecimal digits; fetching it again gives the same
    /// bytes.
    pub commit: String,
    /// Folder of the model's files.
    pub dir: PathBuf,
}

/// A split of a data set that was fetched to the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubDataset {
    /// Commit to which the revision was resolved, 40 hexadecimal digits; fetching it again gives the same
    /// bytes.
    pub commit: String,
    /// Files of the split, in the order of their rows.
    pub files: Vec<PathBuf>,
}

/// An error of fetching a model or a data set.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The client of the hub could not be created.
    #[error("connecting to the hub for {repo}")]
    Client {
        /// Repository as `owner/name`.
        repo: String,
        /// Error of the request.
        source: Box<RequestError>,
    },
    /// The revision does not exist, or the hub did not answer.
    #[error("resolving revision {revision:?} of {repo} to a commit")]
    Resolve {
        /// Repository as `owner/name`.
        repo: String,
        /// Branch, tag or commit that was requested.
        revision: String,
        /// Error of the request.
        source: Box<RequestError>,
    },
    /// The hub's answer contains no commit.
    #[error(
        "resolving revision {revision:?} of {repo}: expected a commit of 40 hexadecimal digits, got {got:?}"
    )]
    NoCommit {
        /// Repository as `owner/name`.
        repo: String,
        /// Branch, tag or commit that was requested.
        revision: String,
        /// Answer of the hub.
        got: String,
    },
    /// A file could not be fetched.
    #[error("fetching {repo} at commit {commit}")]
    Fetch {
        /// Repository as `owner/name`.
        repo: String,
        /// Commit that was fetched.
        commit: String,
        /// Error of the snapshot, which names the file or the request.
        source: SnapshotError,
    },
    /// The files of the split could not be determined.
    #[error("finding split {split:?} of the data set {repo} at commit {commit}")]
    DatasetFiles {
        /// Repository as `owner/name`.
        repo: String,
        /// Commit whose files were searched.
        commit: String,
        /// Name of the split.
        split: String,
        /// Reason why the files are not known.
        source: DatasetFilesError,
    },
}

impl HubError {
    /// Exit code of a process that ends with this error.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::NoCommit { .. } | Self::DatasetFiles { .. } => ExitCode::BadConfig,
            Self::Fetch { source: SnapshotError::BadName { .. } | SnapshotError::TooMany, .. } => {
                ExitCode::BadConfig
            }
            Self::Client { source, .. }
            | Self::Resolve { source, .. }
            | Self::Fetch { source: SnapshotError::Hub { source, .. }, .. }
                if source.is_permanent() =>
            {
                ExitCode::BadConfig
            }
            _ => ExitCode::RetryableIo,
        }
    }
}

/// Fetches the model that `spec.model.hub` names into the hub's cache, or into `cache_dir`; cached files are
/// not fetched again. If all files of the commit are cached, the hub need not answer.
///
/// # Errors
/// [`HubError`], whose variant is the step that failed.
pub fn fetch(spec: &HubSpec, cache_dir: Option<&Path>) -> Result<HubModel, HubError> {
    let snapshot = Snapshot::of(spec, RepositoryKind::Model, cache_dir)?;
    let listed = snapshot.list()?;
    snapshot.fetch(listed.iter().filter(|file| is_of_model(&file.name)))?;
    Ok(HubModel { commit: snapshot.commit, dir: snapshot.dir })
}

/// Fetches the split of a data set that `spec` names, in the same way as [`fetch`] fetches models.
///
/// # Errors
/// [`HubError`], whose variant is the step that failed.
pub fn fetch_dataset(spec: &HubDatasetSpec, cache_dir: Option<&Path>) -> Result<HubDataset, HubError> {
    let snapshot = Snapshot::of(&spec.repository(), RepositoryKind::Dataset, cache_dir)?;
    let listed = snapshot.list()?;
    let unknown = |source| HubError::DatasetFiles {
        repo: spec.repo.clone(),
        commit: snapshot.commit.clone(),
        split: spec.split.clone(),
        source,
    };
    let readme = snapshot.readme(&listed)?.map_err(unknown)?;
    let names: Vec<&str> = listed.iter().map(|file| &*file.name).collect();
    let names = dataset_files::find(&names, readme.as_deref(), spec.config.as_deref(), &spec.split);
    let names = names.map_err(unknown)?;
    snapshot.fetch(listed.iter().filter(|file| names.contains(&file.name)))?;
    let files = names.iter().map(|name| snapshot.dir.join(name)).collect();
    Ok(HubDataset { files, commit: snapshot.commit })
}

fn client(spec: &HubSpec, kind: RepositoryKind) -> Result<HubRepository, HubError> {
    let endpoint = spec.endpoint.clone().unwrap_or_else(credentials::own_endpoint);
    let token = credentials::token_for(&endpoint);
    let failed = |source| HubError::Client { repo: spec.repo.clone(), source: Box::new(source) };
    HubRepository::new(&endpoint, kind, &spec.repo, token.as_deref()).map_err(failed)
}

/// Resolves the revision of `spec` to a commit; asks the hub unless the revision is a commit already.
fn commit_of(spec: &HubSpec, repository: &HubRepository) -> Result<String, HubError> {
    let HubSpec { repo, revision, .. } = spec.clone();
    if is_commit(&revision) {
        return Ok(revision);
    }
    match repository.commit_of(&revision) {
        Ok(commit) if is_commit(&commit) => Ok(commit),
        Ok(got) => {
            let got = got.chars().take(MAX_SHOWN_CHARS).collect();
            Err(HubError::NoCommit { repo, revision, got })
        }
        Err(source) => Err(HubError::Resolve { repo, revision, source: Box::new(source) }),
    }
}

/// A repository at a commit, and the folder of its files in the cache.
struct Snapshot {
    repo: String,
    repository: HubRepository,
    commit: String,
    dir: PathBuf,
}

impl Snapshot {
    /// Resolves the revision of `spec` to a commit.
    fn of(spec: &HubSpec, kind: RepositoryKind, cache_dir: Option<&Path>) -> Result<Self, HubError> {
        let repository = client(spec, kind)?;
        let commit = commit_of(spec, &repository)?;
        let cache_dir = cache_dir.map_or_else(cache::folder, Path::to_path_buf);
        let folder = format!("{}--{}", kind.plural(), spec.repo.replace('/', "--"));
        let dir = cache_dir.join(folder).join("snapshots").join(&commit);
        Ok(Self { repo: spec.repo.clone(), repository, commit, dir })
    }

    /// Lists the files of the commit. If the hub does not answer, returns the list that was cached with the
    /// files, so that a run whose files are all cached continues without the hub.
    fn list(&self) -> Result<Vec<Listed>, HubError> {
        match snapshot::list(&self.repository, &self.commit) {
            Ok(listed) => {
                snapshot::keep_listing(&self.dir, &listed);
                Ok(listed)
            }
            Err(error @ SnapshotError::Hub { .. }) => {
                let Some(listed) = snapshot::kept_listing(&self.dir) else { return Err(self.failed(error)) };
                let (repo, commit) = (&self.repo, &self.commit);
                let cause = &error as &dyn std::error::Error;
                tracing::warn!(error = cause, repo, commit, "the hub does not answer, its cache is used");
                Ok(listed)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    fn fetch<'a>(&self, files: impl Iterator<Item = &'a Listed>) -> Result<(), HubError> {
        let fetched = snapshot::fetch(&self.repository, &self.commit, &self.dir, files);
        fetched.map_err(|source| self.failed(source))
    }

    /// Reads the README; `None` if the repository has none. The inner error says why it cannot be used.
    fn readme(&self, listed: &[Listed]) -> Result<Result<Option<String>, DatasetFilesError>, HubError> {
        let Some(readme) = listed.iter().find(|file| file.name == README) else { return Ok(Ok(None)) };
        if readme.num_bytes > MAX_README_BYTES {
            return Ok(Err(DatasetFilesError::LongReadme { num_bytes: readme.num_bytes }));
        }
        self.fetch(std::iter::once(readme))?;
        let path = self.dir.join(README);
        let text = rlt_files::read(&path, MAX_README_BYTES);
        let unread =
            |source| self.failed(SnapshotError::Cache { act: "reading", path: path.clone(), source });
        Ok(Ok(Some(String::from_utf8_lossy(&text.map_err(unread)?).into_owned())))
    }

    fn failed(&self, source: SnapshotError) -> HubError {
        HubError::Fetch { repo: self.repo.clone(), commit: self.commit.clone(), source }
    }
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests;
