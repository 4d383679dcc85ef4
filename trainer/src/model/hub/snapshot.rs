//! Files of one commit in the hub's cache. File names come from an untrusted server, so none of them may lead
//! outside of the snapshot's folder.
//!
//! Files are stored in the snapshot itself, not behind links: other clients build the paths of links from the
//! server's entity tags, which are not used here.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use hf_hub::repository::{RepoTreeEntry, RepoType};
use hf_hub::{HFError, HFRepositorySync};
use serde::{Deserialize, Serialize};

/// Names of the files that belong to a model: weights, configuration, tokenizer, chat templates and image
/// processor, but no code and no other formats. A star matches any characters except `/`.
const WANTED: [&str; 13] = [
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "model*.safetensors",
    "tokenizer*.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template*",
    "additional_chat_templates/*.jinja",
    "*processor_config.json",
];
/// Name of the file in the snapshot's folder that lists the files of the commit.
const LISTING: &str = ".listing.json";
/// Maximum size of that list in bytes.
const MAX_LISTING_BYTES: u64 = 64 << 20;
/// Maximum number of files that a repository may list.
const MAX_FILES: usize = 100_000;
/// Maximum number of concurrent downloads.
const NUM_CONCURRENT: usize = 4;

/// An error of listing or fetching the files of a commit.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The server lists a file whose name leads outside of the snapshot.
    #[error("file name {name:?}: expected names below the repository's folder, without `.` and `..`")]
    BadName {
        /// File name in the server's list.
        name: String,
    },
    /// The server lists too many files.
    #[error("expected at most {MAX_FILES} files")]
    TooMany,
    /// The server rejects a request, or does not answer.
    #[error("{act}")]
    Hub {
        /// Failed request, such as `listing the files`.
        act: String,
        /// Error of the hub's client.
        source: Box<HFError>,
    },
    /// The length of a file differs from the server's list.
    #[error("file {name}: expected {expected} bytes, got {got}")]
    Length {
        /// Name of the file in the repository.
        name: String,
        /// Length in the server's list, in bytes.
        expected: u64,
        /// Length of the received file, in bytes.
        got: u64,
    },
    /// The cache cannot be written.
    #[error("{act} {path}", path = path.display())]
    Cache {
        /// Failed operation on the cache, such as `renaming`.
        act: &'static str,
        /// File or folder on which the operation failed.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
}

/// A file in the server's list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Listed {
    /// Path in the repository, which was checked to stay below the folder that it is joined to.
    pub(super) name: String,
    pub(super) num_bytes: u64,
}

/// Fetches files of `listed` into the folder `dir`; existing files of the listed length are not fetched
/// again.
///
/// # Errors
/// [`SnapshotError`].
pub(super) fn fetch<'a, T: RepoType + Sync>(
    repository: &HFRepositorySync<T>,
    commit: &str,
    dir: &Path,
    listed: impl Iterator<Item = &'a Listed>,
) -> Result<(), SnapshotError> {
    fs::create_dir_all(dir).map_err(failed("create folder", dir))?;
    let is_whole = |file: &&Listed| {
        fs::metadata(dir.join(&file.name)).is_ok_and(|metadata| metadata.len() == file.num_bytes)
    };
    let missing: Vec<&Listed> = listed.filter(|file| !is_whole(file)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let idx = next.fetch_add(1, Ordering::Relaxed);
            let Some(file) = missing.get(idx) else { return Ok(()) };
            fetch_file(repository, commit, dir, file)?;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..NUM_CONCURRENT.min(missing.len())).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(outcome) => outcome,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}

/// Lists all files of a commit.
///
/// # Errors
/// [`SnapshotError`]; a name that leads outside of the snapshot makes the list invalid.
pub(super) fn list<T: RepoType>(
    repository: &HFRepositorySync<T>,
    commit: &str,
) -> Result<Vec<Listed>, SnapshotError> {
    let entries = repository.list_tree().revision(commit).recursive(true).limit(MAX_FILES + 1).send();
    let entries = entries.map_err(|source| SnapshotError::Hub {
        act: "listing the files".to_owned(),
        source: Box::new(source),
    })?;
    if entries.len() > MAX_FILES {
        return Err(SnapshotError::TooMany);
    }
    let mut listed = Vec::new();
    for entry in entries {
        let RepoTreeEntry::File { path: name, size: num_bytes, .. } = entry else { continue };
        if !is_below(&name) {
            return Err(SnapshotError::BadName { name });
        }
        listed.push(Listed { name, num_bytes });
    }
    Ok(listed)
}

