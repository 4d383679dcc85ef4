//! Files of one commit in the hub's cache. File names come from an untrusted server, so none of them may lead
//! outside of the snapshot's folder.
//!
//! Files are stored in the snapshot itself, not behind links: other clients build the paths of links from the
//! server's entity tags, which are not used here.

use std::fs;
use std::io::{Read, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use super::client::{HubRepository, RequestError, TreeEntry};

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
/// Number of bytes that are received before they are written.
const BUFFER_BYTES: usize = 1 << 20;
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
        /// Error of the request.
        source: Box<RequestError>,
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
    /// The server sends more of a file than it lists.
    #[error("file {name}: expected {expected} bytes, as the repository lists, got more")]
    TooLong {
        /// Name of the file in the repository.
        name: String,
        /// Length in the server's list, in bytes.
        expected: u64,
    },
    /// The disk of the cache has too little space for the missing files.
    #[error(
        "{path}: {free} bytes are free, and the missing files need {needed}: make room, or set HF_HUB_CACHE to \
         another folder",
        path = path.display()
    )]
    NoRoom {
        /// Folder of the files in the cache.
        path: PathBuf,
        /// Number of free bytes.
        free: u64,
        /// Number of bytes of the files, as the server lists them.
        needed: u64,
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
pub(super) fn fetch<'a>(
    repository: &HubRepository,
    commit: &str,
    dir: &Path,
    listed: impl Iterator<Item = &'a Listed>,
) -> Result<(), SnapshotError> {
    fs::create_dir_all(dir).map_err(failed("create folder", dir))?;
    let is_whole = |file: &&Listed| {
        fs::metadata(dir.join(&file.name)).is_ok_and(|metadata| metadata.len() == file.num_bytes)
    };
    let missing: Vec<&Listed> = listed.filter(|file| !is_whole(file)).collect();
    check_room(dir, &missing)?;
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
pub(super) fn list(repository: &HubRepository, commit: &str) -> Result<Vec<Listed>, SnapshotError> {
    let entries = repository.list(commit, MAX_FILES).map_err(|source| SnapshotError::Hub {
        act: "listing the files".to_owned(),
        source: Box::new(source),
    })?;
    if entries.len() > MAX_FILES {
        return Err(SnapshotError::TooMany);
    }
    let mut listed = Vec::new();
    for entry in entries {
        let TreeEntry::File { path: name, size: num_bytes } = entry else { continue };
        if !is_below(&name) {
            return Err(SnapshotError::BadName { name });
        }
        listed.push(Listed { name, num_bytes });
    }
    Ok(listed)
}

/// Fails if the disk has too little space for the missing files.
fn check_room(dir: &Path, missing: &[&Listed]) -> Result<(), SnapshotError> {
    let needed = missing.iter().fold(0, |sum: u64, file| sum.saturating_add(file.num_bytes));
    match rlt_files::free_bytes(dir) {
        Some(free) if free < needed => Err(SnapshotError::NoRoom { path: dir.to_owned(), free, needed }),
        _ => Ok(()),
    }
}

/// Fetches one file of the snapshot `dir` into a temporary file, and renames it once it is complete. Pods may
/// share the cache, and processes of different pods may have the same id.
fn fetch_file(
    repository: &HubRepository,
    commit: &str,
    dir: &Path,
    file: &Listed,
) -> Result<(), SnapshotError> {
    let unanswered =
        |source| SnapshotError::Hub { act: format!("fetching {}", file.name), source: Box::new(source) };
    let answer = repository.open_file(commit, &file.name).map_err(unanswered)?;
    // Pods of other users may share the cache, so the mode is that of any new file.
    let mode = fs::Permissions::from_mode(0o666);
    let fetched = tempfile::Builder::new().prefix(".fetching-").permissions(mode).tempfile_in(dir);
    let mut fetched = fetched.map_err(failed("creating a file in", dir))?;
    receive(answer, file, fetched.as_file_mut(), dir)?;
    keep(fetched, &dir.join(&file.name))
}

/// Writes a file that a server sends, and stops once there are more bytes than the server has listed.
fn receive(
    mut answer: impl Read,
    listed: &Listed,
    file: &mut fs::File,
    dir: &Path,
) -> Result<(), SnapshotError> {
    let (name, expected) = (&listed.name, listed.num_bytes);
    let (mut got, mut buffer) = (0, vec![0; BUFFER_BYTES]);
    loop {
        let num_read = answer.read(&mut buffer).map_err(|source| SnapshotError::Hub {
            act: format!("fetching {name}"),
            source: Box::new(RequestError::Body(source)),
        })?;
        got += num_read as u64;
        match num_read {
            0 if got == expected => return Ok(()),
            0 => return Err(SnapshotError::Length { name: name.clone(), expected, got }),
            _ if got > expected => return Err(SnapshotError::TooLong { name: name.clone(), expected }),
            _ => file.write_all(&buffer[..num_read]).map_err(failed("writing a file in", dir))?,
        }
    }
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
        rlt_files::sync_folder(dir)
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

/// Moves a complete file to `path`.
fn keep(fetched: tempfile::NamedTempFile, path: &Path) -> Result<(), SnapshotError> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder).map_err(failed("creating folder", folder))?;
    // A file that has its name is complete, after a loss of power too.
    fetched.as_file().sync_all().map_err(failed("syncing", fetched.path()))?;
    fetched.persist(path).map_err(|error| failed("writing", path)(error.error))?;
    rlt_files::sync_folder(folder).map_err(failed("syncing", folder))
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
pub fn is_of_model(name: &str) -> bool {
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
    fn a_file_is_received_up_to_its_listed_length() {
        let dir = tempfile::tempdir().unwrap();
        let listed = Listed { name: "config.json".to_owned(), num_bytes: 3 };
        let received = |answer: &mut dyn Read| {
            let mut file = tempfile::tempfile().unwrap();
            receive(answer, &listed, &mut file, dir.path()).map(|()| file.metadata().unwrap().len())
        };
        assert_eq!(received(&mut &b"abc"[..]).unwrap(), 3);
        let error = received(&mut &b"ab"[..]).unwrap_err();
        assert!(matches!(error, SnapshotError::Length { expected: 3, got: 2, .. }), "{error}");
        let error = received(&mut std::io::repeat(b'a')).unwrap_err();
        assert!(matches!(error, SnapshotError::TooLong { expected: 3, .. }), "{error}");
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
