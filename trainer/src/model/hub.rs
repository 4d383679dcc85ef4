//! Models by their id on the Hugging Face hub, or on a mirror that speaks its protocol.
//!
//! A revision is resolved to a commit first, and everything is then fetched by that commit, so that a branch
//! which moves in between cannot mix two versions. Files go to the hub's ordinary cache (`HF_HOME`,
//! `HF_HUB_CACHE`), shared with other tools; `HF_TOKEN` is sent where it is set.

mod snapshot;

use std::path::{Path, PathBuf};

use hf_hub::{HFClient, HFError, resolve_cache_dir, split_id};
use rlt_api::ExitCode;
use rlt_api::spec::HubSpec;

pub use snapshot::SnapshotError;

/// A model that was fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// The commit that the revision named, 40 hexadecimal digits; fetching it again gives the same bytes.
    pub commit: String,
    /// The folder that holds its files.
    pub dir: PathBuf,
}

/// Why a model could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// The client could not be set up.
    #[error("connecting to the hub for {repo}")]
    Client {
        /// Owner and name.
        repo: String,
        /// What went wrong.
        source: Box<HFError>,
    },
    /// The revision names nothing, or the hub gave no answer.
    #[error("resolving revision {revision:?} of {repo} to a commit")]
    Resolve {
        /// Owner and name.
        repo: String,
        /// Branch, tag or commit.
        revision: String,
        /// What the hub said.
        source: Box<HFError>,
    },
    /// The hub's answer holds no commit.
    #[error(
        "resolving revision {revision:?} of {repo}: expected a commit of 40 hexadecimal digits, got {got:?}"
    )]
    NoCommit {
        /// Owner and name.
        repo: String,
        /// Branch, tag or commit.
        revision: String,
        /// What the answer holds instead.
        got: String,
    },
    /// A file could not be fetched.
    #[error("fetching {repo} at commit {commit}")]
    Fetch {
        /// Owner and name.
        repo: String,
        /// The commit.
        commit: String,
        /// Which file, and why.
        source: SnapshotError,
    },
}

impl HubError {
    /// The exit code of a run that ends with this.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::NoCommit { .. } => ExitCode::BadConfig,
            Self::Fetch { source: SnapshotError::BadName { .. } | SnapshotError::TooMany, .. } => {
                ExitCode::BadConfig
            }
            _ => ExitCode::RetryableIo,
        }
    }
}

/// Fetches the model that `spec.model.hub` names into the hub's cache, or into `cache_dir`; what is there
/// already is not fetched again.
///
/// # Errors
/// [`HubError`], by the step that failed.
pub fn fetch(spec: &HubSpec, cache_dir: Option<&Path>) -> Result<HubModel, HubError> {
    let HubSpec { repo, revision, endpoint } = spec;
    let mut builder = HFClient::builder();
    if let Some(endpoint) = endpoint {
        builder = builder.endpoint(endpoint);
    }
    if let Some(cache_dir) = cache_dir {
        builder = builder.cache_dir(cache_dir);
    }
    let client = builder
        .build_sync()
        .map_err(|source| HubError::Client { repo: repo.clone(), source: Box::new(source) })?;
    let (owner, name) = split_id(repo);
    let repository = client.model(owner, name);

    let info = repository.info().revision(revision).send().map_err(|source| HubError::Resolve {
        repo: repo.clone(),
        revision: revision.clone(),
        source: Box::new(source),
    })?;
    let got = info.sha.unwrap_or_default();
    if !is_commit(&got) {
        return Err(HubError::NoCommit { repo: repo.clone(), revision: revision.clone(), got });
    }
    let cache_dir = cache_dir.map_or_else(resolve_cache_dir, Path::to_path_buf);
    let dir = cache_dir.join(format!("models--{}", repo.replace('/', "--"))).join("snapshots").join(&got);
    snapshot::fetch(&repository, &got, &dir).map_err(|source| HubError::Fetch {
        repo: repo.clone(),
        commit: got.clone(),
        source,
    })?;
    Ok(HubModel { commit: got, dir })
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests;