/// Fetches one file of the snapshot `dir` into a temporary folder, and renames it once it is complete. Pods
/// may share the cache, and processes of different pods may have the same id.
fn fetch_file<T: RepoType>(
    repository: &HFRepositorySync<T>,
    commit: &str,
    dir: &Path,
    file: &Listed,
) -> Result<(), SnapshotError> {
    let name = &file.name;
    let beside = tempfile::Builder::new().prefix(".fetching-").tempdir_in(dir);
    let beside = beside.map_err(failed("create a folder in", dir))?;
    let fetched =
        repository.download_file().filename(name).revision(commit).local_dir(beside.path().to_owned()).send();
    fetched
        .map_err(|source| SnapshotError::Hub { act: format!("fetching {name}"), source: Box::new(source) })
        .and_then(|_| keep(&beside.path().join(name), &dir.join(name), file))
}

/// Writes the list of a commit's files, which never changes, into its snapshot. Errors are ignored, because a
/// read-only cache can still be used.
pub(super) fn keep_listing(dir: &Path, listed: &[Listed]) {
    if kept_listing(dir).as_deref() == Some(listed) {
        return;
    }
    let keep = || -> std::io::Result<()> {
        fs::create_dir_all(dir)?;
        // Pods of other users may share the cache, so the mode is that of any new file.
        let mode = fs::Permissions::from_mode(0o666);
        let mut file = tempfile::Builder::new().prefix(".listing-").permissions(mode).tempfile_in(dir)?;
        serde_json::to_writer(&mut file, listed)?;
        file.as_file().sync_all()?;
        file.persist(dir.join(LISTING))?;
        Ok(())
    };
    if let Err(error) = keep() {
        tracing::debug!(%error, "the list of files in {} is not kept", dir.display());
    }
}

/// Reads the cached list; `None` if there is none, or if it is invalid.
pub(super) fn kept_listing(dir: &Path) -> Option<Vec<Listed>> {
    let json = rlt_files::read(&dir.join(LISTING), MAX_LISTING_BYTES).ok()?;
    let listed: Vec<Listed> = serde_json::from_slice(&json).ok()?;
    (listed.len() <= MAX_FILES && listed.iter().all(|file| is_below(&file.name))).then_some(listed)
}

fn keep(fetched: &Path, path: &Path, file: &Listed) -> Result<(), SnapshotError> {
    let got = fs::metadata(fetched).map_err(failed("reading", fetched))?.len();
    if got != file.num_bytes {
        return Err(SnapshotError::Length { name: file.name.clone(), expected: file.num_bytes, got });
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed("create folder", folder))?;
    }
    // A file that has its name is whole, after a loss of power too.
    let sync = |path: &Path| fs::File::open(path)?.sync_all();
    sync(fetched).map_err(failed("syncing", fetched))?;
    fs::rename(fetched, path).map_err(failed("renaming", fetched))?;
    let folder = path.parent().unwrap_or(path);
    sync(folder).map_err(failed("syncing", folder))
}

fn failed(act: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> SnapshotError {
    let path = path.to_owned();
    move |source| SnapshotError::Cache { act, path, source }
}

/// Whether a path, whose components are separated by `/`, stays below the folder that it is joined to.
fn is_below(path: &str) -> bool {
    !path.contains(['\\', '\0']) && path.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// Whether the file with this name belongs to a model.
pub(crate) fn is_of_model(name: &str) -> bool {
    let fits = |pattern: &str| match pattern.split_once('*') {
        Some((begin, end)) => {
            let middle = name.strip_prefix(begin).and_then(|rest| rest.strip_suffix(end));
            middle.is_some_and(|middle| !middle.contains('/'))
        }
        None => name == pattern,
    };
    WANTED.iter().any(|pattern| fits(pattern))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_below_a_folder_only_without_parent_components() {
        for path in ["config.json", "a/b", "..a", "a..b/c", "..."] {
            assert!(is_below(path), "{path}");
        }
        for path in ["", "/etc/passwd", "..", "a/..", "a/../../b", "./a", "a//b", "a/", "a\\..\\b", "a\0"] {
            assert!(!is_below(path), "{path:?}");
        }
    }

    #[test]
    fn only_the_files_of_a_model_are_fetched_from_a_repository() {
        for name in [
            "config.json",
            "model.safetensors",
            "model-00001-of-00002.safetensors",
            "chat_template.jinja",
            "additional_chat_templates/tools.jinja",
            "preprocessor_config.json",
        ] {
            assert!(is_of_model(name), "{name}");
        }
        for name in
            ["modeling.py", "pytorch_model.bin", "onnx/model.safetensors", "chat_template/../x", "model.safe"]
        {
            assert!(!is_of_model(name), "{name}");
        }
    }
}
